"""How the uploads of a round lie to one another: the figures of drift and agreement in the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.core.gradient import EPS


class Geometry(NamedTuple):
    norms: list[float]  # |delta_i|
    cosines: list[float]  # of delta_i and the mean delta; 0 where either is zero
    drifts: list[float]  # |w_i - w_{t+1}|^2
    pairwise_cosine: float | None  # mean over pairs of the deltas that are not zero; None for fewer than two


def geometry(deltas: Sequence[Tensor], mean_delta: Tensor, sent_w: Tensor, new_w: Tensor) -> Geometry:
    """deltas: C vectors [d]; sent_w: where clients started; new_w: the global model after the server's step. One pass, O(C d)."""
    moved = new_w - sent_w
    norms = [float(delta.norm()) for delta in deltas]
    mean_norm = float(mean_delta.norm())
    cosines = [_cosine(float(delta @ mean_delta), norm * mean_norm) for delta, norm in zip(deltas, norms, strict=True)]
    drifts = [float((delta - moved).square().sum()) for delta in deltas]
    directions = torch.zeros_like(mean_delta)
    for delta, norm in zip(deltas, norms, strict=True):
        if EPS < norm < math.inf:  # finite vectors may be longer than their dtype can say
            directions.add_(delta, alpha=1 / norm)
    n = sum(EPS < norm < math.inf for norm in norms)
    pairwise = (float(directions.square().sum()) - n) / (n * (n - 1)) if n > 1 else None
    return Geometry(norms, cosines, drifts, pairwise)


def _cosine(dot: float, lengths: float) -> float:
    return max(-1.0, min(1.0, dot / lengths)) if 0 < lengths < math.inf and math.isfinite(dot) else 0.0
