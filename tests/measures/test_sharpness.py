from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from fedaccord.core.rng import stream
from fedaccord.measures import PooledLoss
from fedaccord.measures.sharpness import random_rise, sam_gap

Quadratic = Callable[..., PooledLoss]


def test_the_sam_gap_is_the_highest_rise_on_a_small_circle(quadratic: Quadratic) -> None:
    hessian = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    pooled, w, rho = quadratic(hessian), torch.tensor([1.0, -0.5], dtype=torch.float64), 1e-3
    turns = torch.linspace(0, 2 * math.pi, 20_001, dtype=torch.float64)
    circle = rho * torch.stack([turns.cos(), turns.sin()], dim=1)
    rises = [0.5 * (w + e) @ hessian @ (w + e) - 0.5 * w @ hessian @ w for e in circle[::10]]
    gap = sam_gap(pooled.value, pooled.gradient(w), w, rho)
    assert gap == pytest.approx(float(max(rises)), rel=1e-5)


def test_the_sam_gap_is_one_step_of_length_rho_along_the_gradient(quadratic: Quadratic) -> None:
    """L = w1^2 + w2^2/2 at (3, 8): g = (6, 8), |g| = 10, e = 0.5 (0.6, 0.8); L(3.3, 8.4) - L(3, 8) = 46.17 - 41 = 5.17."""
    pooled = quadratic(torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)))
    w = torch.tensor([3.0, 8.0], dtype=torch.float64)
    assert sam_gap(pooled.value, pooled.gradient(w), w, 0.5) == pytest.approx(5.17, rel=1e-12)


def test_where_the_gradient_is_zero_there_is_no_direction_of_ascent(quadratic: Quadratic) -> None:
    w = torch.zeros(3, dtype=torch.float64)
    pooled = quadratic(torch.eye(3, dtype=torch.float64))
    assert sam_gap(pooled.value, pooled.gradient(w), w, 0.1) is None
    assert sam_gap(pooled.value, w * torch.nan, w, 0.1) is None


def test_every_random_step_has_length_rho(quadratic: Quadratic) -> None:
    """At the minimum of c/2 |w|^2 each rise is c/2 rho^2, whatever the direction."""
    pooled, w = quadratic(3 * torch.eye(50, dtype=torch.float64)), torch.zeros(50, dtype=torch.float64)
    mean, error = random_rise(pooled.value, w, 0.2, 4, stream(0, "rise"))
    assert mean == pytest.approx(1.5 * 0.04, rel=1e-12)
    assert error == pytest.approx(0, abs=1e-15)


def test_the_random_rise_is_the_trace_in_small(quadratic: Quadratic) -> None:
    """At a minimum the mean rise is rho^2/2 times the mean eigenvalue."""
    spectrum = torch.arange(1.0, 31.0, dtype=torch.float64)
    pooled, w = quadratic(torch.diag(spectrum)), torch.zeros(30, dtype=torch.float64)
    mean, error = random_rise(pooled.value, w, 0.1, 400, stream(0, "rise"))
    assert error is not None and abs(mean - 0.005 * float(spectrum.mean())) < 4 * error
    assert error < 0.02 * mean
