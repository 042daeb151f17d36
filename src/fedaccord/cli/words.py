"""How a run, a round, a refusal and an alert read in one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.aggregation.memory import COUNTED
from fedaccord.core.reports import alert_kind
from fedaccord.partition.examine import readable

SHORT = {"accuracy": "acc"}
SCHEMES = {
    "dirichlet_per_class": "Dirichlet {alpha:g}",
    "dirichlet_per_client": "Dirichlet {alpha:g} per client",
    "quantity_dirichlet": "sizes Dirichlet {alpha:g}",
    "label_shards": "{shards_per_client} label shards each",
    "pathological_labels": "{labels_per_client} labels each",
    "feature_noise": "noise up to {std:g}",
    "few_hold_most": "few hold most",
    "iid": "IID",
}


def run_line(run_id: str, tables: Mapping[str, Any], clients: int | None = None) -> str:
    """``run 7f3a  fedsmoo  100 clients, Dirichlet 0.1  seed 1``, and ``under attack: sign_flip`` where clients are bad."""
    partition = tables["partition"]
    scheme = SCHEMES.get(str(partition["name"]), str(partition["name"]).replace("_", " "))
    many = clients if clients is not None else partition.get("clients")
    who = f"{many} clients, " if many is not None else ""
    attack = (tables.get("attack") or {}).get("name", "none")
    bad = "" if attack == "none" else f"  under attack: {attack}"
    return f"run {run_id}  {tables['algorithm']['name']}  {who}{scheme.format_map(partition)}  seed {tables['run']['seed']}{bad}"


def metric_of(line: Mapping[str, Any]) -> tuple[str, float] | None:
    """The first metric of a round's test evaluation that is not the loss."""
    found = [(name, value) for name, value in (line.get("test") or {}).items() if name != "loss" and value is not None]
    return found[0] if found else None


def round_line(line: Mapping[str, Any], rounds: int, seconds_left: float | None = None, bar: bool = False, brief: bool = False) -> str:
    """``round 12/100 ####----  acc 0.714  loss 0.88  kept 18/20  absent 1  refused 1 (non-finite)  up 9.1 MB  1.8 s  ETA 2m41s``."""
    done = int(line["round"])
    head = f"round {done}/{rounds}"
    if bar:
        filled = round(8 * done / rounds)
        head += f" {'#' * filled}{'-' * (8 - filled)}"
    parts, found = [head], metric_of(line)
    if found:
        parts.append(f"{SHORT.get(found[0], found[0])} {found[1]:.3f}")
    eta = [f"ETA {duration(seconds_left)}"] if seconds_left is not None and done < rounds else []
    if brief:
        return "  ".join([*parts, *eta])
    loss = (line.get("test") or {}).get("loss")
    if loss is not None:
        parts.append(f"loss {loss:.3g}")
    elif line.get("train_loss") is not None:
        parts.append(f"train loss {line['train_loss']:.3g}")
    parts.append(f"kept {len(line['accepted'])}/{len(line['cohort'])}")
    if line["absent"]:
        parts.append(f"absent {len(line['absent'])}")
    if line["refused"]:
        parts.append(f"refused {len(line['refused'])} ({reasons(line['refused'])})")
    if line.get("alerts"):
        parts.append(f"alert ({', '.join(dict.fromkeys(map(alert_kind, line['alerts'])))})")
    if line.get("model_kept"):
        parts.append(f"model kept: {line.get('reason')}")
    return "  ".join([*parts, f"up {readable(line['bytes_up'])}", duration(line["seconds"]), *eta])


def reasons(refused: Sequence[Mapping[str, Any]]) -> str:
    """The distinct reasons of refusals, in words."""
    return ", ".join(dict.fromkeys(str(each["reason"]).replace("non_finite", "non-finite").replace("_", " ") for each in refused))


def refusal_line(run_id: str, refusal: Mapping[str, Any], times: int) -> str:
    """``W201 client 7 refused: 3 NaN in 'fc2.weight' (2nd time). See: fedaccord quarantine 7f3a``, or show where it leads to none."""
    client, code = refusal["client"], str(refusal["code"])
    what = str(refusal["message"]).removeprefix(f"{code} ").partition(". ")[0].rstrip(".")
    often = "" if times == 1 else f" ({ordinal(times)} time)"
    verb = f"quarantine {run_id}" if refusal["reason"] in COUNTED else f"show {run_id} --client {client}"
    return f"W201 client {client} refused: {what}{often}. See: fedaccord {verb}"


def alert_line(run_id: str, round: int, alert: str, times: int) -> str:
    """``W202 round 4, adaptation inactive: lambda at a clip for 4 of 5 clients (2nd time). See: fedaccord show 7f3a``."""
    often = "" if times == 1 else f" ({ordinal(times)} time)"
    return f"W202 round {round}, {alert.rstrip('.')}{often}. See: fedaccord show {run_id}"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def duration(seconds: float) -> str:
    """0.2 s, 41 s, 2m41s, 1h02m."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    return f"{minutes}m{int(seconds) % 60:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def done_line(rows: Sequence[Mapping[str, Any]], report: str | None) -> str:
    """``done  acc 0.803 [0.792, 0.814]  target 0.80 at round 91  worst tenth 0.61  912 MB  report: ...`` from a summary with one method."""
    parts = ["done"]
    if len(rows) == 1:
        row, metric = rows[0], str(rows[0]["metric"])
        final = row["final"]
        if final["mean"] is not None:
            interval = "" if final["low"] is None else f" [{final['low']:.3f}, {final['high']:.3f}]"
            parts.append(f"{SHORT.get(metric, metric)} {final['mean']:.3f}{interval}")
        else:
            parts.append(f"no metric: {final.get('reason') or 'never evaluated'}")
        refused = row["refused"]["mean"]
        if row["model_kept"]["mean"]:
            parts.append(f"{row['model_kept']['mean']:g} rounds changed nothing, {refused:g} uploads refused: see fedaccord show")
        target = row["target_round"]
        if target["target"] is not None:
            reached = (
                f"at round {target['median']:g}"
                if target["median"] is not None
                else f"not reached in {target['never']} of {target['n']} runs"
                if target["n"] > 1
                else "never reached"
            )
            parts.append(f"target {target['target']:g} {reached}")
        if row["worst_tenth"]["mean"] is not None:
            parts.append(f"worst tenth {row['worst_tenth']['mean']:.2f}")
        if row["bytes_up"]["mean"] is not None:
            parts.append(f"up {readable(row['bytes_up']['mean'])}")
    if report:
        parts.append(f"report: {report}")
    return "  ".join(parts)
