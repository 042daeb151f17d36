"""What the server computes about each upload for the policies, so that no client's word is taken for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks, stacks
from fedaccord.aggregation.robust import sorted_blocks
from fedaccord.aggregation.sums import weighted_sum

NORM = "norm"  # |u_k|
DIRECTION = "direction"  # cosine of u_k and the last move of the global model; unknown in the first round
MEDIAN_DIRECTION = "median_direction"  # cosine of u_k and the coordinate-wise median of the others'; unknown for one client
MEAN_DIRECTION = "mean_direction"  # cosine of u_k and the size-weighted mean of the cohort's
ROOT_DIRECTION = "root_direction"  # cosine of u_k and the move of a model trained on the server's examples
CREDIT = "credit"  # <-gradient of the validation loss, u_k>: by how much u_k lowers it, to first order
ACCURACY = (
    "accuracy"  # the global model's metric on the client's own examples when the round begins; with a private reward its gains so far
)
FIGURES = (NORM, DIRECTION, MEDIAN_DIRECTION, ROOT_DIRECTION, CREDIT)
ALL = (*FIGURES, MEAN_DIRECTION)


def figures(
    wanted: Sequence[str],
    deltas: Sequence[Tensor],
    previous: Tensor | None = None,
    root: Callable[[], Tensor] | None = None,
    gradient: Callable[[], Tensor] | None = None,
    counts: Tensor | None = None,
) -> Mapping[str, Tensor]:
    """The wanted ones of `ALL`, each [C] float64; NaN where one cannot be known."""
    norms, found = lengths(deltas), dict[str, Tensor]()
    unknown = torch.full_like(norms, torch.nan)
    for name in wanted:
        if name == NORM:
            found[name] = norms
        elif name == DIRECTION:
            found[name] = unknown if previous is None else cosines(deltas, norms, previous)
        elif name == MEDIAN_DIRECTION:
            found[name] = unknown if len(deltas) < 2 else median_directions(deltas)
        elif name == MEAN_DIRECTION:
            shares = torch.full_like(norms, 1 / len(norms)) if counts is None else counts / counts.sum()
            found[name] = cosines(deltas, norms, weighted_sum(deltas, shares.tolist()))
        elif name == ROOT_DIRECTION:
            found[name] = unknown if root is None else cosines(deltas, norms, root())
        elif name == CREDIT:
            found[name] = unknown if gradient is None else -dots(deltas, gradient())
    return found


def lengths(vectors: Sequence[Tensor]) -> Tensor:
    """Norms [C], float64."""
    squared = torch.zeros(len(vectors), dtype=torch.float64)
    for chunk in chunks(len(vectors[0])):
        for some, own in stacks(vectors, chunk):
            squared[some] += own.double().square_().sum(1).cpu()
    return squared.sqrt_()


def dots(vectors: Sequence[Tensor], other: Tensor) -> Tensor:
    """Products [C] with one vector [d], float64."""
    total = torch.zeros(len(vectors), dtype=torch.float64)
    for chunk in chunks(len(other)):
        part = other[chunk].double()
        for some, own in stacks(vectors, chunk):
            total[some] += (own.double() @ part).cpu()
    return total


def cosines(vectors: Sequence[Tensor], norms: Tensor, other: Tensor) -> Tensor:
    """Cosines [C] with one vector [d]; 0 where either is zero."""
    products = norms * float(other.double().norm())
    return (dots(vectors, other) / products).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(-1, 1)


def median_directions(vectors: Sequence[Tensor]) -> Tensor:
    """Cosine [C] of each vector and the coordinate-wise median of all the others; 0 where either is zero. At least two vectors.

    The others' median follows from the sorted values of all: of an even number without one it is a middle value, of an odd number the mean
    of two next to the middle.
    """
    count = len(vectors)
    dot, own_squared, median_squared = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
    half = count // 2
    for chunk, ordered in sorted_blocks(vectors):
        values = torch.stack([vector[chunk] for vector in vectors], dim=1).double().cpu()  # [numbers, C]
        s = torch.from_numpy(ordered).double()
        if count % 2 == 0:
            low, high = s[:, half - 1 : half], s[:, half : half + 1]
            median = torch.where(values <= low, high, low)
        else:
            low, middle, high = (s[:, max(half - 1, 0) + i : max(half - 1, 0) + i + 1] for i in range(3))
            median = torch.where(values < middle, (middle + high) / 2, torch.where(values > middle, (low + middle) / 2, (low + high) / 2))
        dot += (values * median).sum(0)
        own_squared += values.square().sum(0)
        median_squared += median.square().sum(0)
    return (dot / (own_squared * median_squared).sqrt()).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(-1, 1)
