"""What `show` tells: a run at a glance, or the story of one client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedaccord.attacks import Flags, flags
from fedaccord.cli.words import SHORT, metric_of, ordinal, reasons, round_line, run_line
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import alert_kind, lower_is_better
from fedaccord.diagnosis import in_quarantine
from fedaccord.diagnosis.seen import Seen
from fedaccord.runs import Record, short_id

SHOWN = 5  # rounds, refused clients
MOST_NAMED = 20  # bad clients


class Story(NamedTuple):
    """The same, for people and for programs."""

    lines: list[str]
    data: dict[str, Any]


def overview(record: Record, state: str) -> Story:
    """State, verdict, the last rounds, refusals, alerts."""
    assert record.folder is not None
    rounds = int(record.status.get("rounds") or record.experiment["run"]["rounds"])
    refusals = _refusals(record)
    verdict = _verdict(record, state, refusals)
    run_id, error = short_id(record.folder), record.status.get("error")
    lines = [
        run_line(run_id, record.experiment, record.partition.get("clients")),
        f"{state}  round {len(record.rounds)}/{rounds}  {record.folder}",
    ]
    if error:
        lines.append(f"{error['code']} {error['what']}. {error['where']}. {error['remedy']}")
    under = flags(record) if record.provenance.get("bad_clients") else None
    lines += [] if under is None else [attack_line(record, under)]
    lines += [f"verdict: {verdict}", *(f"note: {text}" for text in record.partition.get("notes", []))]
    if record.rounds:
        lines += ["", "last rounds", *(f"  {round_line(line, rounds)}" for line in record.rounds[-SHOWN:])]
    if refusals:
        lines += ["", f"refused ({len(refusals)} clients)"]
        for each in refusals[:SHOWN]:
            why = f"{each['code']} {each['reason'].replace('_', ' ')}"
            lines.append(f"  client {each['client']}  {each['times']} times  {why}  last in round {each['last_round']}")
        lines += [f"  and {len(refusals) - SHOWN} more"] if len(refusals) > SHOWN else []
        lines.append(f"  See: fedaccord show {run_id} --client {refusals[0]['client']}")
    held = in_quarantine(Seen(record.rounds, record.clients))
    if held:
        shown = ", ".join(f"client {client} before round {until}" for client, until in list(held.items())[:SHOWN])
        more = f" and {len(held) - SHOWN} more" if len(held) > SHOWN else ""
        lines.append(f"in quarantine, not asked: {shown}{more}. See: fedaccord quarantine {run_id}")
    alerts = _alerts(record)
    if alerts:
        lines += ["", "alerts"]
        lines += [f"  {each['times']} times, last in round {each['last_round']}: {each['last']}" for each in alerts]
    if state in ("stopped", "interrupted", "failed"):
        lines += ["", f"Resume: fedaccord resume {record.folder}"]
    data = {
        "run_id": run_id,
        "folder": str(record.folder),
        "state": state,
        "round": len(record.rounds),
        "rounds": rounds,
        "error": error,
        "verdict": verdict,
        "last_rounds": record.rounds[-SHOWN:],
        "refusals": refusals,
        "quarantine": [{"client": client, "until": until} for client, until in held.items()],
        "alerts": alerts,
        "flags": None if under is None else under.record(),
        "experiment": record.experiment,
        "sources": record.sources,
        "partition": {key: value for key, value in record.partition.items() if key not in ("sizes", "label_counts")},
        "provenance": record.provenance,
    }
    return Story(lines, data)


def attack_line(record: Record, found: Flags) -> str:
    """``attack sign_flip: clients 2, 5 of 10 are bad; 2 of 2 flagged within 5 of their uploads, recall 1.00, precision 0.67; ...``."""
    who = ", ".join(map(str, found.bad[:MOST_NAMED])) + (", ..." if len(found.bad) > MOST_NAMED else "")
    line = f"attack {record.experiment['attack']['name']}: clients {who} of {record.partition.get('clients')} are bad"
    caught = found.caught()
    if caught is None:
        return f"{line}; none of them has sent anything under attack"
    line += f"; {round(caught * len(found.first))} of {len(found.first)} flagged within 5 of their uploads"
    line += "".join(
        f", {name} {value:.2f}" for name, value in (("recall", found.recall), ("precision", found.precision)) if value is not None
    )
    if found.most_false is not None and found.mean_false:
        client, most = found.most_false
        line += f"; of honest uploads {found.mean_false:.0%} flagged, of client {client}'s {most:.0%}"
    return line


def _verdict(record: Record, state: str, refusals: list[dict[str, Any]]) -> str:
    """What to believe of the run, in one sentence each."""
    measured = [(int(line["round"]), *found) for line in record.rounds if (found := metric_of(line))]
    said = []
    if measured:
        at, name, last = measured[-1]
        top = (min if lower_is_better(name) else max)(measured, key=lambda each: each[2])
        said.append(f"{SHORT.get(name, name)} {last:.3f} after round {at} (best {top[2]:.3f} in round {top[0]}, which is optimistic)")
    elif record.rounds:
        said.append(f"no test metric: {record.rounds[-1].get('test_reason') or 'not evaluated yet'}")
    else:
        said.append("no round was finished")
    kept = [line for line in record.rounds if line.get("model_kept")]
    if kept:
        said.append(f"{len(kept)} rounds kept the old model ({kept[-1].get('reason')})")
    asked = sum(len(line["cohort"]) for line in record.rounds)
    times = sum(each["times"] for each in refusals)
    said.append(f"{times} of {asked} uploads refused" if times else "no upload refused")
    absent = sum(len(line["absent"]) for line in record.rounds)
    if absent:
        said.append(f"{absent} answers missing")
    if state == "failed":
        said.append("it failed")
    return "; ".join(said)


def _refusals(record: Record) -> list[dict[str, Any]]:
    """One entry a client, the most refused first."""
    found: dict[int, dict[str, Any]] = {}
    for line in record.rounds:
        for each in line["refused"]:
            entry = found.setdefault(each["client"], {"client": each["client"], "times": 0})
            entry |= {
                "times": entry["times"] + 1,
                "code": each["code"],
                "reason": each["reason"],
                "message": each["message"],
                "last_round": line["round"],
            }
    return sorted(found.values(), key=lambda each: (-each["times"], each["client"]))


def _alerts(record: Record) -> list[dict[str, Any]]:
    """One entry a kind, the most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for line in record.rounds:
        for alert in line.get("alerts") or ():
            entry = found.setdefault(alert_kind(alert), {"kind": alert_kind(alert), "times": 0})
            entry |= {"times": entry["times"] + 1, "last_round": line["round"], "last": alert}
    return sorted(found.values(), key=lambda each: -each["times"])


def client_story(record: Record, client: int) -> Story:
    """One client: its data, the rounds that asked it, what became of its uploads, its own metrics. E203 where there is no such client."""
    sizes = record.partition.get("sizes", [])
    if not 0 <= client < len(sizes):
        raise ConfigError("E203", f"there is no client {client}", "--client", f"The clients are 0 to {len(sizes) - 1}")
    asked = [line["round"] for line in record.rounds if client in line["cohort"]]
    absent = [line["round"] for line in record.rounds if client in line["absent"]]
    refused = [{"round": line["round"], **each} for line in record.rounds for each in line["refused"] if each["client"] == client]
    trained = [line for line in record.clients if line["kind"] == "train" and line["client"] == client]
    own = [line for line in record.clients if line["kind"] == "evaluate" and line["client"] == client]
    until = in_quarantine(Seen(record.rounds, record.clients)).get(client)
    counts = record.partition.get("label_counts")
    labels = None if counts is None else _labels(counts[client], record.partition.get("class_names"))
    data = {
        "client": client,
        "examples": sizes[client],
        "label_counts": None if counts is None else counts[client],
        "asked": asked,
        "accepted": [line["round"] for line in trained if line["accepted"]],
        "absent": absent,
        "refused": refused,
        "not_asked_before": until,
        "rounds": trained,
        "evaluations": own,
    }
    lines = [f"client {client}  {sizes[client]} examples" + (f"  {labels}" if labels else "")]
    lines.append(
        f"asked in {len(asked)} of {len(record.rounds)} rounds, accepted {len(data['accepted'])} times"
        + (f", absent {len(absent)} times" if absent else "")
    )
    if until is not None:
        lines.append(f"in quarantine: not asked before round {until}")
    for number, each in enumerate(refused[-SHOWN:], start=max(len(refused) - SHOWN, 0) + 1):
        lines.append(f"  round {each['round']}  refused ({ordinal(number)} time, {reasons([each])}): {each['message']}")
    lines += [f"  {_round_of(line)}" for line in trained[-SHOWN:] if line["accepted"]]
    lines += [f"own examples after round {line['round']}: {_own(line)}" for line in own[-1:]]
    return Story(lines, data)


def _labels(counts: list[int], names: list[str] | None) -> str:
    held = Counter({label: count for label, count in enumerate(counts) if count})
    names = names or [f"class {label}" for label in range(len(counts))]
    few = [f"{names[label]} {count}" for label, count in held.most_common(SHOWN)]
    return ", ".join(few) + (f" and {len(held) - SHOWN} more classes" if len(held) > SHOWN else "")


def _round_of(line: Mapping[str, Any]) -> str:
    parts = [f"round {line['round']}", f"weight {line['weight']:.3f}", f"{line['steps']} steps"]
    for key, word in (("loss", "loss"), ("update_norm", "update"), ("cosine", "cosine"), ("drift", "drift")):
        if line.get(key) is not None:
            parts.append(f"{word} {line[key]:.3g}")
    parts += [f"{name} {value:.3g}" for name, value in (line.get("signals") or {}).items() if value is not None]
    return "  ".join(parts)


def _own(line: Mapping[str, Any]) -> str:
    metrics = line.get("metrics")
    figures = ", ".join(f"{SHORT.get(name, name)} {value:.3f}" for name, value in (metrics or {}).items() if value is not None)
    return f"{figures} on {line['num_examples']} examples" if figures else str(line.get("reason"))
