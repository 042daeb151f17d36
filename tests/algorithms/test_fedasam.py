"""FedASAM and FedSAM: ASAM's steps by hand, and both perturbations to 1e-7."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedaccord.algorithms import FedASAM, FedSAM
from fedaccord.algorithms.fedasam import every_weight, named_weight
from fedaccord.core.vector import Layout


def test_two_steps_by_hand(one_round: Any, vec: Any) -> None:
    """rho = eta = 1/2; the first parameter is a weight, the second a bias: T = (|w_1| + 1/2, 1). g = w - b, b = (0, -6), lr 1/2.

    w = (1.5, -2): T = (2, 1), g = (1.5, 4), T g = (3, 4), e = 0.5 (2*3, 1*4)/5 = (0.6, 0.4), w - (2.1, 4.4)/2 = (0.45, -4.2).
    Then T = (0.95, 1), g = (0.45, 1.8), T g = (0.4275, 1.8).
    """
    method = FedASAM(rho=0.5, eta=0.5)
    done = one_round(method, method.broadcast(method.init_server(vec(1.5, -2.0))), (), a=(1.0, 1.0), b=(0.0, -6.0))
    assert done.points[1] == pytest.approx([2.1, -1.6]) and done.path[0] == pytest.approx([0.45, -4.2])
    length = (0.4275**2 + 1.8**2) ** 0.5
    e = [0.5 * 0.95 * 0.4275 / length, 0.5 * 1.8 / length]
    assert done.points[3] == pytest.approx([0.45 + e[0], -4.2 + e[1]])
    assert done.path[1] == pytest.approx([0.45 - (0.45 + e[0]) / 2, -4.2 - (1.8 + e[1]) / 2])
    assert done.upload.delta.tolist() == pytest.approx([done.path[1][0] - 1.5, done.path[1][1] + 2.0]) and done.kept == ()


def test_scaled_all_grows_the_radius_of_biases_too(one_round: Any, vec: Any) -> None:
    """w = (1.5, -2): T = (2, 2.5), g = (1.5, 1.6), T g = (3, 4), e = 0.5 (2*3, 2.5*4)/5 = (0.6, 1)."""
    method = FedASAM(rho=0.5, eta=0.5, scaled="all")
    done = one_round(method, method.broadcast(method.init_server(vec(1.5, -2.0))), (), a=(1.0, 1.0), b=(0.0, -3.6), steps=1)
    assert done.points[1] == pytest.approx([2.1, -1.0])


def test_weights_are_found_by_name() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 1), nn.LayerNorm(1)))
    assert named_weight(layout).tolist() == [True, True, False, True, False] and every_weight(layout).all()


def perturbation(one_round: Any, method: Any, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where the second gradient was taken, less w."""
    done = one_round(method, method.broadcast(method.init_server(w)), (), a=a.tolist(), b=b.tolist(), steps=1)
    first, second = (torch.tensor(point, dtype=torch.float64) for point in done.points)
    assert torch.equal(first, w)
    return second - w


@pytest.mark.parametrize("seed", range(5))
def test_perturbations_are_the_formulas_to_1e_7(one_round: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    w, b = (torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(2))
    a = torch.rand(2, generator=generator, dtype=torch.float64)
    g, rho, eta = a * (w - b), 0.3, 0.2
    plain = perturbation(one_round, FedSAM(rho=rho), w, a, b)
    assert float((plain - rho * g / g.norm()).norm()) <= 1e-7 and abs(float(plain.norm()) - rho) <= 1e-7
    for scaled, scale in (("all", w.abs() + eta), ("named_weight", torch.stack([w[0].abs() + eta, torch.ones_like(w[1])]))):
        e = perturbation(one_round, FedASAM(rho, eta, scaled), w, a, b)  # type: ignore[arg-type]
        assert float((e - rho * scale**2 * g / (scale * g).norm()).norm()) <= 1e-7
        assert abs(float((e / scale).norm()) - rho) <= 1e-7, "on the sphere of the scaled space"
