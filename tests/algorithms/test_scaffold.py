"""SCAFFOLD: two steps by hand, the control variates under momentum, and the server's two sums."""

from __future__ import annotations

from typing import Any

import pytest

from fedaccord.algorithms.scaffold import Kept, Local, Scaffold, Server, Upload
from fedaccord.core.algorithm import Cohort, Work
from fedaccord.core.optimizer import Sgd


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """c = 0.2, c_i = -0.3, so the correction is 0.5; g = w - 1, lr 1/2, w_t = 0.

    -1 + 0.5 = -0.5: w = 0.25.  -0.75 + 0.5 = -0.25: w = 0.375.  c_i+ = c_i - c + (0 - 0.375)/(2 * 0.5) = -0.3 - 0.2 - 0.375 = -0.875,
    the mean of the two gradients (-1, -0.75). One client of four: c = 0.2 + (-0.575)/4 = 0.05625.
    """
    method = Scaffold()
    server = Server(vec(0.0), vec(0.2))
    done = one_round(method, method.broadcast(server), Kept(vec(-0.3)))
    assert [w for (w,) in done.path] == pytest.approx([0.25, 0.375])
    assert float(done.kept.control) == pytest.approx(-0.875) and float(done.upload.control_delta) == pytest.approx(-0.575)
    after = method.update(server, alone(done.upload))
    assert float(after.w) == pytest.approx(0.375) and float(after.control) == pytest.approx(0.05625)


def test_under_momentum_the_control_variate_is_still_the_mean_gradient(vec: Any) -> None:
    """A constant gradient g = 2, momentum 0.9, 5 steps: delta = -lr a g with a = 13.1441, and c_i+ must be 2, not 2 * 13.1441 / 5."""
    a = Sgd(0.9).effective_steps(5)
    sent, local = Server(vec(0.0), vec(0.0)), Local(vec(0.0), vec(0.0))
    _, kept = Scaffold().upload(vec(-0.1 * a * 2.0), sent, local, Work(5, 0.1, a))
    assert float(kept.control) == pytest.approx(2.0)


def test_models_move_by_the_weighted_sum_and_controls_by_the_uniform_one(vec: Any) -> None:
    weighted, uniform = Upload(vec(1.0), vec(100.0)), Upload(vec(100.0), vec(8.0))
    after = Scaffold().update(Server(vec(0.0), vec(0.0)), Cohort(weighted, uniform, 2, 4))
    assert after.w.tolist() == [1.0] and after.control.tolist() == [4.0]
