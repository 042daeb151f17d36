"""FedDyn: two steps by hand, and the gradient of its objective."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms.feddyn import FedDyn, Kept, Server, Upload
from fedaccord.core.algorithm import Cohort


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """alpha = 1, drift_i = 0.25, g = w - 1, lr 1/2, w_t = 0; direction g + alpha (w - w_t + drift_i).

    -1 + 0.25 = -0.75: w = 0.375.  -0.625 + 0.625 = 0: w = 0.375.  drift_i = 0.25 + 0.375 = 0.625.
    One client of four, mean drift 0.1: it becomes 0.1 + 0.375/4 = 0.19375, and w = 0 + 0.375 + 0.19375.
    """
    method = FedDyn(alpha=1.0)
    server = Server(vec(0.0), vec(0.1))
    done = one_round(method, method.broadcast(server), Kept(vec(0.25)))
    assert [w for (w,) in done.path] == pytest.approx([0.375, 0.375]) and float(done.kept.drift) == pytest.approx(0.625)
    after = method.update(server, alone(done.upload))
    assert float(after.drift) == pytest.approx(0.19375) and float(after.w) == pytest.approx(0.56875)


def test_a_step_follows_the_gradient_of_the_papers_objective(one_round: Any, vec: Any) -> None:
    """f(w) - <lambda_i, w> + alpha/2 |w - w_t|^2 with the dual lambda_i = -alpha drift_i."""
    alpha, start, drift = 0.7, vec(0.3, -1.0), vec(0.2, 0.5)
    done = one_round(FedDyn(alpha), Server(start, torch.zeros(2)), Kept(drift), a=(1.0, 3.0), b=(1.0, 2.0), lr=1.0, steps=2)
    w = torch.tensor(done.path[0], dtype=torch.float64, requires_grad=True)
    f = (vec(1.0, 3.0) * (w - vec(1.0, 2.0)).square()).sum() / 2
    (expected,) = torch.autograd.grad(f + alpha * drift @ w + alpha / 2 * (w - start).square().sum(), w)
    assert torch.allclose(w.detach() - torch.tensor(done.path[1], dtype=torch.float64), expected)


def test_models_move_by_the_weighted_sum_and_duals_by_the_uniform_one(vec: Any) -> None:
    after = FedDyn().update(Server(vec(0.0), vec(0.0)), Cohort(Upload(vec(1.0)), Upload(vec(8.0)), 2, 4))
    assert after.drift.tolist() == [4.0] and after.w.tolist() == [5.0]
