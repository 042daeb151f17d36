"""FedSpeed: two steps by hand, and what each of its choices does."""

from __future__ import annotations

from typing import Any

import pytest

from fedaccord.algorithms.feddyn import Kept, Server
from fedaccord.algorithms.fedspeed import FedSpeed, unit_ascent
from fedaccord.core.algorithm import Cohort, Upload


def run(one_round: Any, vec: Any, **choices: Any) -> tuple[FedSpeed, Server, Any]:
    """rho = 1/2, alpha = 1, drift_i = 0.25, mean drift 0.1, g = 2 (w - 1), lr 1/2, w = 0."""
    method = FedSpeed(rho=0.5, alpha=1.0, **choices)
    server = Server(vec(0.0), vec(0.1))
    return method, server, one_round(method, method.broadcast(server), Kept(vec(0.25)), a=(2.0,))


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """Step 1: g = -2, e = -0.5, g(-0.5) = -3, + 0.25: w = 0 + 2.75/2 = 1.375.

    Step 2: g = 0.75, e = 0.5, g(1.875) = 1.75, + (1.375 + 0.25): w = 1.375 - 3.375/2 = -0.3125. drift_i = 0.25 - 0.3125 = -0.0625.
    One of four: mean drift 0.1 - 0.078125 = 0.021875, w = -0.3125 + 0.021875.
    """
    method, server, done = run(one_round, vec)
    assert [w for (w,) in done.path] == pytest.approx([1.375, -0.3125])
    assert [w for (w,) in done.points] == pytest.approx([0.0, -0.5, 1.375, 1.875])
    assert float(done.kept.drift) == pytest.approx(-0.0625) and float(done.upload.delta) == pytest.approx(-0.3125)
    after = method.update(server, alone(done.upload))
    assert (float(after.drift), float(after.w)) == pytest.approx((0.021875, -0.290625))


def test_a_raw_ascent_is_as_long_as_rho_times_the_gradient(one_round: Any, vec: Any) -> None:
    """Step 1: e = 0.5 * -2 = -1, g(-1) = -4, + 0.25: w = 1.875. Step 2: g = 1.75, e = 0.875."""
    _, _, done = run(one_round, vec, ascent="raw")
    assert [w for (w,) in done.points] == pytest.approx([0.0, -1.0, 1.875, 2.75]) and done.path[0] == pytest.approx([1.875])


def test_mix_weighs_the_gradient_ahead_against_the_plain_one(one_round: Any, vec: Any) -> None:
    """Step 1: 3/4 * -2 + 1/4 * -3 = -2.25, + 0.25: w = 1. With mix 0 the plain -2 alone."""
    assert run(one_round, vec, mix=0.25)[2].path[0] == pytest.approx([1.0])
    assert run(one_round, vec, mix=0.0)[2].path[0] == pytest.approx([0.875])


def test_over_the_active_clients_the_uploads_carry_the_drifts(one_round: Any, alone: Any, vec: Any) -> None:
    """Upload -0.3125 + drift_i = -0.375, and that is all the server adds."""
    method, server, done = run(one_round, vec, server_mean="active")
    assert float(done.upload.delta) == pytest.approx(-0.375) and float(done.kept.drift) == pytest.approx(-0.0625)
    after = method.update(server, alone(done.upload))
    assert (float(after.w), float(after.drift)) == pytest.approx((-0.375, 0.1))


def test_over_the_active_clients_the_model_moves_by_the_weighted_sum(vec: Any) -> None:
    after = FedSpeed(server_mean="active").update(Server(vec(5.0), vec(0.1)), Cohort(Upload(vec(1.0)), Upload(vec(8.0)), 2, 4))
    assert float(after.w) == 6.0 and float(after.drift) == pytest.approx(0.1)


def test_no_gradient_gives_no_ascent_and_almost_none_a_short_one_in_its_direction(vec: Any) -> None:
    assert unit_ascent(vec(3.0, -4.0), 0.5).tolist() == pytest.approx([0.3, -0.4])
    assert unit_ascent(vec(0.0, 0.0), 0.5).tolist() == [0.0, 0.0]
    assert 0 < float(unit_ascent(vec(1e-13), 0.5)) < 0.5
