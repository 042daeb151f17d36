"""What the server keeps about its clients is the mean over ALL of them: absent, small and refused ones count as they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import scaffold
from fedaccord.core.algorithm import Algorithm, Cohort

POPULATION = 7
MEAN_OF_ALL = {  # method -> (field of the server, field of the client's state)
    fa.Scaffold(): ("control", "control"),
    fa.FedGamma(): ("control", "control"),
    fa.FedLESAM_S(): ("control", "inner.control"),
    fa.FedWMSAM(): ("control", "control"),
    fa.FedDyn(alpha=0.3): ("drift", "drift"),
    fa.FedSpeed(alpha=0.3): ("drift", "drift"),
    fa.FedLESAM_D(alpha=0.3): ("drift", "inner.drift"),
    fa.FedGMT(): ("drift", "drift"),
    fa.FedGloSS(): ("drift", "drift"),
    fa.FedSMOO(rho=0.05, beta=5.0): ("dual", "dual"),
}


def gap(traced: Any, round: int, ours: str, theirs: str) -> float:
    """|server's vector - mean over all clients of theirs| / |mean|; a client without state has zeros."""
    total = sum(kept[f"kept.{theirs}"] for kept in traced.kept[round].values()) / POPULATION
    return float((getattr(traced.results[round].state.server, ours) - total).norm() / total.norm())


@pytest.mark.parametrize("method", MEAN_OF_ALL, ids=lambda method: type(method).__name__)
def test_the_servers_vector_is_the_mean_over_all_clients(method: fa.Algorithm, trace: Any, poisoned: Any) -> None:
    """Four of seven take part, of 30 to 1 examples, and client 2's upload of round 2 is refused."""
    traced = trace(method, change=poisoned(2, 2))
    assert traced.results[1].report.accepted == (1, 4, 6)
    for round in range(4):
        assert gap(traced, round, *MEAN_OF_ALL[method]) < 1e-5, f"round {round + 1}"


@dataclass(frozen=True)
class WeightedControls(Algorithm):
    """SCAFFOLD as it is often written: the control variates move by the weighted mean."""

    def init_server(self, w: Any) -> Any:
        return scaffold.Scaffold().init_server(w)

    def init_client(self, w: Any) -> Any:
        return scaffold.Scaffold().init_client(w)

    def broadcast(self, server: Any) -> Any:
        return server

    def begin(self, start: Any, sent: Any, kept: Any) -> Any:
        return scaffold.Scaffold().begin(start, sent, kept)

    def direction(self, grad: Any, w: Any, sent: Any, local: Any) -> Any:
        return scaffold.Scaffold().direction(grad, w, sent, local)

    def upload(self, w: Any, sent: Any, local: Any, work: Any) -> Any:
        return scaffold.Scaffold().upload(w, sent, local, work)

    def update(self, server: Any, cohort: Cohort) -> Any:
        return scaffold.Scaffold().update(server, cohort._replace(uniform=cohort.weighted))


def test_with_the_weighted_mean_the_control_variate_loses_its_meaning(trace: Any) -> None:
    assert gap(trace(WeightedControls()), 3, "control", "control") > 0.1


def test_where_a_refused_client_commits_anyway_the_control_variate_loses_its_meaning(trace: Any, poisoned: Any) -> None:
    """The control of the control: count the refused client's new state, and the gap opens."""
    traced = trace(fa.Scaffold(), rounds=2, change=poisoned(2, 2))
    honest = traced.kept[1]
    upload = traced.uploads[1][2]
    honest[2] = {"kept.control": honest[2]["kept.control"] + upload.control_delta}
    assert gap(traced, 1, "control", "control") > 0.01
    assert torch.isfinite(upload.control_delta).all()
