"""Different methods that must agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.checks.trial import run_traced


def test_feddyns_clients_in_the_first_round_are_fedproxs() -> None:
    dyn, prox = run_traced(fa.FedDyn(alpha=0.3), rounds=1), run_traced(fa.FedProx(mu=0.3), rounds=1)
    assert dyn.uploads[0].keys() == prox.uploads[0].keys() and len(dyn.uploads[0]) == 4
    for client, upload in dyn.uploads[0].items():
        other = prox.uploads[0][client]
        assert float((upload.delta - other.delta).norm()) <= 1e-6 * float(other.delta.norm())
    avg = run_traced(fa.FedAvg(), rounds=1)
    assert float((dyn.uploads[0][0].delta - avg.uploads[0][0].delta).norm()) > 1e-3, "alive: the pull is felt"


@pytest.mark.parametrize("optimizer", [fa.Sgd(), fa.Sgd(0.9)])
def test_fedsmoo_without_a_perturbation_is_feddyn_in_every_round(optimizer: fa.Sgd) -> None:
    plan = fa.LocalPlan(lr=0.1, epochs=2, batch_size=4, optimizer=optimizer)
    start = run_traced(fa.FedAvg(), rounds=1).prepared.start.server.w
    smoo, dyn = (
        run_traced(method, rounds=8, cohorts=None, local=plan) for method in (fa.FedSMOO(rho=0.0, beta=8.0), fa.FedDyn(alpha=0.125))
    )
    for a, b in zip(smoo.results, dyn.results, strict=True):
        distance = float((b.state.server.w - start).norm())
        assert float((a.state.server.w - b.state.server.w).norm()) <= 1e-6 * distance, f"round {a.report.round}"
    moved = run_traced(fa.FedSMOO(rho=0.05, beta=8.0), rounds=8, cohorts=None, local=plan)
    assert float((moved.w - dyn.w).norm()) > 1e-3, "alive: a perturbation is felt"


def test_the_two_methods_duals_agree_too() -> None:
    smoo, dyn = run_traced(fa.FedSMOO(rho=0.0, beta=8.0)), run_traced(fa.FedDyn(alpha=0.125))
    assert len(dyn.states[-1]) == 7
    for client in dyn.states[-1]:
        assert torch.allclose(-8.0 * smoo.kept(4, client).dual, dyn.kept(4, client).drift, rtol=1e-4, atol=1e-6)


SAME_BITS = {  # a method whose one parameter is neutral, and the method that it goes around
    "fedgamma": (fa.FedGamma(rho=0.0), fa.Scaffold()),
    "fedlesam_s": (fa.FedLESAM_S(rho=0.0), fa.Scaffold()),
    "fedspeed": (fa.FedSpeed(rho=0.0, alpha=0.25), fa.FedDyn(alpha=0.25)),
    "fedspeed without a look ahead": (fa.FedSpeed(mix=0.0, alpha=0.25), fa.FedDyn(alpha=0.25)),
    "fedlesam_d": (fa.FedLESAM_D(rho=0.0, alpha=0.25), fa.FedDyn(alpha=0.25)),
    "fedgloss": (fa.FedGloSS(rho=0.0, rho_local=0.0, beta=4.0), fa.FedDyn(alpha=0.25)),
    "mofedsam": (fa.MoFedSAM(rho=0.0, alpha=0.5), fa.FedCM(alpha=0.5)),
    "mofedsam without momentum": (fa.MoFedSAM(rho=0.05, alpha=1.0), fa.FedSAM(rho=0.05)),
}


@pytest.mark.parametrize("name", SAME_BITS)
def test_a_method_around_another_one_is_that_one_where_it_adds_nothing(name: str) -> None:
    one, other = (run_traced(method) for method in SAME_BITS[name])
    for a, b in zip(one.results, other.results, strict=True):
        assert torch.equal(a.state.server.w, b.state.server.w), f"round {a.report.round}"
    assert not torch.equal(other.w, run_traced(fa.FedAvg()).w), "alive"


def close(one: Any, other: Any, start: torch.Tensor) -> bool:
    return all(
        float((a.state.server.w - b.state.server.w).norm()) <= 1e-5 * float((b.state.server.w - start).norm())
        for a, b in zip(one.results, other.results, strict=True)
    )


def test_fedavgm_is_fedavg_under_a_server_optimiser_with_momentum() -> None:
    one = run_traced(fa.FedAvgM(beta=0.9, lr=0.5))
    other = run_traced(fa.FedAvg(), server_optimizer=fa.ServerSgd(lr=0.5, momentum=0.9))
    assert close(one, other, one.prepared.start.server.w) and not torch.equal(one.w, run_traced(fa.FedAvg()).w)


def test_fedgloss_that_perturbs_on_the_clients_alone_is_fedspeed() -> None:
    one, other = run_traced(fa.FedGloSS(rho=0.0, rho_local=0.05, beta=4.0)), run_traced(fa.FedSpeed(rho=0.05, alpha=0.25))
    assert close(one, other, one.prepared.start.server.w)
    assert not close(run_traced(fa.FedGloSS(rho=0.05, rho_local=0.05, beta=4.0)), other, one.prepared.start.server.w), "alive"


def test_fednova_is_fedavg_where_all_take_equally_many_steps_and_is_not_elsewhere() -> None:
    even = fa.Explicit([list(range(10 * i, 10 * (i + 1))) for i in range(7)])
    one, other = (run_traced(method, partition=even) for method in (fa.FedNova(), fa.FedAvg()))
    assert close(one, other, one.prepared.start.server.w)
    uneven = [run_traced(method) for method in (fa.FedNova(), fa.FedAvg())]
    assert float((uneven[0].w - uneven[1].w).norm()) > 1e-2 * float((uneven[1].w - uneven[1].prepared.start.server.w).norm())


def test_fedwmsam_of_one_client_without_a_perturbation_is_fedcm() -> None:
    """c_i = c where there is one client, so its corrections are zero; rate 0 keeps alpha."""
    options: dict[str, Any] = {"partition": fa.Explicit([list(range(83))]), "cohorts": [[0]] * 4}
    one, other = (run_traced(method, **options) for method in (fa.FedWMSAM(rho=0.0, rate=0.0, alpha=0.3), fa.FedCM(alpha=0.3)))
    assert close(one, other, one.prepared.start.server.w)
    assert not close(run_traced(fa.FedWMSAM(rho=0.05, rate=0.0, alpha=0.3), **options), other, one.prepared.start.server.w), "alive"


def test_without_its_divergence_fedgmts_clients_train_as_fedavgs_in_the_first_round() -> None:
    """Duals start at zero; the divergence is felt from the second round on, when w has left the average behind."""
    one, other = run_traced(fa.FedGMT(gamma=0.0), rounds=2), run_traced(fa.FedAvg(), rounds=1)
    assert all(torch.equal(one.uploads[0][client].delta, upload.delta) for client, upload in other.uploads[0].items())
    assert not torch.equal(run_traced(fa.FedGMT(gamma=5.0), rounds=2).w, one.w), "alive"
