"""diagnosis/ on real runs: nothing where nobody is bad, and by name what is wrong elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.policy import CohortView, Decision, Memory
from fedaccord.checks.trial import Tampering
from fedaccord.core.algorithm import Algorithm
from fedaccord.diagnosis import Finding, diagnose
from fedaccord.experiment import Devices, Experiment, RunOptions, prepare
from fedaccord.runs import Record, RunFolder, lines_of
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.sampling import Uniform

OPTIONS: dict[str, Any] = {
    "partition": fa.DirichletPerClass(alpha=1.0, clients=10),
    "cohort": 10,
    "rounds": 12,
    "local": fa.LocalPlan(lr=0.05, epochs=2, batch_size=20),
    "runtime": "sequential",
    "keep_weights": False,
}


def holding(record: Record) -> dict[str, Finding]:
    return {each.rule: each for each in diagnose(record) if each.holds}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"policy": fa.Residual(weights="untrained")},
        {"policy": fa.PerClient(weights="untrained")},
        {"screen": fa.RuleGuard(), "partition": fa.DirichletPerClass(alpha=0.2, clients=10)},
        {"screen": fa.Krum()},
    ],
    ids=["fedavg", "residual", "per_client", "rule_guard", "krum"],
)
def test_a_clean_run_holds_nothing_and_raises_no_alert(given: dict[str, Any]) -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), **{**OPTIONS, **given})
    assert holding(run.record) == {} and run.rounds.alerts.map(len).sum() == 0


def test_a_client_that_sends_its_first_update_again_is_a_free_rider_in_quarantine() -> None:
    algorithm: Algorithm = fa.FedAvg()
    experiment = Experiment(
        fa.IID(clients=6),
        algorithm,
        OPTIONS["local"],
        runtime=RuntimeOptions("sequential"),
        run=RunOptions(rounds=5, cohort=Uniform(6)),
    )
    prepared, first = prepare(experiment, fa.digits("softmax")), dict[int, ClientUpload]()

    def change(answer: ClientUpload, round: int) -> ClientUpload:
        sent = first.setdefault(answer.client, answer)
        return answer._replace(upload=sent.upload) if answer.client == 4 else answer

    record = Record({})
    for result in replace(prepared.federation, runtime=Tampering(prepared.federation.runtime, change, list)).run(prepared.start):
        line, clients = lines_of(result.report, result.clients, result.evaluations)
        record.rounds.append(line)
        record.clients += clients
    told = holding(record)
    assert told.keys() == {"free_riders", "quarantine"}
    assert told["free_riders"].figures == "client 4: replayed 3 times" and told["quarantine"].clients == (4,)
    assert record.rounds[3]["alerts"] == ["quarantine: client 4 is not asked before round 15"]


def test_free_riders_without_repeats_are_found_by_coming_again() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), screen=fa.RuleGuard(), attack=fa.FreeRider(clients=(3,), kind="zero"), **OPTIONS)
    assert holding(run.record).keys() == {"free_riders"}
    unscreened = fa.run(fa.digits("softmax"), fa.FedAvg(), attack=fa.FreeRider(clients=(3,), kind="zero"), **OPTIONS)
    assert holding(unscreened.record)["free_riders"].figures == "client 3: zero 12 times", "nobody refused it: its updates are nothing long"


@dataclass(frozen=True)
class Fails(fa.Policy):
    is_learned: ClassVar[bool] = True

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        raise RuntimeError("no weights")


@dataclass(frozen=True)
class Rejects(fa.Policy):
    """The first clients, up to a share of the cohort; of the others it thinks much the same."""

    share: float = 0.4
    spread: float = 0.0
    is_learned: ClassVar[bool] = True

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        size = len(cohort.clients)
        actions = torch.linspace(0.9 - self.spread, 0.9, size, dtype=torch.float64)
        kept: Tensor = torch.arange(size) >= round(self.share * size)
        return Decision(torch.where(kept, cohort.counts, 0.0), actions=actions)


def test_a_policy_that_fails_is_found_by_its_breaker() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=Fails(), **OPTIONS)
    told = holding(run.record)
    assert told.keys() == {"breaker"}
    assert told["breaker"].figures == "exception twice, in 2 rounds (1, 12); now it is open; last error: RuntimeError: no weights"
    assert run.rounds.alerts[0] == ["breaker opened: exception (RuntimeError: no weights); FedAvg's weights before round 12"]


def test_a_collapsed_and_over_cautious_policy_is_told_at_once_and_afterwards() -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=Rejects(0.4), **OPTIONS)
    told = holding(run.record)
    assert told.keys() == {"over_cautious", "collapsed", "left_out"} and told["left_out"].clients == (0, 1, 2, 3)
    kinds = [alert.partition(":")[0] for alert in run.rounds.alerts[0]]
    assert kinds == ["over-cautious policy", "collapsed policy"]
    apart = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=Rejects(0.3, spread=0.4), **OPTIONS)
    assert holding(apart.record).keys() == {"left_out"} and apart.rounds.alerts.map(len).sum() == 0


def test_without_validation_data_the_policy_is_not_scored() -> None:
    task = replace(fa.digits("softmax"), validation=None)
    run = fa.run(task, fa.FedAvg(), policy=fa.Residual(weights="untrained"), **{**OPTIONS, "rounds": 3})
    assert holding(run.record)["not_scored"].figures == "no round has a validation loss: the task has no validation data"


def test_weak_devices_are_known_whatever_the_runtime() -> None:
    devices = Devices(weak_share=0.5, gradients_per_second=10.0, weak_speed=0.5)
    of_runtime = {}
    for name in ("sequential", "vectorized"):
        run = fa.run(fa.digits("softmax"), fa.FedAvg(), devices=devices, **{**OPTIONS, "rounds": 2, "runtime": name})
        trained = [line for line in run.record.clients if line["kind"] == "train"]
        of_runtime[name] = [(line["client"], line["is_weak"], line["latency"], line["gradients"]) for line in trained]
    assert of_runtime["sequential"] == of_runtime["vectorized"]
    assert sum(is_weak for _, is_weak, _, _ in of_runtime["vectorized"]) == 10
    assert all(latency == gradients / (5.0 if is_weak else 10.0) for _, is_weak, latency, gradients in of_runtime["vectorized"])


@dataclass(frozen=True)
class StopAfter:
    round: int
    folder: Path

    def emit(self, event: Any) -> None:
        if event.kind == "round_finished" and event.data["round"] == self.round:
            RunFolder(self.folder).ask_to_stop()


def test_the_alerts_go_on_after_a_resume_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """A learning rate that makes the loss jump, cohorts of two: what the last loss was is in the checkpoint."""
    options = {**OPTIONS, "cohort": 2, "partition": fa.DirichletPerClass(alpha=0.1, clients=10), "checkpoint_every": 1, "rounds": 6}
    options["local"] = fa.LocalPlan(lr=0.5, epochs=2, batch_size=20)
    whole = fa.run(fa.digits("softmax"), fa.FedAvg(), **options)
    told = [t for t, alerts in enumerate(whole.rounds.alerts, 1) if any("the validation loss rose" in alert for alert in alerts)]
    assert told
    for t in {told[0], told[-1]}:
        folder = tmp_path / str(t)
        fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, telemetry=[StopAfter(t - 1, folder)], **options)
        again = fa.run(fa.digits("softmax"), fa.FedAvg(), folder=folder, resume=True, **options)
        assert list(again.rounds.alerts) == list(whole.rounds.alerts)
