"""sampling.py: clients that are stable are asked more often, nobody is starved, and a resume remembers what the sampler saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.core.reports import ClientReport
from fedaccord.sampling import NOTHING, remembered, seen


def counts(sampler: fa.StabilityAware, history: Any, population: int = 10, rounds: int = 3000) -> np.ndarray:
    total = np.zeros(population)
    for t in range(1, rounds + 1):
        total[list(sampler.draw(t, population, 0, history))] += 1
    return total / rounds


@pytest.mark.parametrize(
    ("signals", "is_stable"),
    [
        ({"gamma": 0.71, "tau": 0.14}, True),
        ({"gamma": 0.7, "tau": 0.0}, False),
        ({"gamma": 1.0, "tau": 0.15}, False),
        ({"gamma": -1.0, "tau": 3.0}, False),
    ],
)
def test_a_client_is_stable_with_low_tau_and_high_gamma_and_where_it_was_never_seen(signals: Any, is_stable: bool) -> None:
    """One of ten, drawn alone: 1/10 where stable; 0.2/9.2 where not."""
    share = counts(fa.StabilityAware(size=1), {4: signals})
    assert share[4] == pytest.approx(0.1 if is_stable else 0.2 / 9.2, abs=0.015)
    assert share[0] == pytest.approx(0.1 if is_stable else 1 / 9.2, abs=0.02)


def test_the_floor_keeps_everybody_in() -> None:
    unstable = {client: {"gamma": 0.0, "tau": 1.0} for client in range(9)}
    share = counts(fa.StabilityAware(size=2, floor=0.01), unstable)
    assert share[9] > 0.9 and (share[:9] > 0.05).all()
    assert counts(fa.StabilityAware(size=2), {c: {"gamma": 0.0, "tau": 1.0} for c in range(10)}) == pytest.approx(0.2, abs=0.04)


def test_cohorts_are_distinct_sorted_and_fixed_by_seed_and_round() -> None:
    draws = [fa.StabilityAware(4).draw(t, 9, 1, {2: {"gamma": 0.0, "tau": 0.0}}) for t in range(1, 60)]
    assert all(len(set(cohort)) == 4 and list(cohort) == sorted(cohort) for cohort in draws) and len(set(draws)) > 20
    assert draws[6] == fa.StabilityAware(4).draw(7, 9, 1, {2: {"gamma": 0.0, "tau": 0.0}})
    with pytest.raises(fa.ConfigError, match="E203"):
        fa.StabilityAware(10).draw(1, 9, 0)


def test_the_history_is_of_the_last_accepted_report_and_only_what_is_looked_at() -> None:
    sampler = fa.StabilityAware(2)
    history = seen(sampler, NOTHING, [ClientReport(1, 3, 9, signals={"gamma": 0.5, "tau": 0.1, "sigma": 9.0})])
    assert history == {3: {"gamma": 0.5, "tau": 0.1}}
    history = seen(
        sampler, history, [ClientReport(2, 3, 9, signals={"gamma": 0.9, "tau": 0.2}), ClientReport(2, 4, 9, signals={"gamma": None})]
    )
    assert history == {3: {"gamma": 0.9, "tau": 0.2}}
    assert seen(fa.Uniform(2), NOTHING, [ClientReport(1, 3, 9, signals={"gamma": 0.5, "tau": 0.1})]) is NOTHING
    lines = [ClientReport(t, 1, 9, accepted=t < 3, signals={"gamma": t / 10, "tau": 0.0}).record() for t in (1, 2, 3)]
    assert remembered(sampler, [*lines, {"kind": "evaluate", "round": 3, "client": 1}]) == {1: {"gamma": 0.2, "tau": 0.0}}


def test_a_method_that_does_not_report_what_the_sampler_looks_at_is_named() -> None:
    with pytest.raises(fa.ConfigError, match=r"E208.*gamma, tau.*FedAvg"):
        fa.run(fa.digits(), fa.FedAvg(), partition=fa.IID(clients=4), cohort=fa.StabilityAware(2), rounds=1)


def test_a_resumed_run_asks_the_same_clients_as_the_unbroken_one(tmp_path: Path) -> None:
    """tau needs six participations of a client; gamma alone makes clients unstable from the first round on."""
    options: dict[str, Any] = {
        "partition": fa.DirichletPerClass(alpha=0.1, clients=8),
        "cohort": fa.StabilityAware(3, min_gamma=0.9, floor=0.05),
        "local": fa.LocalPlan(epochs=2),
        "checkpoint_every": 2,
    }
    task, method = fa.digits(model="softmax"), fa.DynamicSAM()
    whole = fa.run(task, method, rounds=9, **options)
    uniform = fa.run(task, method, rounds=9, **options | {"cohort": fa.StabilityAware(3, min_gamma=-2.0)})
    assert whole.rounds["cohort"].tolist() != uniform.rounds["cohort"].tolist(), "history matters here"

    class KilledAfter:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fa.run(task, method, rounds=9, folder=tmp_path / "run", telemetry=[KilledAfter()], **options)
    resumed = fa.run(task, method, rounds=9, folder=tmp_path / "run", resume=True, **options)
    assert resumed.rounds["cohort"].tolist() == whole.rounds["cohort"].tolist() and torch.equal(resumed.weights(), whole.weights())
