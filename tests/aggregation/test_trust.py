"""trust.py in the round loop: fall-back to FedAvg in the same round, stages, memory, and what comes back after a checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaccord as fa
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Outcome, Policy
from fedaccord.aggregation.rollout import Rollout
from fedaccord.aggregation.trust import Trust
from fedaccord.checks.trial import examples as trial_examples
from fedaccord.checks.trial import mlp, prepare_trial, run_traced, traced
from fedaccord.runs import read
from fedaccord.tasks import Task


def task(validation: bool = True) -> Task:
    x, y = trial_examples()
    held = (x[50:], y[50:]) if validation else None
    return Task(model=mlp, loss=F.cross_entropy, train=(x, y), test=(x[:20], y[:20]), validation=held, num_classes=3)


OPTIONS: dict[str, Any] = {
    "partition": fa.DirichletPerClass(alpha=1.0, clients=8),
    "cohort": 5,
    "rounds": 6,
    "local": fa.LocalPlan(lr=0.1, epochs=2, batch_size=4),
    "runtime": "sequential",
}


@dataclass(frozen=True)
class Learned(Policy):
    """By size, times what `tilt` says; behind the breaker."""

    tilt: Callable[[CohortView], Any] = field(default=lambda cohort: torch.ones(len(cohort.reports), dtype=torch.float64))

    is_learned: ClassVar[bool] = True

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        tilt = self.tilt(cohort)
        weights = cohort.counts * tilt if tilt.shape == cohort.counts.shape else tilt
        return Decision(weights, {"rounds": memory.get("rounds", 0) + 1})


def run(policy: Policy | None = None, validation: bool = True, **options: Any) -> fa.Run:
    return fa.run(task(validation), fa.FedAvg(), policy=policy, **{**OPTIONS, **options})


def from_round_three(fault: Callable[[CohortView], Any]) -> Learned:
    return Learned(lambda cohort: fault(cohort) if cohort.round >= 3 else torch.ones(len(cohort.reports), dtype=torch.float64))


def only_the_first(cohort: CohortView) -> Tensor:
    tilt = torch.full((len(cohort.reports),), 1e-9, dtype=torch.float64)
    tilt[int(cohort.counts.argmin())] = 1e9
    return tilt


def raising(cohort: CohortView) -> Tensor:
    raise RuntimeError("no model")


FAULTS: dict[str, tuple[str, Callable[[CohortView], Any]]] = {
    "nan": ("bad_weights", lambda cohort: torch.full((len(cohort.reports),), float("nan"), dtype=torch.float64)),
    "one weight too many": ("bad_weights", lambda cohort: torch.ones(len(cohort.reports), 2, dtype=torch.float64)),
    "raises": ("exception", raising),
    "returns nothing": ("exception", lambda cohort: None),
    "stalls": ("stalled", lambda cohort: time.sleep(0.7)),
    "collapses": ("collapsed", only_the_first),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_falls_back_to_fedavgs_bits_in_the_same_round_and_says_why(name: str) -> None:
    cause, fault = FAULTS[name]
    found, plain = run(from_round_three(fault)), run()
    assert torch.equal(found.weights(), plain.weights()) and torch.equal(found.weights(3), plain.weights(3))
    assert [event["event"] for event in found.rounds.trust[2]["events"]] == ["breaker_opened"]
    assert found.rounds.trust[2]["events"][0]["cause"] == cause
    assert [line["used"] for line in found.rounds.trust] == ["policy", "policy", *["by_size"] * 4]
    assert [line["breaker"] for line in found.rounds.trust] == ["closed", "closed", *["open"] * 4]
    assert not found.rounds.model_kept.any() and found.rounds.accepted.tolist() == plain.rounds.accepted.tolist()


def test_a_stall_is_one_by_the_injected_clock_too() -> None:
    clock = iter([0.0, 0.1, 1.0, 1.6, *[2.0] * 40])
    prepared = prepare_trial(fa.FedAvg(), task(), aggregation=fa.Aggregation(Learned()))
    trust: Trust = replace(prepared.federation.trust, clock=lambda: next(clock))
    trace = traced(prepared._replace(federation=replace(prepared.federation, trust=trust)))
    used = [result.report.trust["used"] for result in trace.results]
    assert used == ["policy", "by_size", "by_size", "by_size"]
    assert trace.results[1].report.trust["events"][0]["cause"] == "stalled"


def test_an_aggregate_that_does_harm_on_the_validation_data_is_not_used() -> None:
    """The policy counts one client alone, as far as the caps let it, of a federation where that one has other labels."""
    x, y = trial_examples()
    wrong = Task(
        model=mlp,
        loss=F.cross_entropy,
        train=(x, torch.where(torch.arange(len(y)) < 20, (y + 1) % 3, y)),
        test=(x[:20], y[:20]),
        validation=(x[20:], y[20:]),
        num_classes=3,
    )
    shards = fa.Explicit([list(range(20)), *[list(range(20 + 9 * i, 29 + 9 * i)) for i in range(7)]])
    options = {**OPTIONS, "partition": shards, "cohort": [list(range(8))] * 6, "local": fa.LocalPlan(lr=1.0, epochs=10, batch_size=4)}
    policy = Learned(lambda cohort: torch.where(torch.tensor(cohort.clients) == 0, 3.0, 1.0).double())
    found = fa.run(wrong, fa.FedAvg(), policy=policy, rollout=Rollout(max_worse=0.01), **options)
    first, second = found.rounds.trust[:2]
    assert first["events"] == [{"event": "set_aside", "cause": "harm"}] and first["loss_policy"] > 1.01 * first["loss_by_size"]
    assert (first["used"], first["breaker"]) == ("by_size", "closed"), "one bad round is no fault"
    assert second["events"][0]["cause"] == "harm" and second["breaker"] == "open", "two running are"
    assert torch.equal(found.weights(), fa.run(wrong, fa.FedAvg(), **options).weights())


def test_an_aggregate_that_is_not_finite_is_not_used() -> None:
    """Twice the mean is more than a float32 holds by the policy's weights, and less by FedAvg's."""

    def huge(answer: Any, round: int) -> Any:
        delta = torch.zeros_like(answer.upload.delta)
        delta[0] = 3.4e38 if answer.client in (2, 3) else -3.4e38
        return answer._replace(upload=answer.upload._replace(delta=delta))

    only = Learned(lambda cohort: torch.where(torch.tensor([client in (2, 3) for client in cohort.clients]), 1.0, 0.0).double())
    rules = Rollout(max_rejected=1.0, max_share=1.0, max_worse=1e9)
    options = {"aggregation": fa.Aggregation(only, rollout=rules), "server_optimizer": fa.ServerSgd(lr=2.0)}
    trace = run_traced(fa.FedAvg(), task(), change=huge, rounds=1, **options)
    report = trace.results[0].report
    assert report.trust["used"] == "by_size" and report.trust["events"][0]["cause"] == "not_finite" and not report.model_kept


def test_a_policy_that_rejects_everybody_gives_fedavgs_weights_and_says_so() -> None:
    found = run(Learned(lambda cohort: torch.zeros(len(cohort.reports), dtype=torch.float64)), rollout=Rollout(max_rejected=1.0))
    assert torch.equal(found.weights(), run().weights())
    assert all(line["events"] == [{"event": "all_rejected"}] for line in found.rounds.trust)


def test_rejecting_most_two_rounds_running_opens_the_breaker() -> None:
    found = run(
        Learned(lambda cohort: torch.tensor([1.0, *[0.0] * (len(cohort.reports) - 1)], dtype=torch.float64)), rollout=Rollout(max_share=1.0)
    )
    assert [line["used"] for line in found.rounds.trust][:2] == ["policy", "by_size"]
    assert found.rounds.trust[1]["events"][0]["cause"] == "rejects"
    assert [each["reason"] for each in found.rounds.refused[0]] == ["no_weight"] * 4 and found.rounds.refused[1] == []


def test_the_breaker_tries_again_after_its_rounds_and_closes_when_that_goes_well() -> None:
    once = Learned(lambda cohort: raising(cohort) if cohort.round == 2 else torch.ones(len(cohort.reports), dtype=torch.float64))
    found = run(once, rounds=9, rollout=Rollout(good_rounds=3))
    assert [line["breaker"] for line in found.rounds.trust] == [
        "closed",
        "open",
        "open",
        "open",
        "open",
        "closed",
        "closed",
        "closed",
        "closed",
    ]
    assert found.rounds.trust[5]["events"] == [{"event": "breaker_closed"}] and found.rounds.trust[5]["used"] == "policy"


def tilted(cohort: CohortView) -> Tensor:
    return torch.linspace(1, 2, len(cohort.reports), dtype=torch.float64)


def test_in_the_shadow_the_policy_is_scored_and_fedavg_is_used() -> None:
    found = run(Learned(tilted), rollout=Rollout("shadow"))
    assert torch.equal(found.weights(), run().weights())
    line = found.rounds.trust[0]
    assert (line["stage"], line["used"]) == ("shadow", "by_size") and line["loss_policy"] != line["loss_by_size"]
    assert found.rounds.refused.map(len).sum() == 0


def test_on_it_is_used() -> None:
    found = run(Learned(tilted))
    assert not torch.equal(found.weights(), run().weights()) and set(found.rounds.trust.map(lambda line: line["used"])) == {"policy"}
    weights = found.clients[found.clients["round"] == 1].weight
    assert weights.sum() == pytest.approx(1)


def test_without_validation_data_nothing_is_scored_and_the_rest_works() -> None:
    found = run(Learned(tilted), validation=False)
    assert found.rounds.trust[0]["loss_policy"] is None and found.rounds.trust[0]["used"] == "policy"
    assert torch.equal(run(from_round_three(raising), validation=False).weights(), run(validation=False).weights())


@pytest.mark.parametrize("stage", ["shadow", "canary", "switchback", "on"])
def test_a_run_killed_in_any_stage_and_resumed_is_the_unbroken_one(
    stage: Any, tmp_path: Path, killed_after: Callable[[int, Callable[..., Any]], None]
) -> None:
    options: dict[str, Any] = {"rollout": Rollout(stage, promotion="rule", min_rounds=2, level=0.5), "checkpoint_every": 1, "rounds": 8}
    whole = run(Learned(tilted), folder=tmp_path / "whole", **options)

    killed_after(4, partial(run, Learned(tilted), folder=tmp_path / "broken", **options))
    again = run(Learned(tilted), folder=tmp_path / "broken", resume=True, **options)
    assert torch.equal(again.weights(), whole.weights()) and again.final.trust.facts == whole.final.trust.facts
    lines = [[line["trust"] for line in read(tmp_path / name).rounds] for name in ("whole", "broken")]
    assert lines[0] == lines[1] and again.final.trust.facts["policy"]["rounds"] == 8


def test_an_operators_orders_are_obeyed_once_and_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options: dict[str, Any] = {"rollout": Rollout("shadow"), "rounds": 6, "folder": folder}

    class Orders:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 2:
                from fedaccord.runs import RunFolder

                RunFolder(folder).order({"order": "promote"})

    found = run(Learned(tilted), telemetry=[Orders()], **options)
    assert [line["stage"] for line in found.rounds.trust] == ["shadow", "shadow", *["canary"] * 4]
    assert found.rounds.trust[2]["events"] == [{"event": "promoted", "from": "shadow", "to": "canary", "step": 0, "by": "operator"}]


def test_who_has_to_train_again_is_in_the_next_cohort() -> None:
    @dataclass(frozen=True)
    class Again(Policy):
        def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
            return Decision(cohort.counts, memory, retrain=(6,) if cohort.round == 2 else ())

    plain, found = run(), run(Again())
    drawn = [set(cohort) for cohort in plain.rounds.cohort]
    asked = [set(cohort) for cohort in found.rounds.cohort]
    assert 6 not in drawn[2] or pytest.fail("choose a client that is not drawn anyway")
    assert asked[2] == drawn[2] | {6} and asked[:2] == drawn[:2] and asked[3:] == drawn[3:]


def test_a_policy_learns_from_what_came_of_its_decision() -> None:
    @dataclass(frozen=True)
    class Watching(Policy):
        is_learned: ClassVar[bool] = True

        def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
            return Decision(cohort.counts * tilted(cohort), memory)

        def observe(self, cohort: CohortView, decision: Decision, outcome: Outcome) -> Memory:
            return {"rewards": [*decision.memory.get("rewards", []), outcome.reward]}

    found = run(Watching())
    expected = [line["loss_by_size"] - line["loss_policy"] for line in found.rounds.trust]
    assert found.final.trust.facts["policy"]["rewards"] == expected and all(reward != 0 for reward in expected)


def test_what_the_pipeline_remembers_is_plain_data() -> None:
    facts: Mapping[str, Any] = run(fa.PerClient(weights="untrained")).final.trust.facts
    assert json.loads(json.dumps(facts)) == facts
