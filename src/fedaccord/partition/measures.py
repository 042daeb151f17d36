"""How different the clients are: labels, sizes, inputs, gradients. All without a loop over examples, and for 100 000 clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedaccord.core.errors import PartitionError
from fedaccord.partition.shards import Float64, Int64, Shards

TABLE = 1 << 20  # numbers of a table clients x classes that are held at a time


def label_counts(shards: Shards, labels: npt.NDArray[Any], num_classes: int) -> Int64:
    """Examples of each class at each client, [N, C]. E306 for a label outside [0, C)."""
    own = np.asarray(labels)[shards.indices].astype(np.int64, copy=False)
    if own.size and (own.min() < 0 or own.max() >= num_classes):
        raise PartitionError(
            "E306", f"labels from {own.min()} to {own.max()} for {num_classes} classes", "label_counts", "number the classes from 0"
        )
    counts = np.bincount(shards.owners() * num_classes + own, minlength=len(shards) * num_classes)
    return counts.reshape(len(shards), num_classes).astype(np.int64, copy=False)


def label_entropy(counts: Int64) -> Float64:
    """Entropy of each client's labels over log C, [N], from 0 (one class) to 1 (all alike); NaN for an empty client, 1 where C is 1."""
    num_classes, sizes = counts.shape[1], counts.sum(axis=1)
    if num_classes == 1:
        return np.where(sizes > 0, 1.0, np.nan)
    share = counts / np.maximum(sizes, 1)[:, None]
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1.0)), axis=1) / np.log(num_classes)
    return np.where(sizes > 0, np.clip(entropy, 0.0, 1.0), np.nan)


def js_distance(counts: Int64, everybody: Int64 | None = None) -> Float64:
    """Jensen-Shannon distance (root of the divergence in bits, 0 to 1) of each client's labels to the pooled ones, [N]; NaN if empty.

    everybody: the pooled counts [C], where `counts` [N, C] are of some clients only.
    """
    sizes, total = counts.sum(axis=1), counts.sum(axis=0) if everybody is None else everybody
    if not total.sum():
        return np.full(counts.shape[0], np.nan)
    own = counts / np.maximum(sizes, 1)[:, None]
    pooled = np.broadcast_to(total / total.sum(), own.shape)
    middle = (own + pooled) / 2
    divergence = (_bits(own, middle) + _bits(pooled, middle)) / 2
    return np.where(sizes > 0, np.sqrt(np.clip(divergence, 0.0, 1.0)), np.nan)


def _bits(share: Float64, other: Float64) -> Float64:
    """Kullback-Leibler divergence of the rows in bits, with 0 log 0 = 0."""
    ratio = np.where(share > 0, share, 1.0) / np.where(share > 0, other, 1.0)
    bits: Float64 = np.sum(share * np.log2(ratio), axis=1)
    return bits


def size_gini(sizes: Int64) -> float:
    """Gini coefficient of the clients' sizes: 0 all equal, (N - 1)/N one client holds all; 0 where there is nothing to hold."""
    total, clients = int(sizes.sum()), sizes.size
    if not total:
        return 0.0
    ranks = np.arange(1, clients + 1)
    return float(max(2.0 * np.sum(ranks * np.sort(sizes)) / (clients * total) - (clients + 1) / clients, 0.0))


def mean_of(values: Float64) -> float | None:
    """Mean over the clients for which the measure is defined; None where it is for nobody."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else None


def summary(shards: Shards, labels: npt.NDArray[Any] | None, num_classes: int | None) -> dict[str, float | None]:
    """The measures that a run records: means over the clients that hold data, None where labels are missing or are no classes."""
    measures: dict[str, float | None] = {"label_entropy_mean": None, "js_distance_mean": None, "size_gini": size_gini(shards.sizes)}
    if labels is not None and num_classes and labels.ndim == 1 and labels.dtype.kind in "iub":
        clients = max(1, TABLE // num_classes)
        parts = [shards.between(first, min(first + clients, len(shards))) for first in range(0, len(shards), clients)]
        everybody = np.sum([label_counts(part, labels, num_classes).sum(axis=0) for part in parts], axis=0)
        entropies, distances = [], []
        for part in parts:
            counts = label_counts(part, labels, num_classes)
            entropies.append(label_entropy(counts))
            distances.append(js_distance(counts, everybody))
        measures |= {"label_entropy_mean": mean_of(np.concatenate(entropies)), "js_distance_mean": mean_of(np.concatenate(distances))}
    return measures


def feature_shift(shards: Shards, features: npt.NDArray[Any], chunk: int = 4096) -> Float64:
    """How far each client's mean input is from the pooled mean, in pooled standard deviations, root mean square over features, [N].

    `features` [n, ...] is read `chunk` rows at a time (a memory map will do). What a random sample of the client's size would show by
    chance, (1/m)(n - m)/(n - 1) squared, is taken off, so an IID client is near 0 at any size. Constant features do not count. NaN for
    an empty client.
    """
    sizes, total = shards.sizes, shards.indices.size
    shift = np.full(len(shards), np.nan)
    if not total:
        return shift
    mean, spread = _moments(shards, features, chunk)
    varying = spread > 1e-12 * np.maximum(np.abs(mean), 1.0)
    if not varying.any():
        return np.where(sizes > 0, 0.0, np.nan)
    owners = shards.owners()
    carried, partial = -1, np.zeros(mean.size)  # the client that the last chunk left unfinished, and its sum so far
    for start in range(0, total, chunk):
        rows, owner = _rows(shards, features, start, chunk), owners[start : start + chunk]
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        sums = np.add.reduceat(rows - mean, first, axis=0)
        if owner[0] == carried:
            sums[0] += partial
        done = owner[first]
        distance = np.mean((sums / sizes[done][:, None])[:, varying] ** 2 / spread[varying] ** 2, axis=1)
        chance = (total - sizes[done]) / (sizes[done] * max(total - 1, 1))
        shift[done] = np.sqrt(np.maximum(distance - chance, 0.0))  # an unfinished client's value is overwritten by the next chunk
        carried, partial = int(done[-1]), sums[-1]
    return shift


def _rows(shards: Shards, features: npt.NDArray[Any], start: int, chunk: int) -> Float64:
    picked = np.asarray(features[shards.indices[start : start + chunk]], dtype=np.float64)
    return picked.reshape(picked.shape[0], -1)


def _moments(shards: Shards, features: npt.NDArray[Any], chunk: int) -> tuple[Float64, Float64]:
    """Mean and standard deviation of each feature over all owned rows; chunks merged as in Chan et al. 1983: large offsets lose nothing."""
    count, mean, squares = 0, np.zeros(1), np.zeros(1)
    for start in range(0, shards.indices.size, chunk):
        rows = _rows(shards, features, start, chunk)
        gap, both = rows.mean(axis=0) - mean, count + len(rows)
        squares = squares + ((rows - rows.mean(axis=0)) ** 2).sum(axis=0) + gap**2 * (count * len(rows) / both)
        mean = mean + gap * (len(rows) / both)
        count = both
    return mean, np.sqrt(squares / count)


@dataclass(frozen=True)
class GradientAngles:
    """Angles between the clients' gradients at one model, in degrees, over all pairs; `norm_ratio` largest over smallest norm."""

    num_clients: int
    mean: float
    median: float
    share_over_60: float
    mean_cosine: float
    norm_ratio: float


def gradient_angles(gradients: npt.ArrayLike, max_clients: int = 1000, columns: int = 1 << 18) -> GradientAngles | None:
    """Pairwise angles from gradients [N, d], one row a client. None with fewer than two clients that have a non-zero finite gradient.

    Beyond `max_clients` rows, that many evenly spaced ones stand for all. Memory: max_clients^2 + max_clients * columns numbers.
    """
    rows = np.asarray(gradients)
    if rows.shape[0] > max_clients:
        rows = rows[np.linspace(0, rows.shape[0] - 1, max_clients).round().astype(np.int64)]
    gram = np.zeros((rows.shape[0], rows.shape[0]))
    for start in range(0, rows.shape[1], columns):
        block = rows[:, start : start + columns].astype(np.float64)
        block[~np.isfinite(block).all(axis=1)] = np.nan  # NaN in one block marks the client's whole row of the Gram matrix
        gram += block @ block.T
    norms = np.sqrt(np.diagonal(gram))
    usable = np.flatnonzero(np.isfinite(norms) & (norms > 0))
    if usable.size < 2:
        return None
    norms = norms[usable]
    upper = np.triu_indices(usable.size, k=1)
    cosines = np.clip((gram[np.ix_(usable, usable)] / norms[:, None] / norms)[upper], -1.0, 1.0)
    angles = np.degrees(np.arccos(cosines))
    return GradientAngles(
        num_clients=int(usable.size),
        mean=float(angles.mean()),
        median=float(np.median(angles)),
        share_over_60=float(np.mean(angles > 60.0)),
        mean_cosine=float(cosines.mean()),
        norm_ratio=float(norms.max() / norms.min()),
    )
