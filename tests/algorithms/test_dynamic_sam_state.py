"""dynamic_sam: what a client has before its first round, the mean gradient at the global model, and the probe where the loss is flat."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedaccord.algorithms.dynamic_sam import NUM_ANGLES, DynamicSAM, Kept
from fedaccord.core.algorithm import RoundStart, Server, Work
from fedaccord.core.vector import Layout

LAYOUT = Layout.of(nn.Linear(1, 1))  # any


class Constant:
    """The same gradient everywhere, of a loss that is the sum of the weights."""

    def __init__(self, gradient: Tensor, step: int = 0) -> None:
        self.gradient, self.step = gradient, step

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return w.sum(), self.gradient

    def __call__(self, w: Tensor) -> Tensor:
        return self.gradient


def test_a_client_that_was_never_measured_is_consistent_flat_and_stable(vec: Any) -> None:
    kept = DynamicSAM().init_client(vec(1.0, 2.0))
    assert float(kept.gamma) == 1.0
    assert kept.angles.tolist() == [0.0] * NUM_ANGLES and kept.final.tolist() == [0.0, 0.0]
    assert [float(part) for part in (kept.sigma, kept.tau, kept.raw, kept.used_lambda, kept.used_rho, kept.num_angles)] == [0.0] * 6


def test_the_reference_is_the_mean_gradient_over_the_batches_at_the_start(vec: Any) -> None:
    """The further batches give 1 and 2 in the first weight, the first step's own batch gives 6: (1 + 2 + 6) / 3."""
    method, sent = DynamicSAM(reference_batches=3), Server(vec(0.0, 0.0))
    further = [Constant(vec(1.0, 0.0)), Constant(vec(2.0, 0.0))]
    local = method.begin(RoundStart(9, 0.1, further, None, lambda: vec(1.0, 0.0), LAYOUT, 1, 1.0), sent, method.init_client(sent.w))
    assert local.final.tolist() == [0.0, 0.0], "no gradient yet"
    _, local = method.direction(Constant(vec(6.0, 0.0)), sent.w, sent, local)
    assert local.reference.tolist() == pytest.approx([3.0, 0.0])
    _, local = method.direction(Constant(vec(100.0, 0.0), step=1), sent.w, sent, local)
    assert local.reference.tolist() == pytest.approx([3.0, 0.0]), "later steps are not at the global model"


def test_a_probe_where_the_gradient_is_zero_looks_nowhere_and_sees_no_rise(vec: Any) -> None:
    method, sent = DynamicSAM(rho_max=0.5), Server(vec(2.0, 5.0))
    held_out = Constant(torch.zeros(2, dtype=torch.float64))
    local = method.begin(RoundStart(1, 0.1, (), held_out, lambda: vec(1.0, 0.0), LAYOUT, 1, 1.0), sent, method.init_client(sent.w))
    assert local.probe.tolist() == [0.0, 7.0]


def taken_part(method: DynamicSAM, kept: Kept, gradient: Tensor) -> Kept:
    sent = Server(torch.zeros_like(gradient))
    local = method.begin(RoundStart(9, 0.1, (), None, lambda: torch.ones_like(gradient), LAYOUT, 1, 1.0), sent, kept)
    w = sent.w
    _, local = method.direction(Constant(gradient), w, sent, local)
    return method.upload(w, sent, local, Work(1, 0.1, 1.0))[1]


def test_the_first_participation_has_no_angle_and_opposite_gradients_are_half_a_turn_apart(vec: Any) -> None:
    method = DynamicSAM()
    first = taken_part(method, method.init_client(vec(0.0, 0.0)), vec(3.0, 4.0))
    assert first.angles.tolist() == [0.0] * NUM_ANGLES and float(first.num_angles) == 0.0
    second = taken_part(method, first, vec(-3.0, -4.0))
    assert second.angles.tolist() == pytest.approx([0.0] * (NUM_ANGLES - 1) + [math.pi]) and float(second.num_angles) == 1.0
    third = taken_part(method, second, vec(4.0, -3.0))
    assert third.angles.tolist() == pytest.approx([0.0] * (NUM_ANGLES - 2) + [math.pi, math.pi / 2])


@pytest.mark.parametrize("seed", range(20))
def test_the_same_gradient_twice_is_an_angle_of_about_zero_whatever_the_rounding(seed: int) -> None:
    """The cosine of a vector with itself may round to more than 1, where the arc cosine is NaN."""
    method, gradient = DynamicSAM(), torch.randn(50, generator=torch.Generator().manual_seed(seed))
    first = taken_part(method, method.init_client(torch.zeros(50)), gradient)
    assert float(taken_part(method, first, gradient).angles[-1]) == pytest.approx(0.0, abs=1e-2)


def test_tau_is_the_spread_of_the_last_five_angles_and_weighs_kappa_in_lambda(vec: Any) -> None:
    """Gradients + - + + + - are apart by pi, pi, 0, 0, pi: standard deviation pi sqrt(0.6 * 0.4). With four angles there is no tau yet."""
    method, kept = DynamicSAM(alpha=0.25, beta=0.0, kappa=0.5), DynamicSAM().init_client(vec(0.0, 0.0))
    for sign in (1, -1, 1, 1, 1):
        kept = taken_part(method, kept, sign * vec(1.0, -1.0))
    assert float(kept.tau) == 0.0
    kept = taken_part(method, kept, -vec(1.0, -1.0))
    tau = math.pi * math.sqrt(0.24)
    assert float(kept.tau) == pytest.approx(tau)
    assert float(kept.raw) == pytest.approx(0.25 * (1 - float(kept.gamma)) + 0.5 * tau)


@pytest.mark.parametrize(("raw", "clipped"), [(0.0625, 1.0), (0.125, 1.0), (0.1875, 0.0), (0.25, 1.0), (0.9, 1.0)])
def test_lambda_at_either_bound_or_beyond_is_reported_as_clipped(raw: float, clipped: float, vec: Any) -> None:
    method = DynamicSAM(lambda_min=0.125, lambda_max=0.25)
    kept = method.init_client(vec(0.0))._replace(raw=torch.tensor(raw, dtype=torch.float64), used_lambda=torch.tensor(0.2))
    signals = method.signals(kept)
    assert float(signals["clipped"]) == clipped
    assert float(signals["lambda_raw"]) == raw and float(signals["lambda"]) == pytest.approx(0.2)
