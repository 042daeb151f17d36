"""The tables of facts: who took part and who was refused, what was configured and where it came from, which versions ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedaccord.core.reports import alert_kind
from fedaccord.report.groups import Study, flatten
from fedaccord.report.source import Client, client_scores, run_name, seed_of
from fedaccord.report.view import Cell, Table

MOST_ROWS = 20  # of refusals and alerts in the page; all of them are in the CSV
_VERSIONS = ("fedaccord", "torch", "numpy", "python", "platform", "commit", "data_hash", "started", "command")


def participation(study: Study) -> Table:
    """How often clients were asked, counted, refused and absent, summed over the seeds."""
    columns = (
        ("method", ""),
        ("asked", "invitations over all rounds and seeds"),
        ("accepted", "uploads that counted"),
        ("refused", "uploads that the guard refused"),
        ("absent", "clients that did not answer"),
        ("clients never accepted", "clients whose data never counted, summed over the seeds"),
        ("accepted a client", "fewest, median and most accepted uploads of a client, over all clients and seeds"),
    )
    rows = []
    for index, method in enumerate(study.methods):
        totals: Counter[str] = Counter()
        each: list[int] = []
        for run in method.runs:
            accepted: Counter[Client] = Counter()
            for line in run.rounds:
                totals["asked"] += len(line.get("cohort") or ())
                totals["refused"] += len(line.get("refused") or ())
                totals["absent"] += len(line.get("absent") or ())
                accepted.update(line.get("accepted") or ())
            totals["accepted"] += sum(accepted.values())
            each += _counts(accepted, run.partition)
        each.sort()
        spread = f"{each[0]} / {each[len(each) // 2]} / {each[-1]}" if each else "–"
        counts = [Cell(f"{totals[name]:,}", float(totals[name])) for name in ("asked", "accepted", "refused", "absent")]
        rows.append((Cell(method.label, chip=index), *counts, Cell(str(each.count(0)), float(each.count(0))), Cell(spread)))
    return Table("participation-table", "Invitations and answers", columns, tuple(rows))


def refusals(study: Study) -> Table:
    """Who was refused and why, the most often refused first; methods and rounds that tell the same story are one row."""
    columns = (
        ("client", ""),
        ("seed", ""),
        ("times", "over the methods named"),
        ("rounds", "the first five"),
        ("code", ""),
        ("reason", ""),
    )
    last = (("first message", ""), ("of", "the methods it holds for"))
    found: dict[tuple[str, ...], list[tuple[int, str, str]]] = {}  # (client, seed, code, reason) -> (round, method, message)
    for method in study.methods:
        for run in method.runs:
            for line in run.rounds:
                for refusal in line.get("refused") or ():
                    client, code, reason = (str(refusal.get(name, "–")) for name in ("client", "code", "reason"))
                    entry = (int(line["round"]), method.label, str(refusal.get("message") or "–"))
                    found.setdefault((client, str(seed_of(run)), code, reason), []).append(entry)
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = []
    for (client, seed, code, reason), entries in ordered[:MOST_ROWS]:
        at = sorted({round_ for round_, _, _ in entries})
        which = ", ".join(map(str, at[:5])) + (" …" if len(at) > 5 else "")
        texts = (which, code, reason, entries[0][2], _methods(study, dict.fromkeys(label for _, label, _ in entries)))
        rows.append((Cell(client), Cell(seed), Cell(str(len(entries)), float(len(entries))), *(Cell(text) for text in texts)))
    kinds: Counter[str] = Counter()
    for (*_, reason), entries in found.items():
        kinds[reason] += len(entries)
    note = "By reason: " + ", ".join(f"{reason} {count}" for reason, count in kinds.most_common()) + "." if found else ""
    if len(ordered) > MOST_ROWS:
        note += f" The first {MOST_ROWS} of {len(ordered)} rows are shown; every refusal is in the rounds' CSV."
    return Table("refusals-table", "Refused uploads", (*columns, *last), tuple(rows), note, "No upload was refused.")


def alerts(study: Study) -> Table:
    """What methods and server told about their rounds, the most frequent kind first."""
    columns = (("method", ""), ("seed", ""), ("times", "rounds"), ("rounds", "the first five"), ("last", "what was told last"))
    found: dict[tuple[int, str, str], list[tuple[int, str]]] = {}  # (method, seed, kind) -> (round, text)
    for index, method in enumerate(study.methods):
        for run in method.runs:
            for line in run.rounds:
                for alert in map(str, line.get("alerts") or ()):
                    found.setdefault((index, str(seed_of(run)), alert_kind(alert)), []).append((int(line["round"]), alert))
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    rows = []
    for (index, seed, _), told in ordered[:MOST_ROWS]:
        at = ", ".join(str(round_) for round_, _ in told[:5]) + (" …" if len(told) > 5 else "")
        times = Cell(str(len(told)), float(len(told)))
        rows.append((Cell(study.methods[index].label, chip=index), Cell(seed), times, Cell(at), Cell(told[-1][1])))
    more = f"The first {MOST_ROWS} of {len(ordered)} rows are shown." if len(ordered) > MOST_ROWS else ""
    note = f"{more} Every alert is in the rounds' CSV.".strip()
    return Table("alerts-table", "Alerts", columns, tuple(rows), note if found else "", "No alert was raised.")


def without_score(study: Study) -> Table:
    """Clients that have no score of their own, by reason: their absence is stated, never averaged in as a zero."""
    columns = (("seed", ""), ("clients", "how many"), ("which", "the first ten"), ("reason", ""), ("of", "the methods it holds for"))
    found: dict[tuple[str, tuple[Client, ...], str], dict[str, None]] = {}
    for method in study.methods:
        for run in method.runs:
            by_reason: dict[str, list[Client]] = {}
            for client, reason in client_scores(run, study.metric).missing:
                by_reason.setdefault(reason, []).append(client)
            for reason, clients in by_reason.items():
                found.setdefault((str(seed_of(run)), tuple(clients), reason), {})[method.label] = None
    rows = []
    for (seed, which, reason), labels in found.items():
        first = ", ".join(map(str, which[:10])) + (" …" if len(which) > 10 else "")
        rows.append((Cell(seed), Cell(str(len(which)), float(len(which))), Cell(first), Cell(reason), Cell(_methods(study, labels))))
    return Table("unscored-table", "Clients without a score", columns, tuple(rows), empty="No per-client evaluation lacks a score.")


def kept_rounds(study: Study) -> Table:
    """Rounds that left the model as it was, and evaluations that have no value, with the reason."""
    columns = (("method", ""), ("seed", ""), ("what", ""), ("rounds", "how many"), ("first", "the first such round"), ("reason", ""))
    rows = []
    for index, method in enumerate(study.methods):
        for run in method.runs:
            kinds: dict[tuple[str, str], list[int]] = {}
            for line in run.rounds:
                if line.get("model_kept"):
                    kinds.setdefault(("old model kept", str(line.get("reason") or "no reason recorded")), []).append(int(line["round"]))
                for split in ("test", "validation"):
                    if line.get(f"{split}_reason"):
                        kinds.setdefault((f"no {split} metric", str(line[f"{split}_reason"])), []).append(int(line["round"]))
            for (what, reason), rounds in kinds.items():
                counts = (Cell(str(len(rounds)), float(len(rounds))), Cell(str(rounds[0]), float(rounds[0])))
                rows.append((Cell(method.label, chip=index), Cell(str(seed_of(run))), Cell(what), *counts, Cell(reason)))
    return Table("reasons-table", "Rounds without an update or a value", columns, tuple(rows), empty="Every round updated the model.")


def settings(study: Study) -> Table:
    """Every setting, its value and where the value came from; where methods differ, a row for each value."""
    columns = (("setting", ""), ("value", ""), ("of", "methods with this value"), ("from", "default, file, environment or command line"))
    flats = [(method.label, flatten(run.experiment), run.sources) for method in study.methods for run in method.runs]
    keys = dict.fromkeys(key for _, flat, _ in flats for key in flat)
    rows = []
    for key in keys:
        values: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
        for label, flat, sources in flats:
            if key in flat:
                labels, origins = values.setdefault(flat[key], ({}, {}))
                labels[label] = None
                origins[_source(key, sources)] = None
        for value, (labels, origins) in values.items():
            rows.append((Cell(key), Cell(value if value != "" else "(empty)"), Cell(_methods(study, labels)), Cell(", ".join(origins))))
    return Table("settings-table", "Settings and where they came from", columns, tuple(rows), empty="No settings were recorded.")


def versions(study: Study) -> Table:
    """What ran, on what, from which commit, on which data."""
    columns = (("method", ""), ("run", ""), ("seed", ""), ("state", ""), *((name.replace("_", " "), "") for name in _VERSIONS))
    rows = []
    for index, method in enumerate(study.methods):
        for run in method.runs:
            state = str(run.status.get("state", "unknown"))
            head = (Cell(method.label, chip=index), Cell(run_name(run)), Cell(str(seed_of(run))), Cell(state))
            rows.append((*head, *(Cell(str(value) if (value := run.provenance.get(name)) is not None else "–") for name in _VERSIONS)))
    return Table("versions-table", "Versions and hashes", columns, tuple(rows))


def partitions(study: Study) -> Table:
    """The partitions drawn and how uneven they are: one row for each scheme and seed."""
    seen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for run in study.runs:
        seen.setdefault((str(run.partition.get("scheme", "unnamed")), str(seed_of(run))), run.partition)
    names = dict.fromkeys(name for partition in seen.values() for name in partition.get("measures") or {})
    columns = [("partition", ""), ("seed", ""), ("clients", ""), ("sizes", "smallest, median and largest client")]
    columns += [(name.replace("_", " "), "") for name in names]
    columns.append(("repairs", "what was changed to make the partition possible"))
    rows = []
    for (scheme, seed), partition in seen.items():
        sizes = sorted(int(size) for size in partition.get("sizes") or ())
        spread = f"{sizes[0]} / {sizes[len(sizes) // 2]} / {sizes[-1]}" if sizes else "–"
        measures = partition.get("measures") or {}
        count = partition.get("clients", len(sizes))
        cells = [Cell(scheme), Cell(seed), Cell(str(count), float(count)), Cell(spread)]
        cells += [_measure(measures.get(name)) for name in names]
        rows.append((*cells, Cell("; ".join(map(str, partition.get("notes") or ())) or "none")))
    return Table("partitions-table", "The partitions", tuple(columns), tuple(rows))


def _counts(accepted: Counter[Client], partition: Mapping[str, Any]) -> list[int]:
    """Accepted uploads of every client of the population, those never asked included."""
    missing = int(partition.get("clients") or len(partition.get("sizes") or ())) - len(accepted)
    return [*accepted.values(), *([0] * max(0, missing))]


def _methods(study: Study, labels: Iterable[str]) -> str:
    labels = list(labels)
    return "all" if len(labels) == len(study.methods) > 1 else ", ".join(labels)


def _source(key: str, sources: Mapping[str, str]) -> str:
    """A nested key takes the source of the nearest key above it that has one."""
    while key:
        if key in sources:
            return str(sources[key])
        key = key.rpartition(".")[0]
    return "not recorded"


def _measure(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:.3f}", float(value))
    return Cell("–" if value is None else str(value))
