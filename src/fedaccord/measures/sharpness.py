"""How much the loss rises within a ball of radius rho around w: along the gradient, and along random directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedaccord.measures.hessian import mean_and_error

Value = Callable[[Tensor], float]  # w [d] -> L(w)


def sam_gap(value: Value, gradient: Tensor, w: Tensor, rho: float) -> float | None:
    """max over |e| = rho of L(w + e) - L(w), to first order: one ascent step e = rho g/|g| (Foret et al. 2021, arXiv:2010.01412, eq. 2).

    `gradient`: g [d] of L at w. None where g is zero and so names no direction.
    """
    norm = gradient.norm()
    return None if not norm > 0 else value(w + rho * gradient / norm) - value(w)


def random_rise(value: Value, w: Tensor, rho: float, directions: int, rng: np.random.Generator) -> tuple[float, float | None]:
    """(mean, standard error) of L(w + e) - L(w) over random e with |e| = rho: what a rise along no direction in particular is."""
    here, rises = value(w), []
    for _ in range(directions):
        e = torch.from_numpy(rng.standard_normal(w.numel())).to(w)
        rises.append(value(w + rho * e / e.norm()) - here)
    return mean_and_error(rises)
