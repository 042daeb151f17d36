"""A client whose loss is f(w) = sum_j a_j (w_j - b_j)^2 / 2, so that every step can be done by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedaccord.core.algorithm import Algorithm, Cohort, RoundStart, Work
from fedaccord.core.local import LocalPlan, Trained, local_training
from fedaccord.core.vector import FlatModel, Layout

LAYOUT = Layout.of(nn.Linear(1, 1))  # any


class Quadratic:
    """The gradient of one step; remembers where it was evaluated."""

    def __init__(self, a: Tensor, b: Tensor, step: int) -> None:
        self.a, self.b, self.step = a, b, step
        self.points: list[Tensor] = []

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        self.points.append(w)
        return (self.a * (w - self.b).square()).sum() / 2, self.a * (w - self.b)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]


class Outcome(NamedTuple):
    path: list[list[float]]  # w after each step
    upload: Any
    kept: Any
    points: list[list[float]]  # where gradients were evaluated


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def train(
    method: Algorithm,
    sent: Any,
    kept: Any,
    *,
    a: Sequence[float] = (1.0,),
    b: Sequence[float] = (1.0,),
    lr: float = 0.5,
    steps: int = 2,
    round: int = 1,
    validation: tuple[Sequence[float], Sequence[float]] | None = None,
    reference: Sequence[Sequence[float]] = (),
    random: Sequence[float] = (1.0,),
) -> Outcome:
    """`steps` plain SGD steps. reference: targets b of further reference batches; validation: (a, b) of examples that do not train."""
    held_out = None if validation is None else Quadratic(vector(*validation[0]), vector(*validation[1]), 0)
    others = [Quadratic(vector(*a), vector(*target), 0) for target in reference]
    local = method.begin(RoundStart(round, lr, others, held_out, lambda: vector(*random), LAYOUT, 1, 1.0), sent, kept)
    w, path, points = sent.w, [], []
    for step in range(steps):
        grad = Quadratic(vector(*a), vector(*b), step)
        direction, local = method.direction(grad, w, sent, local)
        w = w - lr * direction
        path.append(w.tolist())
        points += [point.tolist() for point in grad.points]
    upload, kept = method.upload(w, sent, local, Work(steps, lr, float(steps)))
    return Outcome(path, upload, kept, points)


def train_model(
    method: Algorithm, model: FlatModel, loss: Any, sent: Any, kept: Any, x: Tensor, y: Tensor, *, lr: float = 0.5, steps: int = 2
) -> tuple[list[list[float]], Trained]:
    """(w after each step, what local training returns) of full-batch SGD on a real model: for methods that write the objective."""
    path: list[list[float]] = []
    trained = local_training(
        method,
        model,
        loss,
        LocalPlan(lr=lr),
        sent,
        model.initial_buffers,
        kept,
        lambda: iter([(x, y)] * steps),
        round=2,
        lr=lr,
        num_steps=steps,
        validation=None,
        random_direction=lambda: torch.zeros_like(sent.w),
        watch=lambda step, direction, w: path.append(w.tolist()),
    )
    return path, trained


def one_of_four(upload: Any) -> Cohort:
    """A round in which one client of four took part."""
    return Cohort(upload, upload, 1, 4)


@pytest.fixture()
def one_round() -> Callable[..., Outcome]:
    return train


@pytest.fixture()
def round_of_a_model() -> Callable[..., tuple[list[list[float]], Trained]]:
    return train_model


@pytest.fixture()
def alone() -> Callable[[Any], Cohort]:
    return one_of_four


@pytest.fixture()
def vec() -> Callable[..., Tensor]:
    return vector
