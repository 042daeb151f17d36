"""Kernels for robust aggregation on C vectors [d]: products, distances, Krum's scores, statistics of each coordinate.

The vectors stay where they are; all kernels look at a few thousand coordinates of all of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks
from fedaccord.core.errors import ConfigError

BLOCK = 1 << 21  # numbers of all vectors together that are copied at a time: 8 MB in float32
SAMPLE = 1024  # coordinates that choose a centre
CLOSE = 0.01  # of the squared distances from the centre; float32 products lose up to 1e-6 of these


def gram(vectors: Sequence[Tensor], centre: Tensor | None = None) -> Tensor:
    """Products [C, C], float64, of the vectors less a common centre [d] (default: none).

    Subtract a centre where the vectors have much in common, else distances and angles between them drown in it. Each block is multiplied
    in the vectors' own dtype, at least float32, and blocks are added in float64; all of it in float64 where float32 would overflow.
    """
    own = torch.promote_types(vectors[0].dtype, torch.float32)
    products = _products(vectors, centre, own)
    return products if own == torch.float64 or products.isfinite().all() else _products(vectors, centre, torch.float64)


def squared_distances(vectors: Sequence[Tensor]) -> Tensor:
    """|v_i - v_j|^2 [C, C], float64: symmetric, never negative, zero on the diagonal and between equal vectors.

    From products around one of the vectors. Whoever lies much closer to one another than to it is measured again, around one of themselves,
    so that every distance keeps about four digits, whatever outliers there are. That one belongs to no such group: the groups shrink.
    """
    distances = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    groups = [torch.arange(len(vectors))]
    while groups:
        group = groups.pop()
        own = [vectors[i] for i in group.tolist()]
        products = gram(own, centre=own[central(own)])
        lengths = products.diag()[:, None] + products.diag()
        found = (lengths - 2 * products).clamp(min=0).nan_to_num(nan=math.inf, posinf=math.inf).fill_diagonal_(0)
        distances[group[:, None], group] = found
        groups += [group[members] for members in _connected(found < CLOSE * lengths)]
    return distances


def krum_scores(vectors: Sequence[Tensor], num_byzantine: int) -> Tensor:
    """Krum's scores [C], float64; the vector with the smallest is Krum's choice (Blanchard et al. 2017, arXiv:1703.02757, section 4).

    s(i) is the sum of the squared distances from v_i to the C - f - 2 vectors closest to it, for f Byzantine clients. E203 where
    C < 2f + 3, below which the paper promises nothing.
    """
    count, f = len(vectors), num_byzantine
    if f < 0 or count < 2 * f + 3:
        what = f"Krum needs 2f + 3 = {2 * f + 3} clients to stand {f} Byzantine ones, here are {count}"
        raise ConfigError("E203", what, "krum", "Ask more clients a round, or name fewer Byzantine ones" if f >= 0 else "f is at least 0")
    return nearest_sums(squared_distances(vectors), count - f - 2)


def nearest_sums(distances: Tensor, nearest: int) -> Tensor:
    """Of each vector, the sum [C] of its distances [C, C] to the `nearest` others, at least one; 0 where there are no others."""
    count = len(distances)
    others = distances.clone().fill_diagonal_(math.inf).sort(dim=1).values[:, : count - 1]
    return others[:, : max(1, nearest)].sum(dim=1)


def coordinate_median(vectors: Sequence[Tensor]) -> Tensor:
    """The median of each coordinate [d], of an even number the mean of the middle two (Yin et al. 2018, arXiv:1803.01498, definition 1)."""
    low, high = (len(vectors) - 1) // 2, len(vectors) // 2
    median = torch.empty_like(vectors[0])
    for chunk, ordered in sorted_blocks(vectors):
        median[chunk] = torch.from_numpy(ordered[:, low] * 0.5 + ordered[:, high] * 0.5)
    return median


def trimmed_mean(vectors: Sequence[Tensor], share: float) -> Tensor:
    """The mean of each coordinate [d] without its floor(share C) smallest and as many largest values (Yin et al. 2018, definition 2).

    share: at least 0, below 1/2, else E203.
    """
    if not 0 <= share < 0.5:
        raise ConfigError("E203", f"a share of {share:g} to cut at each end", "trimmed_mean", "Give at least 0 and less than 0.5")
    count = len(vectors)
    cut = min(math.floor(share * count + 1e-9), (count - 1) // 2)  # 0.29 * 100 is a little less than 29
    mean = torch.empty_like(vectors[0])
    for chunk, ordered in sorted_blocks(vectors):
        mean[chunk] = torch.from_numpy(ordered[:, cut : count - cut].mean(axis=1, dtype=np.float64))  # no sum of finite numbers is Inf
    return mean


def nearest_to_median(vectors: Sequence[Tensor], kept: int) -> Tensor:
    """The mean [d] of the `kept` values of each coordinate that are nearest its median: in their order they stand side by side.

    kept: at least 1, at most C.
    """
    count = len(vectors)
    low, high = (count - 1) // 2, count // 2
    mean = torch.empty_like(vectors[0])
    for chunk, ordered in sorted_blocks(vectors):
        values = torch.from_numpy(ordered).double()
        middle = (values[:, low] + values[:, high]) / 2
        ends = torch.stack([(middle[:, None] - values[:, : count - kept + 1]).abs(), (values[:, kept - 1 :] - middle[:, None]).abs()])
        first = ends.amax(dim=0).argmin(dim=1, keepdim=True)  # of the window whose farther end is nearest
        mean[chunk] = values.gather(1, first + torch.arange(kept)).mean(dim=1).to(mean.dtype)
    return mean


def _products(vectors: Sequence[Tensor], centre: Tensor | None, dtype: torch.dtype) -> Tensor:
    count = len(vectors)
    total = torch.zeros(count, count, dtype=torch.float64, device=vectors[0].device)
    for chunk in chunks(len(vectors[0]), _width(count)):
        block = torch.stack([vector[chunk] for vector in vectors]).to(dtype)
        if centre is not None:
            block -= centre[chunk].to(dtype)
        total += block @ block.T
    return (total + total.T) / 2  # a product's last bits need not be symmetric


def central(vectors: Sequence[Tensor]) -> int:
    """The place of a vector near the others, judged by some of the coordinates: a centre for `gram`, never an outlier among many."""
    step = max(1, len(vectors[0]) // SAMPLE)
    sample = torch.stack([vector[::step] for vector in vectors]).to(torch.float64)
    return int(torch.cdist(sample, sample).sum(dim=1).argmin())


def _connected(close: Tensor) -> list[Tensor]:
    """Groups of at least two [any] that hold together by close pairs [C, C]."""
    if not close.any():
        return []
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(close.numpy(), directed=False)
    return [torch.from_numpy(np.flatnonzero(labels == label)) for label in np.flatnonzero(np.bincount(labels) > 1)]


def sorted_blocks(vectors: Sequence[Tensor]) -> Iterator[tuple[slice, np.ndarray[Any, Any]]]:
    """(chunk, its coordinates' values in ascending order [chunk, C]). Numpy sorts a row faster than torch finds its median."""
    own = torch.promote_types(vectors[0].dtype, torch.float32)
    for chunk in chunks(len(vectors[0]), _width(len(vectors))):
        block = torch.stack([vector[chunk] for vector in vectors]).T.to(own).contiguous().numpy(force=True)
        block.sort(axis=1)
        yield chunk, block


def _width(num_vectors: int) -> int:
    """Coordinates of a block."""
    return max(1024, BLOCK // num_vectors)
