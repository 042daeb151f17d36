"""Where lengths are nearly zero: the guard 1e-12 is added to a norm before a division, and clipping is torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.algorithms.fedsmoo import Kept, Sent, Server, Upload
from fedaccord.core.algorithm import Cohort, RoundStart
from fedaccord.core.gradient import EPS, ahead, asam, cosine, sam, shortened
from fedaccord.core.vector import Layout

LAYOUT = Layout.of(nn.Linear(1, 1))  # any


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Slope:
    """A gradient that is the same everywhere; remembers where it was asked for."""

    step = 0

    def __init__(self, gradient: Tensor) -> None:
        self.gradient = gradient
        self.points: list[Tensor] = []

    def __call__(self, w: Tensor) -> Tensor:
        self.points.append(w)
        return self.gradient

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        return w.sum(), self(w)


def test_the_guard_is_a_millionth_of_a_millionth() -> None:
    assert EPS == 1e-12


@pytest.mark.parametrize("transform", [sam, lambda grad, rho: asam(grad, rho, eta=1.0)], ids=["sam", "asam"])
def test_a_gradient_no_longer_than_the_guard_is_followed_half_of_rho(transform: Any) -> None:
    """|g| = 1e-12 and w = 0, so that asam's scale is 1: rho g / (|g| + 1e-12) = rho / 2."""
    slope = Slope(tensor(0.0, -EPS))
    transform(slope, 0.4)(tensor(0.0, 0.0))
    assert slope.points[1].tolist() == pytest.approx([0.0, -0.2])


@pytest.mark.parametrize("transform", [sam, asam], ids=["sam", "asam"])
def test_a_zero_gradient_is_followed_nowhere(transform: Any) -> None:
    slope = Slope(tensor(0.0, 0.0))
    transform(slope, 0.4)(tensor(1.0, 2.0))
    assert slope.points[1].tolist() == [1.0, 2.0]


def test_fedsmoo_guards_both_of_its_norms_so() -> None:
    """Both ascent and mean dual have length 1e-12: each perturbation is rho / 2 long."""
    method, zero = fa.FedSMOO(rho=0.4, beta=1.0), tensor(0.0, 0.0)
    slope, sent = Slope(tensor(EPS, 0.0)), Sent(zero, zero)
    local = method.begin(RoundStart(1, 0.1, (), None, lambda: zero, LAYOUT, 1, 1.0), sent, Kept(zero, zero))
    method.direction(slope, zero, sent, local)
    assert slope.points[1].tolist() == pytest.approx([0.2, 0.0])
    upload = Upload(zero, tensor(0.0, EPS))
    assert method.update(Server(zero, zero, zero), Cohort(upload, upload, 1, 1)).s.tolist() == pytest.approx([0.0, 0.2])


def test_asams_ball_is_as_wide_for_a_negative_weight_as_for_a_positive_one() -> None:
    for sign in (1.0, -1.0):
        slope = Slope(tensor(1.0, 0.0))
        asam(slope, 0.5, eta=0.25)(tensor(sign * 0.75, 0.0))
        assert slope.points[1].tolist() == pytest.approx([sign * 0.75 + 0.5, 0.0])


def test_looking_ahead_takes_the_other_direction_below_the_guard_alone() -> None:
    w, rho, other = tensor(0.0, 0.0), torch.tensor(0.5, dtype=torch.float64), tensor(0.0, 1.0)
    assert ahead(w, tensor(EPS, 0.0), rho, other).tolist() == [0.5, 0.0], "as long as the guard: a direction"
    assert ahead(w, tensor(0.9 * EPS, 0.0), rho, other).tolist() == [0.0, 0.5], "shorter: none"
    assert ahead(w, tensor(0.0, 0.0), rho, other).tolist() == [0.0, 0.5]


@pytest.mark.parametrize("length", [1e-5, 1e-3, 1.0, 1e4])
def test_clipping_is_torchs_however_short_the_gradient(length: float) -> None:
    gradient = tensor(0.6, -0.8) * length
    parameter = torch.nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_([parameter], length / 10)
    assert torch.allclose(shortened(gradient, length / 10), parameter.grad, rtol=1e-12, atol=0.0)


def test_a_cosine_never_leaves_its_range_by_rounding() -> None:
    for seed in range(200):
        v = torch.randn(30, generator=torch.Generator().manual_seed(seed))
        assert 0.999 < float(cosine(v, v)) <= 1.0
        assert -1.0 <= float(cosine(v, -v)) < -0.999


def test_the_cosine_with_a_zero_vector_is_zero_on_either_side_and_with_two() -> None:
    zero, v = torch.zeros(2), torch.tensor([3.0, 4.0])
    assert [float(cosine(a, b)) for a, b in ((zero, v), (v, zero), (zero, zero))] == [0.0, 0.0, 0.0]
