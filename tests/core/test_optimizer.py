"""optimizer.py: the pure functions against torch.optim, and the displacement of equal steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaccord.core.optimizer import Adam, AdamW, Sgd

LR = 0.05


def theirs(make: Callable[[list[Tensor]], torch.optim.Optimizer], directions: Tensor, w: Tensor) -> list[Tensor]:
    parameter = w.clone().requires_grad_()
    optimizer, seen = make([parameter]), []
    for direction in directions:
        parameter.grad = direction.clone()
        optimizer.step()
        seen.append(parameter.detach().clone())
    return seen


def ours(optimizer: Any, directions: Tensor, w: Tensor) -> list[Tensor]:
    moments, seen = optimizer.init(w), []
    for direction in directions:
        w, moments = optimizer.step(w, direction, moments, LR)
        seen.append(w)
    return seen


@pytest.fixture(scope="module")
def draws() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(20, 30, generator=generator), torch.randn(30, generator=generator)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, LR)),
        (Sgd(momentum=0.9), lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    ],
    ids=["sgd", "momentum"],
)
def test_sgd_equals_torch_to_the_bit(optimizer: Any, make: Any, draws: tuple[Tensor, Tensor]) -> None:
    for mine, reference in zip(ours(optimizer, *draws), theirs(make, *draws), strict=True):
        assert torch.equal(mine, reference)


@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (Sgd(momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, LR, momentum=0.9, nesterov=True)),
        (Adam(0.8, 0.95, 1e-6), lambda p: torch.optim.Adam(p, LR, betas=(0.8, 0.95), eps=1e-6)),
        (Adam(), lambda p: torch.optim.Adam(p, LR)),
        (AdamW(decay=0.3), lambda p: torch.optim.AdamW(p, LR, weight_decay=0.3)),
    ],
    ids=["nesterov", "adam_other_betas", "adam", "adamw"],
)
def test_the_others_equal_torch_to_rounding(optimizer: Any, make: Any, draws: tuple[Tensor, Tensor]) -> None:
    directions, w = draws[0].double(), draws[1].double()
    for mine, reference in zip(ours(optimizer, directions, w), theirs(make, directions, w), strict=True):
        assert float((mine - reference).abs().max()) <= 1e-12
    for mine, reference in zip(ours(optimizer, *draws), theirs(make, *draws), strict=True):  # float32: a few units in the last place
        assert float((mine - reference).norm()) <= 1e-7 * float(reference.norm())


@pytest.mark.parametrize("optimizer", [Sgd(), Sgd(0.9), Sgd(0.5, nesterov=True), Sgd(1.0)])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_is_the_displacement_of_equal_unit_directions(optimizer: Sgd, steps: int) -> None:
    w = torch.zeros(1, dtype=torch.float64)
    end = ours(optimizer, torch.ones(steps, 1, dtype=torch.float64), w)[-1]
    assert optimizer.effective_steps(steps) == pytest.approx(-float(end) / LR)


def test_effective_steps_under_momentum_is_fednovas_closed_form() -> None:
    """a = [K - m (1 - m^K) / (1 - m)] / (1 - m); K = 5, m = 0.9: [5 - 9 (1 - 0.59049)] / 0.1 = 13.1441."""
    assert Sgd(0.9).effective_steps(5) == pytest.approx(13.1441)


def test_steps_change_nothing_in_place() -> None:
    w, direction = torch.ones(3), torch.full((3,), 2.0)
    for optimizer in (Sgd(), Sgd(0.9), Sgd(0.9, True), Adam(), AdamW()):
        moments = optimizer.init(w)
        kept = [m.clone() for m in moments] if isinstance(moments, tuple) else [moments.clone()]
        optimizer.step(w, direction, moments, 0.1)
        assert torch.equal(w, torch.ones(3)) and torch.equal(direction, torch.full((3,), 2.0))
        after = list(moments) if isinstance(moments, tuple) else [moments]
        assert all(torch.equal(a, b) for a, b in zip(kept, after, strict=True))
