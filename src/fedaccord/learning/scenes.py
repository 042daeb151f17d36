"""The federations that a policy is trained in: small tasks, cohorts and skews of all kinds, absent clients, and attacks, drawn at random.

They come from the data that ship with the package and from generated ones, never from the data sets that a policy is evaluated on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fedaccord.aggregation.policy import Policy
from fedaccord.aggregation.projection import Projection
from fedaccord.aggregation.rollout import Rollout
from fedaccord.aggregation.screen import Screen
from fedaccord.attacks import ATTACKS, Attack
from fedaccord.core.errors import PartitionError
from fedaccord.core.local import LocalPlan
from fedaccord.core.rng import stream
from fedaccord.experiment import Aggregation, Experiment, Prepared, RunOptions, prepare
from fedaccord.partition import DirichletPerClass
from fedaccord.runtime.base import ClientUpload, RuntimeAround
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.sampling import Uniform
from fedaccord.tasks import Task
from fedaccord.tasks.embedded import digits, fashion_mnist_mini
from fedaccord.tasks.models import model_factory

Source = Literal["generated", "digits", "fashion_mnist_mini"]
# No breaker while one learns; the caps hold as they will.
UNWATCHED = Rollout(deadline=60.0, max_rejected=1.0, max_worse=1e9, max_share=1.0)
ENOUGH = 8  # training examples a client on average, at least


class Scene(NamedTuple):
    """One federation."""

    source: Source
    model: Literal["softmax", "mlp"]
    clients: int
    cohort: int
    alpha: float  # Dirichlet, per class
    rounds: int
    epochs: int
    lr: float
    absent: float  # chance of each client in each round
    attack: Attack | None
    seed: int


@dataclass(frozen=True)
class Scenes:
    """What scenes are drawn from."""

    sources: tuple[Source, ...] = ("generated", "digits", "fashion_mnist_mini")
    cohorts: tuple[int, int] = (5, 200)
    alphas: tuple[float, float] = (0.05, 10.0)
    rounds: tuple[int, int] = (15, 40)
    clean: float = 0.35  # share of scenes in which nobody is bad
    bad: tuple[float, float] = (0.05, 0.3)  # share of the clients that are bad, elsewhere
    absent: float = 0.3  # at most
    attacks: tuple[str, ...] = ("sign_flip", "scaling", "alie", "ipm", "label_flip", "gaussian_noise", "inflated_counts", "free_rider")
    screen: Screen | None = field(default=None)

    def draw(self, seed: int, number: int, cohort: int | None = None) -> Scene:
        """Scene `number` of this seed; cohort: instead of a drawn one."""
        rng = stream(seed, "scene", number)
        source = self.sources[int(rng.integers(len(self.sources)))]
        size = round(_between(rng, *self.cohorts)) if cohort is None else cohort
        most = {"generated": 10**9, "digits": 140, "fashion_mnist_mini": 190}[source]
        if size > most:
            source, most = "generated", 10**9
        clients = min(most, round(size * _between(rng, 1.0, 3.0)))
        attack = None
        if rng.random() >= self.clean and self.attacks:
            kind = ATTACKS[self.attacks[int(rng.integers(len(self.attacks)))]]
            attack = replace(kind(), share=float(_between(rng, *self.bad)))
        return Scene(
            source,
            "softmax" if rng.random() < 0.6 else "mlp",
            max(clients, size),
            size,
            float(_between(rng, *self.alphas)),
            int(rng.integers(self.rounds[0], self.rounds[1] + 1)),
            int(rng.integers(1, 4)),
            float(_between(rng, 0.02, 0.3)),
            float(rng.uniform(0, self.absent)) if rng.random() < 0.5 else 0.0,
            attack,
            int(rng.integers(2**31)),
        )


def built(scene: Scene, policy: Policy, screen: Screen | None = None) -> Prepared:
    """The scene's federation, whose weights `policy` decides, in the company of caps and a shadow."""
    experiment = Experiment(
        partition=DirichletPerClass(alpha=scene.alpha, clients=scene.clients),
        local=LocalPlan(lr=scene.lr, epochs=scene.epochs, batch_size=20),
        aggregation=Aggregation(policy, screen, Projection(), UNWATCHED),
        runtime=RuntimeOptions("sequential", memory_format="contiguous", step="captured", state="memory"),
        attack=scene.attack,
        run=RunOptions(
            rounds=scene.rounds,
            seed=scene.seed,
            cohort=Uniform(scene.cohort),
            client_test=0.2,
            evaluate_every=10**6,
            evaluated_clients=1,
            keep_weights=False,
        ),
    )
    prepared = prepare(experiment, task_of(scene))
    if scene.absent:
        prepared = prepared._replace(
            federation=replace(prepared.federation, runtime=Absent(prepared.federation.runtime, scene.absent, scene.seed))
        )
    return prepared


class Absent(RuntimeAround):
    """Each client fails to answer with a chance of its own stream; one of a cohort always answers."""

    def __init__(self, inner: Any, chance: float, seed: int) -> None:
        self.inner, self._chance, self._seed = inner, chance, seed

    def train(self, algorithm: Any, sent: Any, buffers: Any, clients: Any, plan: Any, round: int, lr: float) -> list[ClientUpload]:
        here = [each for each in clients if stream(self._seed, "absent", round, each).random() >= self._chance] or list(clients[:1])
        return self.inner.train(algorithm, sent, buffers, here, plan, round, lr)


def task_of(scene: Scene) -> Task:
    """The scene's data and model."""
    if scene.source == "digits":
        return _digits(scene.model)
    if scene.source == "fashion_mnist_mini":
        return _fashion(scene.model)
    return generated(scene.model, scene.clients, scene.seed)


@cache
def _digits(model: Literal["softmax", "mlp"]) -> Task:
    return digits(model, hidden=(32,) if model == "mlp" else None)


@cache
def _fashion(model: Literal["softmax", "mlp"]) -> Task:
    return _coarse(fashion_mnist_mini(validation=0.2), model)


def _coarse(task: Task, model: str) -> Task:
    """Pictures averaged over 4x4 pixels: small models of the same difficulty for a policy."""

    def smaller(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, 4)

    assert task.test is not None and task.validation is not None
    parts = {
        name: (smaller(part.x), part.y) for name, part in (("train", task.train), ("test", task.test), ("validation", task.validation))
    }
    hidden = (32,) if model == "mlp" else None
    return Task(model=model_factory(model, (1, 7, 7), 10, hidden=hidden), loss=F.cross_entropy, num_classes=10, **parts)  # type: ignore[arg-type]


def generated(model: Literal["softmax", "mlp"], clients: int, seed: int) -> Task:
    """Gaussian clusters, two a class, in 8 to 24 dimensions, 3 to 10 classes, with labels of which up to a tenth are wrong."""
    rng = stream(seed, "generated")
    dimensions, classes = int(rng.integers(8, 25)), int(rng.integers(3, 11))
    spread, wrong = float(rng.uniform(0.6, 1.6)), float(rng.uniform(0, 0.1))
    centres = rng.standard_normal((classes, 2, dimensions)) * 1.2

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels, which = rng.integers(classes, size=count), rng.integers(2, size=count)
        x = centres[labels, which] + spread * rng.standard_normal((count, dimensions))
        given = np.where(rng.random(count) < wrong, rng.integers(classes, size=count), labels)
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(given)

    hidden = (24,) if model == "mlp" else None
    return Task(
        model=model_factory(model, (dimensions,), classes, hidden=hidden),
        loss=F.cross_entropy,
        train=part(max(400, clients * int(rng.integers(12, 40)))),
        test=part(200),
        validation=part(300),
        num_classes=classes,
    )


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


__all__ = ["PartitionError", "Scene", "Scenes", "built", "generated", "task_of"]
