"""The caps that hold whatever a learned policy says: how far its weights may go from FedAvg's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from fedaccord.core.algorithm import Positive

HALVINGS = 40  # of the step towards FedAvg's weights


@dataclass(frozen=True)
class Projection:
    """Of the accepted clients: none above `max_factor` times its share by size, an effective number of clients (1/sum w^2) of at least
    `min_effective` times FedAvg's own, and at most `max_divergence` nats of KL(w | FedAvg's). FedAvg's weights themselves always fit."""

    max_factor: Annotated[float, Ge(1)] = 3.0
    min_effective: Annotated[float, Ge(0), Le(1)] = 0.5
    max_divergence: Positive = 1.0

    def __call__(self, weights: Tensor, by_size: Tensor) -> Tensor:
        """The nearest weights [C] on the way to FedAvg's that fit; both sum to 1 and 0 stays 0. The same bits where they fit already.

        by_size: the sample counts' shares of all C. Where some are left out, FedAvg's weights are those of the others.
        """
        accepted = weights > 0
        reference = torch.where(accepted, by_size, 0.0)
        reference = reference / reference.sum()
        capped = self._capped(weights, reference)
        return capped if self._fits(capped, reference) else _towards(capped, reference, self._fits)

    def _capped(self, weights: Tensor, reference: Tensor) -> Tensor:
        """Whoever is above its cap gets the cap, and the others share the rest in their own proportions."""
        caps, held = self.max_factor * reference, torch.zeros_like(weights, dtype=torch.bool)
        capped = weights
        while bool((over := (capped > caps * (1 + 1e-12)) & ~held).any()):
            held |= over
            free = torch.where(held, 0.0, weights)
            left = (1 - caps[held].sum()).clamp(min=0)
            capped = torch.where(held, caps, free * (left / free.sum() if free.sum() > 0 else 0.0))
        return capped if capped is weights else capped / capped.sum()

    def _fits(self, weights: Tensor, reference: Tensor) -> bool:
        slack = 1 + 1e-9
        some = weights > 0
        divergence = float((weights[some] * (weights[some] / reference[some]).log()).sum())
        is_wide = effective_number(weights) * slack >= self.min_effective * effective_number(reference)
        return is_wide and divergence <= self.max_divergence * slack and bool((weights <= self.max_factor * reference * slack).all())


def effective_number(weights: Tensor) -> float:
    """1 / sum w^2 of weights that sum to 1: how many clients count."""
    return float(1 / weights.square().sum())


def _towards(weights: Tensor, reference: Tensor, fits: Callable[[Tensor, Tensor], bool]) -> Tensor:
    """As little of `reference` mixed in as it takes; all three limits are convex, so halving finds it."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(torch.lerp(weights, reference, middle), reference) else (middle, high)
    return torch.lerp(weights, reference, high)
