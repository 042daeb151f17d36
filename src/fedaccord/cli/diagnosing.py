"""The verbs diagnose and quarantine."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from fedaccord.cli.output import result, say, table
from fedaccord.cli.places import one_run, state_of
from fedaccord.core.errors import ConfigError
from fedaccord.diagnosis import diagnose, in_quarantine
from fedaccord.diagnosis.seen import Client, Refusal, Seen
from fedaccord.runs import Record, RunFolder, read, short_id

SOMETHING_HOLDS = 6  # the run is fine and the answer is no
MARKS = {True: "HOLDS", None: "cannot say", False: "no"}
TOLD = 5  # clients whose last message is shown, rounds that are named


def diagnose_run(name: str, root: Path, as_json: bool) -> int:
    """`fedaccord diagnose`."""
    folder = one_run(name, root)
    record = read(folder)
    found = diagnose(record, RunFolder(folder).facts())
    holding = sum(bool(each.holds) for each in found)
    if as_json:
        result({"folder": str(folder), "rounds": len(record.rounds), "holds": holding, "findings": [each.record() for each in found]})
        return SOMETHING_HOLDS if holding else 0
    for each in found:
        say(f"{MARKS[each.holds]:<12}{each.name}: {each.figures}")
        if each.holds:
            say(f"{'':<12}{each.advice.replace(' RUN', f' {short_id(folder)}')}")
    silent = sum(each.holds is None for each in found)
    unsaid = f", of {silent} the records do not say" if silent else ""
    say(f"{holding or 'none'} of {len(found)} {'holds' if holding < 2 else 'hold'}{unsaid}")
    return SOMETHING_HOLDS if holding else 0


def quarantine_run(name: str, release: str | None, root: Path, as_json: bool) -> int:
    """`fedaccord quarantine`."""
    folder = one_run(name, root)
    record = read(folder)
    if release is not None:
        return _release(folder, record, release, as_json)
    rows = _refused(Seen(record.rounds, record.clients), RunFolder(folder).orders())
    if as_json:
        result({"folder": str(folder), "round": len(record.rounds), "refused": rows})
        return 0
    if not rows:
        say("nobody was refused")
        return 0
    table([_columns(row) for row in rows])
    for row in rows[:TOLD]:
        say(f"client {row['client']}, round {row['rounds'][-1]}: {row['message']}")
    if len(rows) > TOLD:
        say(f"and {len(rows) - TOLD} more; all they were told: fedaccord show {short_id(folder)} --client")
    return 0


def _refused(seen: Seen, orders: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each client that was ever refused, those in quarantine first: when, how often for which reason, the last message, until
    when it is not asked, and whether a release waits to be obeyed."""
    found = defaultdict[Client, list[Refusal]](list)
    for each in seen.refusals:
        found[each.client].append(each)
    until = in_quarantine(seen)
    ordered = Counter(client for order in orders if order.get("order") == "release" for client in order["clients"])
    obeyed = Counter(event.get("client") for _, event in seen.events("released"))
    rows = [
        {
            "client": client,
            "refused": len(refusals),
            "rounds": sorted({each.round for each in refusals}),
            "reasons": dict(Counter(each.reason for each in refusals).most_common()),
            "code": refusals[-1].code,
            "message": refusals[-1].message,
            "until": until.get(client),
            "release": ordered[client] > obeyed[client],
        }
        for client, refusals in found.items()
    ]
    return sorted(rows, key=lambda row: (row["until"] is None, -row["refused"], str(row["client"]).zfill(20)))


def _columns(row: dict[str, Any]) -> dict[str, str]:
    rounds = row["rounds"]
    shown = ", ".join(map(str, rounds[:TOLD])) + (f", ... {rounds[-1]}" if len(rounds) > TOLD else "")
    until = "-" if row["until"] is None else f"before round {row['until']}"
    return {
        "client": str(row["client"]),
        "refused": str(row["refused"]),
        "reasons": ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in row["reasons"].items()),
        "rounds": shown,
        "not asked": until + (" (released)" if row["release"] and row["until"] is not None else ""),
    }


def _release(folder: Path, record: Record, release: str, as_json: bool) -> int:
    try:
        clients = sorted({int(each) for each in release.split(",")})
    except ValueError:
        raise ConfigError("E202", f"{release!r} is no list of client ids", "--release", "Write e.g. --release 7,9") from None
    population = int(record.partition.get("clients") or 0)
    strangers = [client for client in clients if not 0 <= client < population]
    if strangers:
        raise ConfigError("E203", f"there is no client {strangers[0]}", "--release", f"The clients are 0 to {population - 1}")
    if state_of(folder, record.status) == "finished":
        raise ConfigError("E214", f"the run finished at round {len(record.rounds)}: it asks nobody any more", str(folder))
    held = set(in_quarantine(Seen(record.rounds, record.clients)))
    RunFolder(folder).order({"order": "release", "clients": clients})
    running, free = RunFolder(folder).is_running(), [client for client in clients if client not in held]
    if as_json:
        result({"folder": str(folder), "released": clients, "not_in_quarantine": free, "running": running})
        return 0
    say(f"released {', '.join(map(str, clients))}: {'the next round obeys' if running else 'the run obeys when it is resumed'}")
    if free:
        say(f"not in quarantine: {', '.join(map(str, free))}; their refusals so far are forgotten")
    return 0
