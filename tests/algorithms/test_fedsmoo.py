"""FedSMOO: two steps by hand in the order of the paper's algorithm 1, and the server's step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms.fedsmoo import FedSMOO, Kept, Server, Upload
from fedaccord.core.algorithm import Cohort


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """rho = 0.5, beta = 1, s = 0.2, mu_i = 0.1, lambda_i = 0.3, g = w - 1, lr 1/2, w_t = 0. In one dimension s_hat = +-rho.

    Step 1: d = g - mu - s = -1.3, s_hat = -0.5, mu = 0.1 + (-0.5 - 0.2) = -0.6, g(0 - 0.5) = -1.5, w = 0 - (-1.5 - 0.3 + 0)/2 = 0.9.
    Step 2: d = -0.1 + 0.6 - 0.2 = 0.3, s_hat = 0.5, mu = -0.6 + 0.3 = -0.3, g(0.9 + 0.5) = 0.4, w = 0.9 - (0.4 - 0.3 + 0.9)/2 = 0.4.
    lambda_i = 0.3 - 0.4 = -0.1. One of four, mean dual 0.3: it becomes 0.3 - 0.4/4 = 0.2, w = 0 + 0.4 - 0.2, s = 0.5 * -1.
    """
    method = FedSMOO(rho=0.5, beta=1.0)
    server = Server(vec(0.0), vec(0.2), vec(0.3))
    done = one_round(method, method.broadcast(server), Kept(vec(0.1), vec(0.3)))
    assert [w for (w,) in done.path] == pytest.approx([0.9, 0.4])
    assert [w for (w,) in done.points] == pytest.approx([0.0, -0.5, 0.9, 1.4])
    assert float(done.upload.mu) == pytest.approx(-0.3) and float(done.kept.mu) == pytest.approx(-0.3)
    assert float(done.kept.dual) == pytest.approx(-0.1)
    after = method.update(server, alone(done.upload))
    assert (float(after.dual), float(after.w), float(after.s)) == pytest.approx((0.2, 0.2, -0.5))


def test_the_exact_s_step_takes_the_last_perturbation_off_the_dual(one_round: Any, alone: Any, vec: Any) -> None:
    """The steps above: mu_i = -0.3, the last s_hat = 0.5: -0.8 is sent, -0.3 kept, and nothing else changes."""
    method = FedSMOO(rho=0.5, beta=1.0, s_step="minus_last")
    server = Server(vec(0.0), vec(0.2), vec(0.3))
    done = one_round(method, method.broadcast(server), Kept(vec(0.1), vec(0.3)))
    assert float(done.upload.mu) == pytest.approx(-0.8) and float(done.kept.mu) == pytest.approx(-0.3)
    assert [w for (w,) in done.path] == pytest.approx([0.9, 0.4])


def test_the_perturbation_has_one_length_over_all_weights(one_round: Any, vec: Any) -> None:
    """g = (-4, -4), mu = (-1, 0): d = (-3, -4), |d| = 5, s_hat = rho (-0.6, -0.8)."""
    method = FedSMOO(rho=0.5, beta=1e9)
    zero = torch.zeros(2, dtype=torch.float64)
    done = one_round(method, method.broadcast(method.init_server(zero)), Kept(vec(-1.0, 0.0), zero), a=(1.0, 1.0), b=(4.0, 4.0), steps=1)
    assert done.points[1] == pytest.approx([-0.3, -0.4])
    assert done.upload.mu.tolist() == pytest.approx([-1.3, -0.4])


def test_a_client_state_of_zeros_and_a_zero_gradient_give_finite_numbers(one_round: Any, vec: Any) -> None:
    method = FedSMOO()
    server = method.init_server(vec(0.0))
    done = one_round(method, method.broadcast(server), method.init_client(server.w), a=(0.0,))
    after = method.update(server, Cohort(done.upload, done.upload, 1, 1))
    assert done.path == [[0.0], [0.0]] and after.s.tolist() == [0.0]


def test_models_move_by_the_weighted_sum_and_duals_by_the_uniform_one(vec: Any) -> None:
    """beta = 2, two of four clients: dual = 0 - (2/4) * 8 / 2 = -2; w = 1 - 2 * -2 = 5; s along the uniform mean of mu."""
    weighted, uniform = Upload(vec(1.0, 0.0), vec(9.0, 9.0)), Upload(vec(8.0, 0.0), vec(0.0, -3.0))
    after = FedSMOO(rho=0.5, beta=2.0).update(Server(vec(0.0, 0.0), vec(0.0, 0.0), vec(0.0, 0.0)), Cohort(weighted, uniform, 2, 4))
    assert after.dual.tolist() == [-2.0, 0.0] and after.w.tolist() == [5.0, 0.0] and after.s.tolist() == pytest.approx([0.0, -0.5])
