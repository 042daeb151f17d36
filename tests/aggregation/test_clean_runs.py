"""Two hundred runs in which nobody is bad: how often the breaker opens behind the policy that ships."""

from __future__ import annotations

import pytest

import fedaccord as fa


def opened(runs: int) -> int:
    """Of so many short runs, each with its own partition, skew and cohort, those in which the breaker ever opened."""
    found = 0
    for seed in range(runs):
        run = fa.run(
            fa.digits("softmax"),
            fa.FedAvg(),
            policy=fa.Residual(),
            partition=fa.DirichletPerClass(alpha=(0.1, 0.3, 1.0, 10.0)[seed % 4], clients=12),
            cohort=(3, 6, 12)[seed % 3],
            rounds=12,
            seed=1000 + seed,
            local=fa.LocalPlan(lr=0.1, epochs=1 + seed % 2, batch_size=20),
            runtime="sequential",
            evaluate_every=12,
            keep_weights=False,
        )
        events = [event["event"] for line in run.rounds.trust for event in line.get("events", ())]
        found += "breaker_opened" in events
    return found


@pytest.mark.slow
def test_at_most_a_twentieth_of_two_hundred_clean_runs_open_the_breaker() -> None:
    assert opened(200) <= 10


def test_twelve_clean_runs_hardly_ever_do() -> None:
    assert opened(12) <= 1
