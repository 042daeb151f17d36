"""What the verbs of `fedaccord policy` do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from fedaccord.cli.output import note, result, say, table
from fedaccord.cli.places import one_run
from fedaccord.core.errors import ConfigError
from fedaccord.runs import RunFolder, read
from fedaccord.tasks.nearest import did_you_mean


def train_policy(out: Path, kind: str, learner: str, minutes: float, episodes: int, seed: int, as_json: bool) -> int:
    """`fedaccord policy train`."""
    from fedaccord.api import one_thread
    from fedaccord.learning.learners import Learner, Training
    from fedaccord.learning.pretraining import Kind, Pretraining, pretrain

    _one_of(kind, get_args(Kind), "--kind")
    _one_of(learner, get_args(Learner), "--learner")
    if minutes <= 0 or episodes < 1:
        raise ConfigError("E203", f"{minutes:g} minutes and {episodes} episodes", "policy train", "Give more than none of either")
    plan = Pretraining(kind, Training(learner=learner, minutes=minutes, episodes=episodes, seed=seed))  # type: ignore[arg-type]
    with one_thread():
        card = pretrain(plan, out, lambda count, gain, spent: note(f"{count} episodes  gain {gain:+.4f}  {spent:.1f} min"))
    return _written(out, card, as_json)


def refine_policy(out: Path, journal: str, weights: str, seed: int, root: Path, as_json: bool) -> int:
    """`fedaccord policy train --journal`."""
    from fedaccord.aggregation.policies.features import RELATIVE
    from fedaccord.aggregation.policies.network import read as read_layers
    from fedaccord.api import one_thread
    from fedaccord.core.arrays import save_arrays
    from fedaccord.learning.journal import journal_of, refined

    folder = one_run(journal, root)
    record = read(folder)
    found = journal_of(record.rounds, record.clients)
    with one_thread():
        layers = refined(read_layers(weights, "residual.safetensors", len(RELATIVE), 1), found, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(layers, out)
    return _written(out, {"kind": "residual", "refined_from": weights, "journal": folder.name, "decisions": len(found.rewards)}, as_json)


def _written(out: Path, card: Mapping[str, Any], as_json: bool) -> int:
    out.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n")
    if as_json:
        result({"weights": str(out), **card})
    else:
        say(f'done  {out}  use it: [aggregation.policy] name = "{card["kind"].replace("linear", "residual")}", weights = "{out}"')
    return 0


def evaluate_policy(weights: str, kind: str, scenes: int, seed: int, as_json: bool) -> int:
    """`fedaccord policy evaluate`."""
    from fedaccord.aggregation.policies import PerClient, Residual
    from fedaccord.api import one_thread
    from fedaccord.learning.evaluation import Contestant, evaluated, paired
    from fedaccord.learning.scenes import Scenes

    _one_of(kind, ("residual", "per_client"), "--kind")
    if scenes < 2:
        raise ConfigError("E203", f"{scenes} scenes", "--scenes", "Two at least: an interval needs them")
    contestants = {"fedavg": Contestant(), kind: Contestant(PerClient(weights) if kind == "per_client" else Residual(weights))}
    rows: list[dict[str, Any]] = []
    with one_thread():
        for row in evaluated(contestants, Scenes(), seed, scenes):
            rows.append(row)
            note(f"scene {row['scene'] + 1}/{scenes}  {row['attack']}  {row['contestant']}  accuracy {row['accuracy']:.3f}")
    groups = {"all": rows, "nobody bad": [r for r in rows if r["attack"] == "none"], "attacked": [r for r in rows if r["attack"] != "none"]}
    summary = {
        name: {what: paired(own, kind, "fedavg", what) for what in ("accuracy", "loss", "worst")}
        for name, own in groups.items()
        if len({row["scene"] for row in own}) > 1
    }
    if as_json:
        result({"weights": weights, "kind": kind, "scenes": rows, "difference_to_fedavg": summary})
    else:
        table([_line(name, found) for name, found in summary.items()], f"{kind} less FedAvg, 95% intervals over scenes")
    return 0


def _line(name: str, found: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    words = {"accuracy": "accuracy", "loss": "test loss", "worst": "clients' loss, 95th percentile"}
    cells = {words[what]: f"{each['mean']:+.4f} [{each['low']:+.4f}, {each['high']:+.4f}]" for what, each in found.items()}
    return {"scenes": f"{name} ({found['accuracy']['scenes']})", **cells}


def order_policy(name: str, order: str, root: Path, as_json: bool) -> int:
    """`fedaccord policy promote` and `rollback`."""
    folder = one_run(name, root)
    record = read(folder)
    if not _has_stages(record.experiment):
        remedy = "Give the run a policy behind the breaker: aggregation.policy = 'residual'"
        raise ConfigError("E208", "the run's policy has no stages", str(folder), remedy)
    RunFolder(folder).order({"order": order})
    running = RunFolder(folder).is_running()
    told = "its next round obeys" if running else "it obeys when it is resumed"
    if as_json:
        result({"folder": str(folder), "order": order, "running": running})
    else:
        say(f"{order}: {told}")
    return 0


def policy_status(name: str, root: Path, as_json: bool) -> int:
    """`fedaccord policy status`."""
    folder = one_run(name, root)
    record = read(folder)
    lines = [line["trust"] for line in record.rounds if (line.get("trust") or {}).get("stage")]
    if not lines:
        what = "no round was weighed by a policy behind the breaker"
        raise ConfigError("E208", what, str(folder), "See aggregation.policy of the run: fedaccord show RUN")
    events = [
        {"round": line["round"], **event}
        for line in record.rounds
        for event in (line.get("trust") or {}).get("events", [])
        if event["event"] in ("promoted", "demoted", "rolled_back", "breaker_opened", "breaker_closed")
    ]
    scored = [line for line in lines if line.get("loss_policy") is not None and line.get("loss_by_size")]
    gains = [(line["loss_by_size"] - line["loss_policy"]) / line["loss_by_size"] for line in scored]
    found = {
        "folder": str(folder),
        "policy": record.experiment["aggregation"]["policy"]["name"],
        "stage": lines[-1]["stage"],
        "breaker": lines[-1]["breaker"],
        "rounds": len(lines),
        "used": sum(line["used"] == "policy" for line in lines),
        "gain": sum(gains) / len(gains) if gains else None,
        "events": events,
    }
    if as_json:
        result(found)
        return 0
    gain = "not scored: the task has no validation data" if not gains else f"validation loss {-100 * found['gain']:+.2f}% beside FedAvg's"
    say(f"{found['policy']}  stage {found['stage']}  breaker {found['breaker']}  used in {found['used']} of {len(lines)} rounds  {gain}")
    for event in events:
        details = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("round", "event"))
        say(f"round {event['round']}: {event['event']}" + (f" ({details})" if details else ""))
    return 0


def _has_stages(experiment: Mapping[str, Any]) -> bool:
    return "rollout" in experiment.get("aggregation", {})


def _one_of(name: str, known: Sequence[str], where: str) -> None:
    if name not in known:
        raise ConfigError("E205", f"{name!r} is not known", where, did_you_mean(name, known))
