"""The passes of one step: the loss that is recorded, the buffers that each pass reads, and how often the batches are drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.algorithm import Algorithm, BatchGrad, RoundStart, Server, Upload, Work
from fedaccord.core.gradient import sam
from fedaccord.core.local import Trained, local_training
from fedaccord.core.vector import FlatModel


@dataclass(frozen=True)
class TwoPasses(Algorithm):
    """SAM; keeps the gradient of every step's second pass."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        gradient = sam(grad, 0.5)(w)
        return gradient, {**(local or {}), str(grad.step): gradient}


class Still(Algorithm):
    """Stays where it is and looks at no gradient."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: Server, local: Any) -> tuple[Tensor, Any]:
        return torch.zeros_like(w), local


class Counting(nn.Module):
    """Multiplies by the number of passes that its buffer has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.passes, Tensor)
        self.passes += 1
        return x * self.weight * self.passes.clone()


def train(algorithm: Algorithm, module: nn.Module, batches: list[Any], loss: Any, drawn: list[int]) -> Trained:
    model = FlatModel(module)
    model.train(True)

    def draw() -> Iterator[Any]:
        drawn.append(len(batches))
        return iter(batches)

    return local_training(
        algorithm,
        model,
        loss,
        fa.LocalPlan(lr=0.1),
        Server(model.initial_w),
        model.initial_buffers,
        (),
        draw,
        round=1,
        lr=0.1,
        num_steps=1,
        validation=None,
        random_direction=lambda: model.initial_w,
    )


def test_a_step_records_the_loss_at_its_own_weights_and_not_where_sam_looked() -> None:
    torch.manual_seed(0)
    module, x, y = nn.Linear(4, 3), torch.randn(8, 4), torch.randint(0, 3, (8,))
    trained = train(TwoPasses(), module, [(x, y)], F.cross_entropy, [])
    assert float(trained.losses[0]) == pytest.approx(float(F.cross_entropy(module(x), y).detach()), rel=1e-6)


def test_a_second_pass_reads_the_buffers_as_the_first_one_left_them_and_moves_none() -> None:
    """The gradient is the number of passes in the buffer: 2 in the second pass of the first step, 3 in that of the second. Two are kept."""
    batches = [(torch.ones(1), torch.zeros(1))] * 2
    trained = train(TwoPasses(), Counting(), batches, lambda outputs, y: outputs.sum(), [])
    assert [float(trained.kept[step]) for step in ("0", "1")] == [2.0, 3.0]
    assert float(trained.buffers["passes"]) == 2.0


def test_the_batches_are_drawn_once_by_a_method_that_looks_at_no_further_ones() -> None:
    drawn: list[int] = []
    train(fa.FedAvg(), nn.Linear(4, 3), [(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 3, F.cross_entropy, drawn)
    assert drawn == [3]


def test_a_step_that_looks_at_no_gradient_has_no_loss_and_costs_none() -> None:
    trained = train(Still(), nn.Linear(4, 3), [(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 2, F.cross_entropy, [])
    assert trained.losses.tolist() == [0.0, 0.0] and trained.gradients == 0


@dataclass(frozen=True)
class Told(Algorithm):
    """Keeps what it is told about its work."""

    def upload(self, w: Tensor, sent: Server, local: Any, work: Work) -> tuple[Any, Any]:
        return Upload(w - sent.w), {"steps": work.steps, "lr": work.lr, "effective_steps": work.effective_steps}


def test_a_client_is_told_its_steps_the_rounds_rate_and_how_far_momentum_carried_it() -> None:
    """Momentum 1/2, three steps: 1 + 1.5 + 1.75."""
    model = FlatModel(nn.Linear(4, 3))
    batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))] * 3
    sent, plan = Server(model.initial_w), fa.LocalPlan(lr=0.1, optimizer=fa.Sgd(momentum=0.5))
    trained = local_training(
        Told(),
        model,
        F.cross_entropy,
        plan,
        sent,
        {},
        (),
        lambda: iter(batches),
        round=1,
        lr=0.07,
        num_steps=1,
        validation=None,
        random_direction=lambda: sent.w,
    )
    assert trained.kept == {"steps": 3, "lr": 0.07, "effective_steps": 4.25}


class Lookahead(Algorithm):
    """Evaluates all that it may look at before it trains."""

    def begin(self, start: RoundStart, sent: Server, kept: Any) -> Any:
        assert start.validation is not None
        for grad in [*start.reference, start.validation]:
            grad(sent.w)
        return kept

    @property
    def num_reference_batches(self) -> int:
        return 2


def test_looking_at_other_examples_before_training_moves_no_buffer_that_was_given() -> None:
    model = FlatModel(Counting())
    model.train(True)
    one, sent = (torch.ones(1), torch.zeros(1)), Server(model.initial_w)
    trained = local_training(
        Lookahead(),
        model,
        lambda outputs, y: outputs.sum(),
        fa.LocalPlan(lr=0.1),
        sent,
        model.initial_buffers,
        (),
        lambda: iter([one, one]),
        round=1,
        lr=0.1,
        num_steps=1,
        validation=one,
        random_direction=lambda: sent.w,
    )
    assert float(model.initial_buffers["passes"]) == 0.0
    assert float(trained.buffers["passes"]) == 2.0 and trained.gradients == 4
