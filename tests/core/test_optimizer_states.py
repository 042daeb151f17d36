"""What optimisers start from, and the second moment of Yogi by hand."""

from __future__ import annotations

import pytest
import torch

import fedaccord as fa
from fedaccord.core.server_optimizer import Moments, ServerOptimizer


def test_plain_sgd_keeps_nothing_between_steps() -> None:
    assert fa.Sgd().init(torch.ones(3)) == ()
    assert fa.Sgd(momentum=0.5).init(torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("optimizer", [fa.Sgd(), fa.Adam(), fa.AdamW()], ids=lambda optimizer: type(optimizer).__name__)
def test_without_momentum_a_step_counts_as_one(optimizer: fa.Sgd | fa.Adam | fa.AdamW) -> None:
    assert optimizer.effective_steps(7) == 7.0


@pytest.mark.parametrize(
    "optimizer", [fa.ServerAdam(), fa.ServerYogi(), fa.ServerAdagrad()], ids=lambda optimizer: type(optimizer).__name__
)
def test_adaptive_server_optimisers_start_without_a_direction_and_from_the_initial_v(optimizer: ServerOptimizer) -> None:
    moments = optimizer.init(torch.ones(2, dtype=torch.float64))
    assert moments.m.tolist() == [0.0, 0.0]
    assert moments.v.tolist() == [1e-6, 1e-6]


def test_server_sgd_starts_without_a_direction_and_has_no_second_moment() -> None:
    moments = fa.ServerSgd(momentum=0.9).init(torch.ones(2))
    assert moments.m.tolist() == [0.0, 0.0]
    assert moments.v.shape == () and float(moments.v) == 0.0


def test_yogis_second_moment_goes_to_the_square_by_a_share_of_the_square() -> None:
    """beta2 = 0.9. 0.04 below 0.25: up by 0.1 * 0.25; 0.04 above 0.01: down by 0.1 * 0.01; 0.25 = 0.25: it stays."""
    v = torch.tensor([0.04, 0.04, 0.25], dtype=torch.float64)
    move = torch.tensor([0.5, 0.1, 0.5], dtype=torch.float64)
    _, after = fa.ServerYogi(beta2=0.9).step(torch.zeros(3), move, Moments(torch.zeros(3), v))
    assert after.v.tolist() == pytest.approx([0.065, 0.039, 0.25])


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_sgd_writes_its_step_into_the_memory_that_it_is_given(momentum: float) -> None:
    optimizer, w, direction, into = fa.Sgd(momentum), torch.ones(2), torch.tensor([1.0, 2.0]), torch.empty(2)
    after, _ = optimizer.step(w, direction, optimizer.init(w), 0.25, into)
    assert after.data_ptr() == into.data_ptr() and after.tolist() == [0.75, 0.5]
    assert w.tolist() == [1.0, 1.0]
