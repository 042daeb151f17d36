"""What guard, policy and breaker decided: the stages one after another, the events, and the refusals by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedaccord.report.groups import Study
from fedaccord.report.source import Client, seed_of
from fedaccord.report.view import Cell, Table

MOST_ROWS = 30
_SHOWN = 5  # rounds
_STATE = ("stage", "used", "breaker")


def told(study: Study) -> bool:
    """Whether there is anything to show beside refusals."""
    return any(trust.get("stage") or trust.get("events") for _, _, _, trust in _lines(study))


def stages(study: Study) -> Table:
    """Rounds in a row with the same stage, weights and breaker: one row."""
    columns = (
        ("method", ""),
        ("seed", ""),
        ("rounds", "first and last"),
        ("stage", "of the learned policy"),
        ("weights", "whose aggregate became the model"),
        ("breaker", ""),
    )
    stretches: list[tuple[tuple[int, str, tuple[str, ...]], list[int]]] = []
    for index, seed, t, trust in _lines(study):
        if not trust.get("stage"):
            continue
        now = index, seed, tuple(str(trust.get(name, "–")).replace("_", " ") for name in _STATE)
        if stretches and stretches[-1][0] == now:
            stretches[-1][1].append(t)
        else:
            stretches.append((now, [t]))
    rows = []
    for (index, seed, state), at in stretches[:MOST_ROWS]:
        span = f"{at[0]}–{at[-1]}" if len(at) > 1 else str(at[0])
        rows.append((Cell(study.methods[index].label, chip=index), Cell(seed), Cell(span), *(Cell(word) for word in state)))
    return Table("stages-table", "Stage and breaker", columns, tuple(rows), _more(len(stretches)), "No policy ran behind a breaker.")


def events(study: Study) -> Table:
    """What happened, the most frequent kind first."""
    columns = (("method", ""), ("seed", ""), ("event", ""), ("times", ""), ("rounds", "the first five"), ("last", "its details"))
    found: dict[tuple[int, str, str], list[tuple[int, Mapping[str, Any]]]] = {}
    for index, seed, t, trust in _lines(study):
        for event in trust.get("events") or ():
            found.setdefault((index, seed, str(event.get("event", "–"))), []).append((t, event))
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = []
    for (index, seed, kind), entries in ordered[:MOST_ROWS]:
        details = ", ".join(f"{key} {value}" for key, value in entries[-1][1].items() if key != "event")
        texts = (kind.replace("_", " "), str(len(entries)), _first(sorted({t for t, _ in entries})), details or "–")
        rows.append((Cell(study.methods[index].label, chip=index), Cell(seed), *(Cell(text) for text in texts)))
    return Table("events-table", "Events", columns, tuple(rows), _more(len(ordered)), "Nothing happened.")


def reasons(study: Study) -> Table:
    """Refusals by reason, over the seeds of each method."""
    columns = (
        ("method", ""),
        ("reason", ""),
        ("code", ""),
        ("uploads", ""),
        ("clients", "different ones, summed over the seeds"),
        ("rounds", "the first five"),
    )
    found: dict[tuple[int, str, str], list[tuple[int, str, Client]]] = {}
    for index, method in enumerate(study.methods):
        for run in method.runs:
            for line in run.rounds:
                for each in line.get("refused") or ():
                    key = index, str(each.get("reason", "–")), str(each.get("code", "–"))
                    found.setdefault(key, []).append((int(line["round"]), str(seed_of(run)), each.get("client", "–")))
    rows = []
    for (index, reason, code), entries in sorted(found.items(), key=lambda item: (item[0][0], -len(item[1]))):
        clients = len({(seed, client) for _, seed, client in entries})
        counts = (Cell(str(len(entries)), float(len(entries))), Cell(str(clients), float(clients)))
        head = (Cell(study.methods[index].label, chip=index), Cell(reason.replace("_", " ")), Cell(code))
        rows.append((*head, *counts, Cell(_first(sorted({t for t, _, _ in entries})))))
    return Table("refused-reasons-table", "Refused, by reason", columns, tuple(rows), empty="No upload was refused.")


def _lines(study: Study) -> Iterator[tuple[int, str, int, Mapping[str, Any]]]:
    """(method, seed, round, what the pipeline decided) of all rounds."""
    for index, method in enumerate(study.methods):
        for run in method.runs:
            for line in run.rounds:
                yield index, str(seed_of(run)), int(line["round"]), line.get("trust") or {}


def _first(rounds: Any) -> str:
    every = list(rounds)
    return ", ".join(map(str, every[:_SHOWN])) + (" …" if len(every) > _SHOWN else "")


def _more(count: int) -> str:
    return f"The first {MOST_ROWS} of {count} rows are shown; every decision is in rounds.jsonl." if count > MOST_ROWS else ""
