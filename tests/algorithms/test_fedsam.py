"""FedSAM: two steps by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedaccord.algorithms import FedSAM


def test_two_steps_by_hand(one_round: Any, vec: Any) -> None:
    """rho = 0.3, g = w - 1, lr 1/2.  g = -1, e = -0.3, g(-0.3) = -1.3: w = 0.65.  g = -0.35, e = -0.3, g(0.35) = -0.65: w = 0.975."""
    method = FedSAM(rho=0.3)
    done = one_round(method, method.broadcast(method.init_server(vec(0.0))), ())
    assert [w for (w,) in done.path] == pytest.approx([0.65, 0.975])
    assert [w for (w,) in done.points] == pytest.approx([0.0, -0.3, 0.65, 0.35])


def test_the_perturbation_has_one_length_over_all_weights(one_round: Any, vec: Any) -> None:
    """g = (-3, -4), |g| = 5: e = rho (-0.6, -0.8)."""
    method = FedSAM(rho=0.5)
    done = one_round(method, method.broadcast(method.init_server(vec(0.0, 0.0))), (), a=(1.0, 1.0), b=(3.0, 4.0), steps=1)
    assert done.points[1] == pytest.approx([-0.3, -0.4])
