"""The verbs diagnose and quarantine."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from fedaccord.cli.output import result, say, table
from fedaccord.cli.places import one_run
from fedaccord.core.errors import ConfigError
from fedaccord.diagnosis import diagnose
from fedaccord.runs import Record, RunFolder, read

SOMETHING_HOLDS = 6  # the run is fine and the answer is no


def diagnose_run(name: str, root: Path, as_json: bool) -> int:
    """`fedaccord diagnose`."""
    folder = one_run(name, root)
    record = read(folder)
    if not record.rounds:
        raise ConfigError("E213", "no round was finished yet", str(folder), "Wait for the first round")
    found = diagnose(record)
    holding = [each for each in found if each.holds]
    if as_json:
        result({"folder": str(folder), "rounds": len(record.rounds), "findings": [each.record() for each in found]})
        return SOMETHING_HOLDS if holding else 0
    for each in found:
        mark = {True: "HOLDS", False: "no", None: "cannot say"}[each.holds]
        say(f"{mark:<11}{each.name}: {each.figures}")
        if each.holds:
            say(f"           {each.advice}")
    say(f"{len(holding)} of {len(found)} hold" if holding else "nothing holds")
    return SOMETHING_HOLDS if holding else 0


def quarantine_run(name: str, release: str | None, root: Path, as_json: bool) -> int:
    """`fedaccord quarantine`."""
    folder = one_run(name, root)
    record = read(folder)
    if release is not None:
        return _release(folder, record, release, as_json)
    rows = _refused(record)
    if as_json:
        result({"folder": str(folder), "refused": rows})
        return 0
    if not rows:
        say("nobody was refused")
        return 0
    columns = ("client", "refused", "reasons", "last", "quarantine")
    table([{column: str(row[column]) for column in columns} for row in rows])
    for row in rows[:5]:
        say(f"client {row['client']}, round {row['last']}: {row['message']}")
    return 0


def _refused(record: Record) -> list[dict[str, Any]]:
    """A row for each client that was ever refused by the guard: how often, why, and until when it is not asked."""
    found: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    until: dict[int, int] = {}
    for line in record.rounds:
        for refusal in line["refused"]:
            found[refusal["client"]].append((line["round"], refusal["reason"], refusal["message"]))
        for event in (line.get("trust") or {}).get("events", ()):
            if event["event"] == "quarantined":
                until[event["client"]] = event["until"]
            elif event["event"] == "released":
                until.pop(event["client"], None)
    now = record.rounds[-1]["round"] + 1 if record.rounds else 1
    rows = []
    for client, refusals in found.items():
        reasons: dict[str, int] = defaultdict(int)
        for _, reason, _ in refusals:
            reasons[reason] += 1
        rows.append(
            {
                "client": client,
                "refused": len(refusals),
                "reasons": ", ".join(f"{reason} {count}" for reason, count in reasons.items()),
                "last": refusals[-1][0],
                "quarantine": f"until round {until[client]}" if until.get(client, 0) > now else "-",
                "message": refusals[-1][2],
            }
        )
    return sorted(rows, key=lambda row: (row["quarantine"] == "-", -row["refused"], row["client"]))


def _release(folder: Path, record: Record, release: str, as_json: bool) -> int:
    try:
        clients = [int(each) for each in release.split(",")]
    except ValueError:
        raise ConfigError("E202", f"{release!r} is no list of client ids", "--release", "Write e.g. --release 7,9") from None
    population = int(record.partition.get("clients") or 0)
    strangers = [client for client in clients if not 0 <= client < population]
    if strangers:
        raise ConfigError("E203", f"there is no client {strangers[0]}", "--release", f"Ids are 0 to {population - 1}")
    RunFolder(folder).order({"order": "release", "clients": clients})
    if as_json:
        result({"folder": str(folder), "released": clients, "running": RunFolder(folder).is_running()})
    else:
        told = "the next round obeys" if RunFolder(folder).is_running() else "the run obeys when it is resumed"
        say(f"released {', '.join(map(str, clients))}: {told}")
    return 0
