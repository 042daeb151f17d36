"""trust_tables.py: stages, events and refusals by reason, where a run has such records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaccord.report import trust_tables, write_report
from fedaccord.report.groups import study
from fedaccord.report.view import Table

Run = Callable[..., Any]
STAGED = {"stage": "shadow", "used": "by_size", "breaker": "closed"}
ON = {"stage": "on", "used": "policy", "breaker": "closed"}
OPENED = {
    "stage": "on",
    "used": "by_size",
    "breaker": "open",
    "events": [{"event": "breaker_opened", "cause": "exception", "until": 14, "detail": "<script>alert(1)</script>"}],
}
HALF = {"stage": "on", "used": "policy", "breaker": "half_open"}


def texts(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def decided(base: Any, *trust: dict[str, Any], refused: tuple[dict[str, Any], ...] = ()) -> Any:
    rounds = [line | {"trust": each, "refused": list(refused)} for line, each in zip(base.rounds, trust, strict=True)]
    return replace(base, rounds=rounds)


def test_rounds_of_one_stage_are_one_row_and_a_change_begins_another(run: Run) -> None:
    base = run("fedavg", 0, accuracies=[0.5] * 7, scores=[0.5, None])
    table = trust_tables.stages(study([decided(base, STAGED, STAGED, ON, OPENED, HALF, ON, ON)]))
    assert texts(table) == [
        ("FedAvg", "0", "1–2", "shadow", "by size", "closed"),
        ("FedAvg", "0", "3", "on", "policy", "closed"),
        ("FedAvg", "0", "4", "on", "by size", "open"),
        ("FedAvg", "0", "5", "on", "policy", "half open"),
        ("FedAvg", "0", "6–7", "on", "policy", "closed"),
    ]


def test_two_seeds_never_share_a_row(run: Run) -> None:
    runs = [decided(run("fedavg", seed, accuracies=[0.5] * 2, scores=[0.5, None]), ON, ON) for seed in (0, 1)]
    assert [row[1:3] for row in texts(trust_tables.stages(study(runs)))] == [("0", "1–2"), ("1", "1–2")]


def test_events_are_counted_by_kind_with_the_last_ones_details(run: Run) -> None:
    put = {"events": [{"event": "quarantined", "client": 3, "until": 14}, {"event": "quarantined", "client": 5, "until": 14}]}
    table = trust_tables.events(study([decided(run("fedavg", 0, scores=[0.5, None]), put, OPENED, {})]))
    assert texts(table) == [
        ("FedAvg", "0", "quarantined", "2", "1", "client 5, until 14"),
        ("FedAvg", "0", "breaker opened", "1", "2", "cause exception, until 14, detail <script>alert(1)</script>"),
    ]


def test_refusals_by_reason_count_uploads_and_clients(run: Run) -> None:
    refused = ({"client": 1, "code": "E115", "reason": "replayed", "message": "m"}, {"client": 2, "code": "E116", "reason": "no_trust"})
    table = trust_tables.reasons(study([decided(run("fedavg", 0, scores=[0.5, None]), {}, {}, {}, refused=refused)]))
    assert texts(table) == [
        ("FedAvg", "replayed", "E115", "3", "1", "1, 2, 3"),
        ("FedAvg", "no trust", "E116", "3", "1", "1, 2, 3"),
    ]


def test_the_section_is_there_where_a_run_has_such_records_and_text_stays_text(run: Run, tmp_path: Path) -> None:
    base = run("fedavg", 0, scores=[0.5, None])
    page = write_report([decided(base, STAGED, OPENED, HALF)], tmp_path / "r.html").html.read_text()
    assert 'id="trust"' in page and "<script>alert(1)</script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for nothing in (base, decided(base, {}, {}, {}), decided(base, {"rejected_share": 0.0}, {}, {})):
        assert 'id="trust"' not in write_report([nothing], tmp_path / "r.html").html.read_text()
    weighed = decided(base, {"events": [{"event": "quarantined", "client": 1, "until": 4}]}, {}, {})
    assert "No policy ran behind a breaker." in write_report([weighed], tmp_path / "r.html").html.read_text()
