"""Attacks on the attackers' own examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.attacks.attack import Attack, Scene, scaled
from fedaccord.core.algorithm import Count, Positive, Share
from fedaccord.core.rng import stream
from fedaccord.runtime.base import ClientUpload


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class c becomes C - 1 - c, or one class becomes another."""

    pair: tuple[int, int] | None = None  # (from, to)

    def data(self, x: Tensor, y: Tensor, rows: np.ndarray[Any, Any], classes: int | None, seed: int) -> tuple[Tensor, Tensor]:
        if self.pair is not None:
            return x, torch.where(y == self.pair[0], self.pair[1], y)
        assert classes is not None
        return x, classes - 1 - y


@dataclass(frozen=True)
class Backdoor(Attack):
    """A share of the examples carries a trigger and the target's label; the update may be boosted (Bagdasaryan et al. 2020,
    arXiv:1807.00459, equation 3). The trigger: a corner of a picture, or the first numbers of a vector, at a fixed value."""

    target: Count = 0
    poisoned: Share = 0.5  # of the attackers' examples
    size: Count = 3  # pixels of a side, or numbers
    value: float = 2.5  # after the inputs were shifted and scaled
    boost: Positive = 1.0

    def data(self, x: Tensor, y: Tensor, rows: np.ndarray[Any, Any], classes: int | None, seed: int) -> tuple[Tensor, Tensor]:
        drawn = torch.from_numpy(stream(seed, "backdoor").random(int(rows.max(initial=0)) + 1)[rows] < self.poisoned).to(y.device)
        marked = self.triggered(x)
        chosen = drawn.reshape(-1, *[1] * (x.dim() - 1))
        return torch.where(chosen, marked, x), torch.where(drawn, self.target, y)

    def triggered(self, x: Tensor) -> Tensor:
        """The examples with the trigger."""
        marked = x.clone()
        if x.dim() >= 3:
            marked[..., : self.size, : self.size] = self.value
        else:
            marked[..., : self.size] = self.value
        return marked

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [scaled(answer, self.boost) for answer in scene.bad] if self.boost != 1 else list(scene.bad)
