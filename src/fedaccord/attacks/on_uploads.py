"""Attacks on what is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedaccord.attacks.attack import Attack, Scene, deltas, scaled, with_delta
from fedaccord.core.algorithm import NonNegative, Positive, Share
from fedaccord.core.rng import torch_stream
from fedaccord.runtime.base import ClientUpload


@dataclass(frozen=True)
class SignFlip(Attack):
    """The update turned round and longer, all its vectors alike."""

    factor: Positive = 3.0

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [scaled(answer, -self.factor) for answer in scene.bad]


@dataclass(frozen=True)
class Scaling(Attack):
    """The update many times as long, all its vectors alike."""

    factor: Positive = 100.0

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [scaled(answer, self.factor) for answer in scene.bad]


@dataclass(frozen=True)
class ALIE(Attack):
    """All send mean - z std of honest updates, coordinate by coordinate, with the largest z that still has enough honest clients beyond it
    (Baruch et al. 2019, arXiv:1902.06156, algorithm 3). Other vectors are sent as they came of the training."""

    z: Positive | None = None  # left out: from the number of clients and attackers
    omniscient: bool = True  # mean and deviation are those of the honest updates; False: of the attackers' own

    knows_honest: ClassVar[bool] = True

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        own = _known(scene, self.omniscient)
        z = self.z if self.z is not None else largest_z(len(scene.bad) + len(scene.honest), len(scene.bad))
        crafted = own.mean(0) - z * own.std(0, unbiased=False)
        return [_told_apart(answer, crafted, scene) for answer in scene.bad]


def largest_z(clients: int, bad: int) -> float:
    """z with Phi(z) = (n - m - s) / (n - m), s = floor(n / 2 + 1) - m the supporters that are needed; at least 0.1."""
    supporters = math.floor(clients / 2 + 1) - bad
    honest = max(1, clients - bad)
    p = min(max((honest - supporters) / honest, 0.5), 1 - 1e-3)
    return max(0.1, math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * p - 1))))


@dataclass(frozen=True)
class IPM(Attack):
    """All send the negative of the honest mean, times epsilon (Xie et al. 2020, arXiv:1903.03936, equation 3). Other vectors are sent as
    they came of the training."""

    epsilon: Positive = 0.5

    knows_honest: ClassVar[bool] = True

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        own = _known(scene, omniscient=True)
        return [_told_apart(answer, -self.epsilon * own.mean(0), scene) for answer in scene.bad]


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """The update plus noise of `deviation` times its own length; other vectors as they came of the training."""

    deviation: Positive = 3.0

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [with_delta(a, a.upload.delta + self.deviation * float(a.upload.delta.norm()) * noise(a, scene)) for a in scene.bad]


@dataclass(frozen=True)
class InflatedCounts(Attack):
    """The sample count many times as large, so that the model becomes the attackers', of data whose class c is said to be c + 1. All
    vectors are sent as they came of the training."""

    factor: Positive = 100.0
    shifts_labels: bool = True

    @property
    def poisons_data(self) -> bool:
        return self.shifts_labels

    def data(self, x: Tensor, y: Tensor, rows: np.ndarray[Any, Any], classes: int | None, seed: int) -> tuple[Tensor, Tensor]:
        assert classes is not None
        return x, (y + 1) % classes

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [a._replace(report=replace(a.report, num_examples=a.report.num_examples * self.factor)) for a in scene.bad]


@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends what needs no training: zeros, the last global move again, or noise of the last move's length. In the simulation it trains
    nevertheless: its report, and the upload's other vectors, are those of the training."""

    kind: Literal["zero", "replayed", "noised"] = "replayed"
    jitter: NonNegative = 1e-4  # of its length, on the replayed move: else the guard's digests see it

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        return [with_delta(answer, self._made_up(answer, scene)) for answer in scene.bad]

    def _made_up(self, answer: ClientUpload, scene: Scene) -> Tensor:
        zero: Tensor = torch.zeros_like(answer.upload.delta)
        if self.kind == "zero" or scene.previous is None:
            return zero
        length = float(scene.previous.norm())
        if self.kind == "noised":
            return length * noise(answer, scene)
        return scene.previous + self.jitter * length * noise(answer, scene)


@dataclass(frozen=True)
class Adaptive(Attack):
    """Knows the rule guard: of all updates as long as the median one whose cosine to the honest coordinate-wise median is `cosine`, the one
    that is most opposed to the honest mean. Other vectors are sent as they came of the training."""

    cosine: Share = 0.05
    omniscient: bool = True  # mean and median are those of the honest updates; False: of the attackers' own

    knows_honest: ClassVar[bool] = True

    def uploads(self, scene: Scene) -> list[ClientUpload]:
        own = _known(scene, self.omniscient).double()
        towards = own.median(0).values
        direction = towards / towards.norm().clamp(min=1e-30)
        length = float(own.norm(dim=1).quantile(0.5))
        against = -own.mean(0)
        across = against - (against @ direction) * direction
        across = across / across.norm().clamp(min=1e-30)
        crafted = length * (self.cosine * direction + math.sqrt(1 - self.cosine**2) * across)
        like = scene.bad[0].upload.delta
        return [_told_apart(answer, crafted.to(like.dtype), scene) for answer in scene.bad]


def _known(scene: Scene, omniscient: bool) -> Tensor:
    """Honest changes [n, d]: those of the honest clients, or, for want of them too, what the attackers would have sent."""
    return deltas(scene.honest if omniscient and scene.honest else scene.bad)


def _told_apart(answer: ClientUpload, crafted: Tensor, scene: Scene) -> ClientUpload:
    """With a millionth of noise of the client's own, since equal uploads are refused as copies."""
    return with_delta(answer, crafted + 1e-6 * float(crafted.norm()) * noise(answer, scene))


def noise(answer: ClientUpload, scene: Scene) -> Tensor:
    """A random unit vector [d] of this client and round."""
    like = answer.upload.delta
    generator = torch_stream(scene.seed, "attack", scene.round, answer.client)
    drawn: Tensor = torch.randn(like.shape, dtype=like.dtype, generator=generator).to(like.device)
    return drawn.div(drawn.norm())
