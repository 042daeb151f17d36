"""reports.py: NaN does not leave it."""

from __future__ import annotations

import json

import pytest

from fedaccord.core.reports import ClientReport, Evaluation, alert_kind, finite


@pytest.mark.parametrize(("value", "expected"), [(1, 1.0), (None, None), (float("nan"), None), (float("inf"), None), (-float("inf"), None)])
def test_finite_is_a_float_or_none(value: float | None, expected: float | None) -> None:
    assert finite(value) == expected


def test_a_clients_line_is_plain_json_even_where_it_reported_nonsense() -> None:
    report = ClientReport(round=3, client=7, num_examples=float("nan"), loss=None, epoch_losses=(1.0, None), signals={"rho": None})
    line = report.record()
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    assert line["kind"] == "train" and line["num_examples"] is None and line["weight"] == 0.0 and line["accepted"] is False


def test_an_evaluations_line_carries_round_client_and_the_reason() -> None:
    line = Evaluation(0, None, "no held-out examples").record(4, 9)
    assert line == {"kind": "evaluate", "round": 4, "client": 9, "num_examples": 0, "metrics": None, "reason": "no held-out examples"}


@pytest.mark.parametrize(
    ("alert", "kind"),
    [
        ("SAM radius at rho_max = 0.15: 3, 5", "SAM radius at rho_max"),
        ("adaptation inactive: lambda is at a clip", "adaptation inactive"),
        ("nobody is left", "nobody is left"),
        ("17", "alert"),
    ],
)
def test_the_kind_of_an_alert_is_its_words_before_the_figures(alert: str, kind: str) -> None:
    assert alert_kind(alert) == kind
