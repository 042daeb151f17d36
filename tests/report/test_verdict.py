"""The first sentence that a reader sees, and what it must not claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fedaccord.report.groups import study
from fedaccord.report.quantities import measure
from fedaccord.report.words import shown, verdicts

Run = Callable[..., Any]


def sentence(records: Sequence[Any], metric: str | None = None) -> tuple[str, str]:
    chosen = study(records, metric=metric)
    found = verdicts(chosen, measure(chosen))
    return found[0].state, " ".join(verdict.sentence for verdict in found)


def pairs(run: Run, base: Sequence[float], other: Sequence[float], **keys: Any) -> list[Any]:
    records = [run("fedavg", seed, [value], **keys) for seed, value in enumerate(base)]
    return records + [run("fedsmoo", seed, [value], **keys) for seed, value in enumerate(other)]


def test_a_gain_is_stated_in_points_with_its_interval(run: Run) -> None:
    # differences 3.0, 3.1, 3.2 points: mean 3.1, deviation 0.1, half width 4.302653 * 0.1 / sqrt(3) = 0.248
    state, text = sentence(pairs(run, [0.5, 0.6, 0.7], [0.53, 0.631, 0.732]))
    assert state == "better"
    assert text == "FedSMOO ends 3.1 points [2.9, 3.3] above FedAvg in accuracy over 3 seeds."


def test_an_interval_that_includes_zero_shows_no_gain(run: Run) -> None:
    state, text = sentence(pairs(run, [0.5, 0.6, 0.7], [0.6, 0.55, 0.71]))
    assert state == "unclear"
    assert text.startswith("No gain shown: FedSMOO ends +2.0 [")
    assert "includes 0" in text


def test_a_loss_against_fedavg_is_stated_as_plainly(run: Run) -> None:
    state, text = sentence(pairs(run, [0.5, 0.6, 0.7], [0.4, 0.501, 0.602]))
    assert state == "worse"
    assert text == "FedSMOO ends 9.9 points [9.7, 10.1] below FedAvg in accuracy over 3 seeds."


def test_one_seed_is_no_evidence(run: Run) -> None:
    state, text = sentence(pairs(run, [0.5], [0.9]))
    assert state == "unclear"
    assert "One seed only" in text and "no gain is shown" in text


def test_where_lower_is_better_a_smaller_loss_is_the_gain(run: Run) -> None:
    state, text = sentence(pairs(run, [0.5, 0.6], [0.6, 0.7001]), metric="loss")
    assert state == "better"
    assert "below FedAvg in loss, where lower is better" in text
    assert "points" not in text


def test_methods_that_agree_to_the_bit_are_said_to(run: Run) -> None:
    state, text = sentence(pairs(run, [0.5, 0.6], [0.5, 0.6]))
    assert state == "unclear"
    assert "exactly the same" in text


def test_without_fedavg_no_gain_is_claimed(run: Run) -> None:
    state, text = sentence([run("fedsmoo", seed, [0.7 + seed / 100]) for seed in range(3)])
    assert state == "alone"
    assert "No FedAvg" in text and "ends at accuracy 0.710 [0.685, 0.735] over 3 seeds" in text


def test_without_a_test_metric_there_is_no_verdict(run: Run) -> None:
    state, text = sentence([run("fedavg", 0, [None])])
    assert state == "alone"
    assert "evaluated every second round" in text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "metric", "–"),
        (0.80349, "metric", "0.803"),
        (-0.0001, "metric", "0.000"),
        (-1.5, "metric", "−1.500"),
        (18400.0, "count", "18,400"),
        (1.25e7, "count", "12.5 M"),
        (7.333, "count", "7.3"),
        (9.1e6, "bytes", "9.1 MB"),
        (512.0, "bytes", "512 B"),
        (0.25, "seconds", "0.25 s"),
        (161.0, "seconds", "2m 41s"),
        (7260.0, "seconds", "2h 1m"),
    ],
)
def test_figures_read_as_people_write_them(value: float | None, kind: str, text: str) -> None:
    assert shown(value, kind) == text
