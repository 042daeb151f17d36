"""The loss along random directions that are scaled like the weights (Li et al. 2018, arXiv:1712.09913, section 4).

A layer with large weights is moved by large steps, so that slices of differently scaled networks can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.vector import Layout


def filter_normalised(layout: Layout, w: Tensor, rng: np.random.Generator) -> Tensor:
    """A random direction [d] each of whose filters has the norm of the same filter of w.

    A filter is all that makes one output: a tensor's row along its first axis (for a transposed convolution that is an input). Biases,
    norm layers' parameters and whatever else has one axis get a zero direction.
    """
    random = torch.from_numpy(rng.standard_normal(layout.size)).to(w)
    parts = {}
    for (name, drawn), own in zip(layout.unflatten(random).items(), layout.unflatten(w).values(), strict=True):
        if own.ndim < 2:
            parts[name] = torch.zeros_like(own)
            continue
        axes = tuple(range(1, own.ndim))
        length = torch.linalg.vector_norm(drawn, dim=axes, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
        parts[name] = drawn / length * torch.linalg.vector_norm(own, dim=axes, keepdim=True)
    return layout.flatten(parts)


def slice_along(value: Callable[[Tensor], float], w: Tensor, direction: Tensor, at: Sequence[float]) -> list[float]:
    """L(w + a direction) for each a."""
    return [value(w + a * direction) for a in at]


def slice_across(value: Callable[[Tensor], float], w: Tensor, first: Tensor, second: Tensor, at: Sequence[float]) -> list[list[float]]:
    """L(w + a first + b second): a row for each b, in it a column for each a."""
    return [slice_along(value, w + b * second, first, at) for b in at]
