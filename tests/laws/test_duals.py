"""What the law of the ledger sees: the wrong sum, and a refused client that commits anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import scaffold
from fedaccord.checks.trial import SIZES, Trace, poisoned, run_traced
from fedaccord.core.algorithm import Cohort


def gap(trace: Trace, mean: Any) -> float:
    """|server's control variate - mean| / |mean|, after the last round."""
    return float((trace.results[-1].state.server.control - mean).norm() / mean.norm())


@dataclass(frozen=True)
class WeightedControls(scaffold.Scaffold):
    """SCAFFOLD as it is often written: the control variates move by the weighted mean."""

    def update(self, server: Any, cohort: Cohort) -> Any:
        return super().update(server, cohort._replace(uniform=cohort.weighted))


def test_with_the_weighted_mean_the_control_variate_loses_its_meaning() -> None:
    trace = run_traced(WeightedControls())
    kept = torch.stack([trace.kept(4, client).control for client in range(len(SIZES))])
    assert gap(trace, kept.mean(0)) > 0.1
    (law,) = [
        law for law in fa.laws(WeightedControls(), ledger=lambda server, kept: (server.control, kept.control)) if law.name == "ledger"
    ]
    with pytest.raises(fa.LawError, match=r"cohort\.uniform"):
        law()


def test_where_a_refused_client_commits_anyway_the_control_variate_loses_its_meaning() -> None:
    """The control of the control: count the refused client's new state, and the gap opens."""
    trace = run_traced(fa.Scaffold(), rounds=2, change=poisoned(2, 2))
    upload = trace.uploads[1][2]
    assert torch.isfinite(upload.control_delta).all()
    kept = torch.stack([trace.kept(2, client).control for client in range(len(SIZES))])
    assert gap(trace, kept.mean(0)) < 1e-5
    kept[2] += upload.control_delta
    assert gap(trace, kept.mean(0)) > 0.01
