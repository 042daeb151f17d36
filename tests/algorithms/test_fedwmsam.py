"""FedWMSAM: two steps by hand, the choices where text and code differ, and the server's adaptive alpha."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms import scaffold
from fedaccord.algorithms.fedwmsam import FedWMSAM, Server, Upload
from fedaccord.core.algorithm import Cohort, Work
from fedaccord.core.optimizer import Sgd


def run(one_round: Any, vec: Any, **choices: Any) -> tuple[FedWMSAM, Server, Any]:
    """rho = 0.2, alpha = 0.25, Delta = 0.6, c = 0.2, c_i = -0.3, g = w - 1, lr 1/2, w = 0."""
    method = FedWMSAM(rho=0.2, rate=0.5, **choices)
    server = Server(vec(0.0), vec(0.2), vec(0.6), vec(0.25)[0])
    return method, server, one_round(method, method.broadcast(server), scaffold.Kept(vec(-0.3)))


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """Delta_i = 0.6 + (1/3) 0.5 = 23/30.

    b = 0: w_t - w + 0 = 0, so e = 0: v = 0.25 * -1 + 0.75 * 23/30 = 0.325: w = -0.1625.
    b = 1: 0.1625 + 23/30 > 0, so e = 0.2: g(0.0375) = -0.9625, v = -0.240625 + 0.575 = 0.334375: w = -0.3296875.
    c_i+ = -0.3 - 0.2 + 0.3296875/1 = -0.1703125. The client's mean gradient 0.3296875 agrees with Delta: cosine 1.
    One of four: c = 0.2 + 0.1296875/4, Delta = 0.3296875/1, alpha = 0.25 + 0.5 (0.9 - 0.25) = 0.575.
    """
    method, server, done = run(one_round, vec)
    assert [w for (w,) in done.path] == pytest.approx([-0.1625, -0.3296875])
    assert [w for (w,) in done.points] == pytest.approx([0.0, 0.0375]), "one gradient a step"
    assert float(done.kept.control) == pytest.approx(-0.1703125) and float(done.upload.control_delta) == pytest.approx(0.1296875)
    assert (float(done.upload.displacement), float(done.upload.agreement)) == pytest.approx((1.0, 1.0))
    after = method.update(server, alone(done.upload))
    assert (float(after.w), float(after.control)) == pytest.approx((-0.3296875, 0.232421875))
    assert (float(after.momentum), float(after.alpha)) == pytest.approx((0.3296875, 0.575))


def test_downhill_is_the_codes_sign(one_round: Any, vec: Any) -> None:
    """b = 1: e = -0.2, g(-0.3625) = -1.3625, v = -0.340625 + 0.575 = 0.234375."""
    _, _, done = run(one_round, vec, perturbation="downhill")
    assert done.points[1] == pytest.approx([-0.3625]) and done.path[1] == pytest.approx([-0.1625 - 0.234375 / 2])


def test_the_perturbation_points_from_w_to_where_momentum_forecasts_and_has_length_rho(one_round: Any, vec: Any) -> None:
    """alpha = 1/2, c = c_i, Delta = (0.6, 0.8). Flat loss, so each step moves by -lr (1/2) Delta = -(0.15, 0.2).

    b = 2: (w_t + 2 Delta) - w = (1.2 + 0.3, 1.6 + 0.4) = 2.5 (0.6, 0.8): e = 0.5 (0.6, 0.8) from w = (-0.3, -0.4).
    """
    method = FedWMSAM(rho=0.5)
    zero = vec(0.0, 0.0)
    server = Server(zero, zero, vec(0.6, 0.8), vec(0.5)[0])
    done = one_round(method, server, scaffold.Kept(zero), a=(0.0, 0.0), b=(0.0, 0.0), steps=3)
    assert done.points[1] == pytest.approx([-0.15 + 0.3, -0.2 + 0.4]) and done.points[2] == pytest.approx([0.0, 0.0])


def test_the_forecast_is_the_clients_own_corrected_momentum_from_where_the_round_began(one_round: Any, vec: Any) -> None:
    """alpha = 1/4, Delta = (0.6, 0), c - c_i = (0, 1.2): Delta_i = (0.6, 0.4). g = w - (1, 6), w_t = (1, 2), lr 1/2.

    b = 0: v = 0.25 (0, -4 + 1.2) + 0.75 (0.6, 0) = (0.45, -0.7): w = (0.775, 2.35).
    b = 1: (w_t - w) + Delta_i = (0.225, -0.35) + (0.6, 0.4) = (0.825, 0.05).
    """
    server = Server(vec(1.0, 2.0), vec(0.0, 1.2), vec(0.6, 0.0), vec(0.25)[0])
    done = one_round(FedWMSAM(rho=0.5), server, scaffold.Kept(vec(0.0, 0.0)), a=(1.0, 1.0), b=(1.0, 6.0))
    length = (0.825**2 + 0.05**2) ** 0.5
    assert done.path[0] == pytest.approx([0.775, 2.35])
    assert done.points[1] == pytest.approx([0.775 + 0.5 * 0.825 / length, 2.35 + 0.5 * 0.05 / length])


def test_a_forecast_of_almost_nothing_gives_a_short_perturbation_in_its_direction(one_round: Any, vec: Any) -> None:
    server = Server(vec(0.0), vec(0.0), vec(1e-13), vec(0.5)[0])
    done = one_round(FedWMSAM(rho=0.5), server, scaffold.Kept(vec(0.0)), a=(0.0,), b=(0.0,))
    assert 0 < done.points[1][0] < 0.5


def test_under_local_momentum_the_scale_is_the_displacement_of_unit_gradients(vec: Any) -> None:
    work = Work(5, 0.1, Sgd(0.9).effective_steps(5))
    upload, _ = FedWMSAM().upload(vec(1.0), FedWMSAM().init_server(vec(0.0)), scaffold.Local(vec(0.0), vec(0.0)), work)
    assert float(upload.displacement) == pytest.approx(0.1 * 13.1441)


def test_the_forecast_counts_the_steps(one_round: Any, vec: Any) -> None:
    """A steep loss carries w far off: (w_t + b Delta) - w changes sign only through b.

    g = 10 (w + 1), alpha = 1/2, Delta = -1, lr 0.1. b = 0: v = 5 - 0.5 = 4.5, w = -0.45. b = 1: 0 - 1 + 0.45 < 0, e = -0.1:
    g(-0.55) = 4.5, v = 2.25 - 0.5 = 1.75, w = -0.625. b = 2: -2 + 0.625 < 0, e = -0.1.
    """
    server = Server(vec(0.0), vec(0.0), vec(-1.0), vec(0.5)[0])
    done = one_round(FedWMSAM(rho=0.1), server, scaffold.Kept(vec(0.0)), a=(10.0,), b=(-1.0,), lr=0.1, steps=3)
    assert [w for (w,) in done.points] == pytest.approx([0.0, -0.55, -0.725])


@pytest.mark.parametrize(
    ("choice", "agreement", "target"),
    [
        ("cosine", 0.5, 0.5),
        ("cosine", -0.4, 0.1),
        ("cosine", 1.0, 0.9),
        ("dissent", 0.5, 0.5),
        ("dissent", 0.2, 0.8),
        ("dissent", 0.0, 0.9),
    ],
)
def test_alpha_moves_by_rate_towards_the_clipped_mean(vec: Any, choice: Any, agreement: float, target: float) -> None:
    """The plain mean over the clients; the weighted one holds 9 here."""
    one = vec(1.0)[0]
    weighted, uniform = Upload(vec(0.0), vec(0.0), one, 9 * one), Upload(vec(0.0), vec(0.0), one, agreement * one)
    server = Server(vec(0.0), vec(0.0), vec(0.0), vec(0.3)[0])
    after = FedWMSAM(rate=0.25, agreement=choice).update(server, Cohort(weighted, uniform, 2, 4))
    assert float(after.alpha) == pytest.approx(0.75 * 0.3 + 0.25 * target)


def test_models_and_momentum_move_by_the_weighted_sum_and_controls_by_the_uniform_one(vec: Any) -> None:
    """displacement 4: Delta = -2/4."""
    one = vec(1.0)[0]
    weighted, uniform = Upload(vec(2.0), vec(100.0), 4 * one, one), Upload(vec(100.0), vec(8.0), 50 * one, one)
    after = FedWMSAM().update(Server(vec(0.0), vec(0.0), vec(9.0), vec(0.1)[0]), Cohort(weighted, uniform, 2, 4))
    assert (after.w.tolist(), after.control.tolist(), after.momentum.tolist()) == ([2.0], [4.0], [-0.5])


def test_the_first_round_has_no_momentum_to_agree_with(one_round: Any, vec: Any) -> None:
    method = FedWMSAM(alpha=0.2)
    server = method.init_server(vec(0.0))
    done = one_round(method, method.broadcast(server), method.init_client(vec(0.0)), steps=1)
    assert not torch.cat([FedWMSAM().init_server(vec(3.0))[i] for i in (1, 2)]).any() and done.upload.displacement.dtype == torch.float64
    assert float(server.alpha) == pytest.approx(0.2) and float(done.upload.agreement) == 0 and done.path[0] == pytest.approx([0.1])
    assert torch.isfinite(done.upload.delta).all()
