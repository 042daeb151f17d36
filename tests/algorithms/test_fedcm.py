"""FedCM: two steps by hand, and the scale of the momentum."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms.fedcm import FedCM, Server, Upload
from fedaccord.core.algorithm import Cohort, Work
from fedaccord.core.optimizer import Sgd


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """alpha = 1/4, momentum 0.4, g = w - 1, lr 1/2. -0.25 + 0.3 = 0.05: w = -0.025. 0.25 * -1.025 + 0.3 = 0.04375: w = -0.046875.

    displacement 2 * 1/2, momentum 0.046875.
    """
    method = FedCM(alpha=0.25)
    server = Server(vec(0.0), vec(0.4))
    done = one_round(method, method.broadcast(server), ())
    assert [w for (w,) in done.path] == pytest.approx([-0.025, -0.046875]) and float(done.upload.displacement) == 1
    after = method.update(server, alone(done.upload))
    assert (float(after.w), float(after.momentum)) == pytest.approx((-0.046875, 0.046875))


def test_under_local_momentum_the_scale_is_the_displacement_of_unit_gradients(vec: Any) -> None:
    a = Sgd(0.9).effective_steps(5)
    upload, _ = FedCM().upload(vec(1.0), Server(vec(0.0), vec(0.0)), (), Work(5, 0.1, a))
    assert float(upload.displacement) == pytest.approx(0.1 * 13.1441)


def test_model_and_momentum_move_by_the_weighted_sums(vec: Any) -> None:
    weighted, uniform = Upload(vec(2.0), vec(4.0)[0]), Upload(vec(8.0), vec(9.0)[0])
    after = FedCM().update(Server(vec(1.0), vec(0.0)), Cohort(weighted, uniform, 2, 4))
    assert after.w.tolist() == [3.0] and after.momentum.tolist() == [-0.5]


def test_before_the_first_round_there_is_no_momentum_and_a_change_is_measured_from_the_model_sent(one_round: Any, vec: Any) -> None:
    """w = 3, alpha = 1/4, g = w - 1, lr 1/2: v = 0.5, w = 2.75."""
    method = FedCM(alpha=0.25)
    server = method.init_server(vec(3.0))
    done = one_round(method, method.broadcast(server), (), steps=1)
    assert done.path == [[2.75]] and float(done.upload.delta) == -0.25 and float(server.momentum) == 0
    assert isinstance(done.upload.displacement, torch.Tensor) and done.upload.displacement.dtype == torch.float64
