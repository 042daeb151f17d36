"""gradient.py: each transform against the formula it cites, on a quadratic whose gradient is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedaccord.core.gradient import (
    ahead,
    asam,
    clip,
    clip_direction,
    clip_nothing_more,
    clip_reference,
    cosine,
    proximal,
    sam,
    shortened,
    weight_decay,
)

CURVES = torch.tensor([1.0, 4.0], dtype=torch.float64)
W = torch.tensor([3.0, 1.0], dtype=torch.float64)


def grad(w: Tensor) -> Tensor:
    """Gradient of f(w) = w_1^2/2 + 2 w_2^2."""
    return CURVES * w


def test_sam_looks_ahead_along_the_normalised_gradient() -> None:
    """g(W) = (3, 4), |g| = 5; W + 0.5 (3, 4)/5 = (3.3, 1.4); g there = (3.3, 5.6)."""
    assert torch.allclose(sam(grad, 0.5)(W), torch.tensor([3.3, 5.6], dtype=torch.float64))


def test_asam_scales_the_ball_with_each_weight() -> None:
    """T = |W| + 1 = (4, 2); T g = (12, 8), norm sqrt(208); e = 0.5 T (T g)/|T g| = 0.5 (48, 16)/sqrt(208)."""
    e = 0.5 * torch.tensor([48.0, 16.0], dtype=torch.float64) / 208**0.5
    assert torch.allclose(asam(grad, 0.5, eta=1.0)(W), CURVES * (W + e))


def test_proximal_and_weight_decay_add_their_pull() -> None:
    anchor = torch.tensor([1.0, 1.0], dtype=torch.float64)
    assert torch.allclose(proximal(grad, anchor, 0.5)(W), torch.tensor([3.0 + 0.5 * 2, 4.0], dtype=torch.float64))
    assert torch.allclose(weight_decay(grad, 0.1)(W), torch.tensor([3.3, 4.1], dtype=torch.float64))


def test_proximal_is_the_gradient_of_the_squared_distance() -> None:
    w, anchor = W.clone().requires_grad_(), torch.tensor([-1.0, 2.0], dtype=torch.float64)
    objective = (CURVES * w.square()).sum() / 2 + 0.7 / 2 * (w - anchor).square().sum()
    (expected,) = torch.autograd.grad(objective, w)
    assert torch.allclose(proximal(grad, anchor, 0.7)(W), expected)


def test_the_order_of_sam_and_proximal_matters() -> None:
    anchor = torch.zeros(2, dtype=torch.float64)
    assert not torch.allclose(sam(proximal(grad, anchor, 1.0), 0.5)(W), proximal(sam(grad, 0.5), anchor, 1.0)(W))


def test_clip_shortens_what_is_longer_and_leaves_every_bit_of_what_is_not() -> None:
    long = clip(grad, 2.5)(W)
    assert float(long.norm()) == pytest.approx(2.5, rel=1e-6) and float(cosine(long, grad(W))) == pytest.approx(1.0)
    assert torch.equal(clip(grad, 6.0)(W), grad(W))
    assert torch.equal(shortened(torch.zeros(2), 1.0), torch.zeros(2))
    assert torch.equal(shortened(W, float("inf")), W)


def test_the_reference_clip_leaves_the_half_w_of_a_proximal_term_outside() -> None:
    """Direction g + mu (w - a); clipped is g - mu a, and mu w is added afterwards, as FL-Simulator hides it in SGD's weight decay."""
    mu, anchor = 0.5, torch.tensor([10.0, 10.0], dtype=torch.float64)
    direction = proximal(grad, anchor, mu)(W)
    inside = grad(W) - mu * anchor
    assert torch.allclose(clip_reference(direction, W, 1.0, mu), shortened(inside, 1.0) + mu * W)
    assert torch.allclose(clip_direction(direction, W, 1.0, mu), shortened(direction, 1.0))
    assert clip_nothing_more(direction, W, 1.0, mu) is direction


def test_ahead_goes_rho_along_the_vector_and_along_the_other_where_it_has_no_direction() -> None:
    other = torch.tensor([0.0, 1.0], dtype=torch.float64)
    rho = torch.tensor(0.5, dtype=torch.float64)
    assert torch.allclose(ahead(W, grad(W), rho, other), W + torch.tensor([0.3, 0.4], dtype=torch.float64))
    assert torch.equal(ahead(W, torch.zeros_like(W), rho, other), W + torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert torch.equal(ahead(W, grad(W), torch.zeros_like(rho), other), W)


def test_cosine_is_zero_for_a_zero_vector() -> None:
    assert cosine(W, torch.zeros_like(W)) == 0
    assert float(cosine(W, -2 * W)) == pytest.approx(-1.0)
