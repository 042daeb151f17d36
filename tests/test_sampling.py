"""sampling.py: clients that are stable are asked more often, nobody is starved, and a resume remembers what the sampler saw."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.core.reports import ClientReport
from fedaccord.sampling import NOTHING, most_seen, remembered, seen


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


UNSTABLE = {"gamma": 0.0, "tau": 1.0}


def test_the_chances_of_whole_cohorts_are_those_of_drawing_one_client_after_another() -> None:
    """Five clients, two of them unstable; three are drawn, each in proportion to the chances of those that are left."""
    chances = [1.0, 0.3, 1.0, 1.0, 0.3]
    expected: Counter[tuple[int, ...]] = Counter()
    for order in itertools.permutations(range(5), 3):
        probability, left = 1.0, sum(chances)
        for client in order:
            probability, left = probability * chances[client] / left, left - chances[client]
        expected[tuple(sorted(order))] += probability  # type: ignore[assignment]
    sampler, history = fa.StabilityAware(3, floor=0.3), {1: UNSTABLE, 4: UNSTABLE, 2: {"gamma": 1.0, "tau": 0.0}}
    found = Counter(sampler.draw(t, 5, 0, history) for t in range(1, 20_001))
    for cohort, probability in expected.items():
        assert found[cohort] / 20_000 == pytest.approx(probability, abs=4 * np.sqrt(probability / 20_000))


@pytest.mark.parametrize("unstable", [range(0), range(4), range(2, 6), range(6)])
def test_whoever_is_unstable_all_clients_can_be_asked_at_once(unstable: range) -> None:
    assert fa.StabilityAware(6).draw(1, 6, 0, dict.fromkeys(unstable, UNSTABLE)) == tuple(range(6))


@pytest.mark.parametrize("sampler", [fa.Uniform(100), fa.Coin(1e-4), fa.StabilityAware(100)])
def test_a_cohort_of_a_hundred_in_a_million_takes_memory_for_the_cohort(sampler: Any) -> None:
    history = dict.fromkeys(range(0, 1_000_000, 10_000), UNSTABLE)
    sampler.draw(1, 1_000_000, 0, history)
    tracemalloc.start()
    try:
        assert 50 <= len(sampler.draw(2, 1_000_000, 0, history)) <= 150
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("sampler", "most"),
    [
        (fa.Uniform(3), 30),
        (fa.StabilityAware(2), 20),
        (fa.Uniform(50), 100),
        (fa.Coin(0.01), 10),
        (fa.Scripted.of([[1, 2], [2, 3]] * 5 + [[9]]), 3),
        (object(), 100),
    ],
)
def test_no_more_clients_are_seen_than_are_asked(sampler: Any, most: int) -> None:
    assert most_seen(sampler, 100, 10) == most
