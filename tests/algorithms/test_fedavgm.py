"""FedAvgM: two rounds by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedaccord.algorithms import FedAvgM
from fedaccord.core.algorithm import Cohort, Upload


def test_two_rounds_by_hand(one_round: Any, vec: Any) -> None:
    """beta = 0.5, server lr 2, w = 0; clients as FedAvg's: g = w - 1, lr 1/2.

    Round 1: delta = 0.75, v = 0.75, w = 1.5.
    Round 2 from 1.5: g = 0.5: 1.25, g = 0.25: 1.125, delta = -0.375, v = 0.375 - 0.375 = 0, w = 1.5.
    """
    method = FedAvgM(beta=0.5, lr=2.0)
    server, seen = method.init_server(vec(0.0)), []
    for _ in range(2):
        done = one_round(method, method.broadcast(server), ())
        server = method.update(server, Cohort(done.upload, done.upload, 1, 1))
        seen.append((float(done.upload.delta), float(server.velocity), float(server.w)))
    assert seen[0] == pytest.approx((0.75, 0.75, 1.5)) and seen[1] == pytest.approx((-0.375, 0.0, 1.5))


def test_momentum_carries_on_where_nobody_moves(vec: Any) -> None:
    """beta = 0.9, lr 1: v = 1, then 0.9, then 0.81."""
    method = FedAvgM()
    server = method.init_server(vec(0.0))
    for delta in (1.0, 0.0, 0.0):
        server = method.update(server, Cohort(Upload(vec(delta)), Upload(vec(99.0)), 2, 5))
    assert float(server.w) == pytest.approx(1 + 0.9 + 0.81) and float(server.velocity) == pytest.approx(0.81)
