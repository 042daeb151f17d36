"""What a report reads of a run: the `Record` and the plain series in it. A value that is missing or not finite is None here, never NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Client = int | str  # a client's id, or its natural name


class Record(Protocol):
    """One run: what `fedaccord.runs` keeps on disk, or the same of a run in memory."""

    @property
    def folder(self) -> Path | None: ...
    @property
    def experiment(self) -> Mapping[str, Any]: ...
    @property
    def sources(self) -> Mapping[str, str]: ...
    @property
    def provenance(self) -> Mapping[str, Any]: ...
    @property
    def partition(self) -> Mapping[str, Any]: ...
    @property
    def status(self) -> Mapping[str, Any]: ...
    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def clients(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def measures(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class ClientScores:
    """The last per-client evaluation of one run, clients in the order of the record."""

    round: int | None
    clients: tuple[Client, ...]
    values: tuple[float, ...]
    sizes: tuple[int, ...]  # examples each value was measured on
    missing: tuple[tuple[Client, str], ...]  # clients without a value, and why


def number(value: object) -> float | None:
    """A finite float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def seed_of(record: Record) -> int | str:
    run = record.experiment.get("run")
    seed = run.get("seed") if isinstance(run, Mapping) else None
    seed = record.provenance.get("seed") if seed is None else seed
    return seed if isinstance(seed, int) else str(seed)


def run_name(record: Record) -> str:
    """The run's short id and its folder's name, whichever are known."""
    identity = record.status.get("run_id")
    parts = [str(identity)] if identity else []
    if record.folder is not None:
        parts.append(record.folder.name)
    return " ".join(parts) or "in memory"


def evaluations(record: Record, metric: str, split: str = "test") -> dict[int, float]:
    """Round -> value of `metric` on `split`, for the rounds that have one."""
    found = ((line["round"], number((line.get(split) or {}).get(metric))) for line in record.rounds)
    return {int(at): value for at, value in found if value is not None}


def series(record: Record, key: str) -> dict[int, float]:
    """Round -> a scalar of the round's line, for the rounds that have one."""
    found = ((line["round"], number(line.get(key))) for line in record.rounds)
    return {int(at): value for at, value in found if value is not None}


def cumulative(record: Record, *keys: str) -> dict[int, float]:
    """Round -> the sum of `keys` over the rounds up to it; {} where a key is never recorded."""
    if not any(number(line.get(key)) is not None for line in record.rounds for key in keys):
        return {}
    totals: dict[int, float] = {}
    running = 0.0
    for line in sorted(record.rounds, key=lambda line: int(line["round"])):
        running += sum(number(line.get(key)) or 0.0 for key in keys)
        totals[int(line["round"])] = running
    return totals


def last_round(record: Record) -> int:
    return max((int(line["round"]) for line in record.rounds), default=0)


def metric_names(record: Record) -> list[str]:
    """The test metrics of a run, in the order of their first appearance."""
    names: dict[str, None] = {}
    for line in record.rounds:
        names.update(dict.fromkeys(line.get("test") or {}))
    return list(names)


def why_no_value(record: Record, metric: str | None) -> str:
    """The reason, in words, that a run has no value of `metric` on the test set."""
    if not record.rounds:
        return "no round was finished"
    reasons = {str(line["test_reason"]) for line in record.rounds if line.get("test_reason")}
    if reasons:
        return "; ".join(sorted(reasons))
    return "no round was evaluated" if metric is None or not metric_names(record) else f"'{metric}' was never defined on the test set"


def client_scores(record: Record, metric: str | None) -> ClientScores:
    """Every client's own score in the last round that has per-client evaluations."""
    rows = [row for row in record.clients if row.get("kind") == "evaluate"]
    if not rows or metric is None:
        return ClientScores(None, (), (), (), ())
    at = max(int(row["round"]) for row in rows)
    have: list[tuple[Client, float, int]] = []
    missing: list[tuple[Client, str]] = []
    for row in (row for row in rows if int(row["round"]) == at):
        value = number((row.get("metrics") or {}).get(metric))
        if value is None:
            missing.append((row["client"], str(row.get("reason") or f"'{metric}' is not defined on this client's examples")))
        else:
            have.append((row["client"], value, int(row.get("num_examples") or 0)))
    clients, values, sizes = zip(*have, strict=True) if have else ((), (), ())
    return ClientScores(at, tuple(clients), tuple(values), tuple(sizes), tuple(missing))


def measures_of(record: Record) -> Mapping[str, Any]:
    """What was measured of the run's last model; {} where nothing was, or where the run went on afterwards."""
    return record.measures if record.measures.get("round") == last_round(record) else {}


def why_not_measured(record: Record, name: str) -> str:
    """The reason, in words, that a run lacks the measure `name`."""
    found = measures_of(record)
    if found:
        reasons = found.get("reasons") or {}
        part = "eigenvalues" if name.startswith("eigenvalue") else name
        return str(reasons.get("all") or reasons.get(name) or reasons.get(part) or "not recorded")
    return f"measured at round {record.measures['round']}, before the run's end" if record.measures else "not measured"


def trained(record: Record) -> list[Mapping[str, Any]]:
    """The lines of clients that answered a round, refused ones included."""
    return [row for row in record.clients if row.get("kind") == "train"]
