"""FedGloSS: two steps by hand in the paper's symbols, the server's look uphill, and the warm-up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedaccord.algorithms.feddyn import Kept
from fedaccord.algorithms.fedgloss import FedGloSS, Server
from fedaccord.core.algorithm import Cohort, Upload


def test_two_steps_by_hand(one_round: Any, alone: Any, vec: Any) -> None:
    """rho = 0.2, rho_local = 0.3, beta = 2, sigma_k = -0.2 (drift 0.4), g = w - 1, lr 1/2, w = 0, last pseudo-gradient -0.5.

    Sent: w~ = 0 + 0.2 * -1 = -0.2. Each step: y <- y - (g(y + e) - sigma_k + (y - w~)/beta)/2.
    Step 1: g = -1.2, e = -0.3, g(-0.5) = -1.5, -1.5 + 0.2 + 0 = -1.3: y = 0.45.
    Step 2: g = -0.55, e = -0.3, g(0.15) = -0.85, -0.85 + 0.2 + 0.325 = -0.325: y = 0.6125.
    delta = 0.6125 + 0.2 = 0.8125, sigma_k = -0.2 - 0.8125/2. One of four, sigma = -0.05: sigma = -0.05 - 0.8125/(2*4) = -0.1515625,
    w = 0 + 0.8125 + 2 * 0.1515625 = 1.115625: from the model that was not perturbed. Pseudo-gradient w~ - w_K = -0.8125.
    """
    method = FedGloSS(rho=0.2, rho_local=0.3, beta=2.0)
    server = Server(vec(0.0), vec(0.1), vec(-0.5), vec(3.0)[0])
    sent = method.broadcast(server)
    assert float(sent.w) == pytest.approx(-0.2) and float(sent.warmth) == 1
    done = one_round(method, sent, Kept(vec(0.4)))
    assert [w for (w,) in done.path] == pytest.approx([0.45, 0.6125])
    assert [w for (w,) in done.points] == pytest.approx([-0.2, -0.5, 0.45, 0.15])
    assert float(done.upload.delta) == pytest.approx(0.8125) and -float(done.kept.drift) / 2 == pytest.approx(-0.60625)
    after = method.update(server, alone(done.upload))
    assert -float(after.drift) / 2 == pytest.approx(-0.1515625) and float(after.w) == pytest.approx(1.115625)
    assert float(after.pseudo_gradient) == pytest.approx(-0.8125) and float(after.rounds) == 4


def test_before_the_first_round_the_model_is_sent_as_it_is(vec: Any) -> None:
    method = FedGloSS(warmup_rounds=4)
    server = method.init_server(vec(3.0, 4.0))
    assert method.broadcast(server).w.tolist() == [3.0, 4.0] and not server.pseudo_gradient.any() and not server.drift.any()
    assert float(server.rounds) == 0 and float(method.broadcast(server).warmth) == 0
    assert float(FedGloSS().broadcast(server).warmth) == 1, "no warm-up"


def test_the_server_looks_rho_uphill_over_all_weights(vec: Any) -> None:
    server = Server(vec(1.0, 1.0), vec(0.0, 0.0), vec(3.0, -4.0), vec(1.0)[0])
    assert FedGloSS(rho=0.5).broadcast(server).w.tolist() == pytest.approx([1.3, 0.6])


def test_a_round_that_hardly_moved_gives_a_short_look_in_its_direction(vec: Any) -> None:
    server = Server(vec(0.0), vec(0.0), vec(1e-13), vec(1.0)[0])
    assert 0 < float(FedGloSS(rho=0.5).broadcast(server).w) < 0.5


@pytest.mark.parametrize(("rounds", "expected"), [(0, 0.1), (1, 0.125), (3, 0.175), (4, 0.2), (9, 0.2)])
def test_the_servers_radius_grows_linearly_to_its_own_value(vec: Any, rounds: int, expected: float) -> None:
    """From 0.1 to 0.2 in four rounds; the authors' code ends the warm-up at the clients' radius, 0.3."""
    method = FedGloSS(rho=0.2, rho_local=0.3, rho_initial=0.1, warmup_rounds=4)
    sent = method.broadcast(Server(vec(0.0), vec(0.0), vec(2.0), vec(float(rounds))[0]))
    assert float(sent.w) == pytest.approx(expected)


def test_the_clients_radius_warms_up_too(one_round: Any, vec: Any) -> None:
    """After one of four rounds: 0.75 * 0.1 + 0.25 * 0.3 = 0.15."""
    method = FedGloSS(rho=0.2, rho_local=0.3, rho_initial=0.1, warmup_rounds=4)
    sent = method.broadcast(Server(vec(0.0), vec(0.0), vec(0.0), vec(1.0)[0]))
    assert one_round(method, sent, method.init_client(vec(0.0)), steps=1).points[1] == pytest.approx([-0.15])


def test_the_dual_is_divided_by_all_clients_once_and_moves_by_the_plain_mean(vec: Any) -> None:
    """beta = 2, two of four: sigma = -(2/4) 8 / 2 = -2, w = 1 + 2 * 2; the pseudo-gradient is the weighted one."""
    server = Server(vec(0.0), vec(0.0), vec(0.0), torch.zeros(()))
    after = FedGloSS(beta=2.0).update(server, Cohort(Upload(vec(1.0)), Upload(vec(8.0)), 2, 4))
    assert (after.w.tolist(), after.drift.tolist(), after.pseudo_gradient.tolist()) == ([5.0], [4.0], [-1.0])


def test_the_pull_is_felt_by_the_reference_clip() -> None:
    assert FedGloSS(beta=4.0).proximal_weight == 0.25
