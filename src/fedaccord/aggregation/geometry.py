"""How the uploads of a round lie to one another: the figures of drift and agreement in the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks
from fedaccord.core.gradient import EPS


class Geometry(NamedTuple):
    norms: list[float]  # |delta_i|
    cosines: list[float]  # of delta_i and the mean delta; 0 where either is zero
    drifts: list[float]  # |w_i - w_{t+1}|^2
    pairwise_cosine: float | None  # mean over pairs of the deltas that are not zero; None for fewer than two


def geometry(deltas: Sequence[Tensor], mean_delta: Tensor, sent_w: Tensor, new_w: Tensor) -> Geometry:
    """deltas: C vectors [d]; sent_w: where clients started; new_w: the global model after the server's step.

    Two passes over the deltas in chunks, O(C d); beside them only chunks are held.
    """
    norms, dots, drifts = ([0.0] * len(deltas) for _ in range(3))
    for chunk in chunks(len(mean_delta)):
        mean, moved = mean_delta[chunk], new_w[chunk] - sent_w[chunk]
        for i, delta in enumerate(deltas):
            own = delta[chunk]
            from_new = own - moved
            norms[i] = math.hypot(norms[i], float(own.norm()))
            dots[i] += float(own @ mean)
            drifts[i] += float(from_new @ from_new)
    mean_norm = float(mean_delta.norm())
    cosines = [_cosine(dot, norm * mean_norm) for dot, norm in zip(dots, norms, strict=True)]
    return Geometry(norms, cosines, drifts, _pairwise_cosine(deltas, norms))


def _pairwise_cosine(deltas: Sequence[Tensor], norms: Sequence[float]) -> float | None:
    """From the squared length of the sum of all directions, which is n + twice the sum of the pairs' cosines."""
    # Finite vectors may be longer than their dtype can say.
    directions = [(delta, 1 / norm) for delta, norm in zip(deltas, norms, strict=True) if EPS < norm < math.inf]
    n = len(directions)
    if n < 2:
        return None
    squared = 0.0
    for chunk in chunks(len(deltas[0])):
        total = torch.zeros_like(deltas[0][chunk])
        for delta, scale in directions:
            total.add_(delta[chunk], alpha=scale)
        squared += float(total @ total)
    return (squared - n) / (n * (n - 1))


def _cosine(dot: float, lengths: float) -> float:
    return max(-1.0, min(1.0, dot / lengths)) if 0 < lengths < math.inf and math.isfinite(dot) else 0.0
