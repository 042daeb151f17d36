"""Attacks on the attackers' own examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.attacks.attack import Attack, Scene, scaled
from fedaccord.core.algorithm import Count, Positive, PositiveCount, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream
from fedaccord.runtime.base import ClientUpload

BATCH = 1000  # examples that are looked at together


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Class c becomes C - 1 - c, or one class becomes another. All vectors are sent as they came of the training."""

    pair: tuple[Count, Count] | None = None  # (from, to)

    def check(self, classes: int | None) -> None:
        super().check(classes)
        for label in self.pair or ():
            _among(label, classes, "attack.pair")

    def data(self, x: Tensor, y: Tensor, rows: np.ndarray[Any, Any], classes: int | None, seed: int) -> tuple[Tensor, Tensor]:
        if self.pair is not None:
            return x, torch.where(y == self.pair[0], self.pair[1], y)
        assert classes is not None
        return x, classes - 1 - y


@dataclass(frozen=True)
class Backdoor(Attack):
    """A share of the examples carries a trigger and the target's label; the update may be boosted (Bagdasaryan et al. 2020,
    arXiv:1807.00459, equation 3), all its vectors alike. The trigger: a corner of a picture, or the first numbers of a vector, at a fixed
    value."""

    target: Count = 0
    poisoned: Share = 0.5  # of the attackers' examples
    size: PositiveCount = 3  # pixels of a side, or numbers
    value: float = 2.5  # after the inputs were shifted and scaled
    boost: Positive = 1.0  # (clients asked) / (attackers), and the mean model becomes the attackers'

    def check(self, classes: int | None) -> None:
        super().check(classes)
        _among(self.target, classes, "attack.target")

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

    def success(self, model: nn.Module, x: Tensor, y: Tensor) -> float | None:
        """Share of the examples of other classes that the model takes for the target once they carry the trigger; None where there are
        none. The model is used as it is: a `Run.model()` is in evaluation mode."""
        others = x[y != self.target]
        if not len(others):
            return None
        with torch.no_grad():
            hits = sum(int((model(self.triggered(part)).argmax(1) == self.target).sum()) for part in others.split(BATCH))
        return hits / len(others)

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [scaled(answer, self.boost) for answer in scene.bad] if self.changes_uploads else list(scene.bad)

    @property
    def changes_uploads(self) -> bool:
        return self.boost != 1


def _among(label: int, classes: int | None, where: str) -> None:
    if classes is not None and label >= classes:
        raise ConfigError("E203", f"class {label} of {classes} classes", where, f"Classes are 0 to {classes - 1}")
