"""Different methods that must agree."""

from __future__ import annotations

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
