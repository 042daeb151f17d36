"""How the uploads of a round lie to one another: the figures of drift and agreement in the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks, stacks
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
    norms, dots, drifts = np.zeros((3, len(deltas)))
    for chunk in chunks(len(mean_delta)):
        mean, moved = mean_delta[chunk], new_w[chunk] - sent_w[chunk]
        for some, own in stacks(deltas, chunk):
            norms[some] = np.hypot(norms[some], own.norm(dim=1).numpy(force=True))
            dots[some] += (own @ mean).numpy(force=True)
            drifts[some] += (own - moved).square_().sum(1).numpy(force=True)
    mean_norm = float(mean_delta.norm())
    cosines = [_cosine(dot, norm * mean_norm) for dot, norm in zip(dots.tolist(), norms.tolist(), strict=True)]
    return Geometry(norms.tolist(), cosines, drifts.tolist(), _pairwise_cosine(deltas, norms))


def _pairwise_cosine(deltas: Sequence[Tensor], norms: np.ndarray) -> float | None:
    """From the squared length of the sum of all directions, which is n + twice the sum of the pairs' cosines."""
    has_direction = (norms > EPS) & np.isfinite(norms)  # finite vectors may be longer than their dtype can say
    directions, n = [delta for delta, has in zip(deltas, has_direction, strict=True) if has], int(has_direction.sum())
    if n < 2:
        return None
    scales, squared = torch.from_numpy(1 / norms[has_direction]).to(deltas[0]), 0.0
    for chunk in chunks(len(deltas[0])):
        total = torch.zeros_like(deltas[0][chunk])
        for some, own in stacks(directions, chunk):
            total.addmv_(own.T, scales[some])
        squared += float(total @ total)
    return (squared - n) / (n * (n - 1))


def _cosine(dot: float, lengths: float) -> float:
    return max(-1.0, min(1.0, dot / lengths)) if 0 < lengths < math.inf and math.isfinite(dot) else 0.0
