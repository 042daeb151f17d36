"""diagnosis/: each rule just below and just above its threshold, on records made by hand, and on real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedaccord as fa
from fedaccord.diagnosis import RULES, Finding, diagnose
from fedaccord.runs import Record


def line(t: int, trust: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "round": t,
        "cohort": [0, 1, 2],
        "accepted": [0, 1, 2],
        "refused": [],
        "absent": [],
        "validation": None,
        "test": None,
        "trust": trust or {},
        **more,
    }


def client(t: int, client: int = 0, **more: Any) -> dict[str, Any]:
    return {"kind": "train", "round": t, "client": client, "code": None, "signals": {}, "judged": {}, "latency": None, **more}


def found(name: str, rounds: list[Any], clients: list[Any] | None = None) -> Finding:
    return next(each for each in diagnose(Record({}, rounds=rounds, clients=clients or [])) if each.name == name)


def holds(name: str, rounds: list[Any], clients: list[Any] | None = None) -> bool | None:
    return found(name, rounds, clients).holds


def refusal(client: int, reason: str) -> dict[str, Any]:
    return {"client": client, "code": "E1", "reason": reason, "message": "m"}


def test_over_cautious_is_many_rejected_with_weights_alike() -> None:
    name = "the policy is over-cautious"
    assert holds(name, [line(1, {"rejected_share": 0.31, "weight_std": 0.049})]) is True
    assert (
        holds(name, [line(1, {"rejected_share": 0.30, "weight_std": 0.049}), line(2, {"rejected_share": 0.31, "weight_std": 0.05})])
        is False
    )
    assert holds(name, [line(1)]) is None


def test_collapsed_is_actions_alike_in_most_rounds_of_more_than_one_client() -> None:
    name = "the policy has collapsed"
    assert holds(name, [line(1, {"action_std": 0.029}), line(2, {"action_std": 0.0})]) is True
    assert holds(name, [line(1, {"action_std": 0.03}), line(2, {"action_std": 0.029})]) is False
    assert holds(name, [line(1, {"action_std": 0.0}, accepted=[1])]) is False
    assert holds(name, [line(1, {"action_std": None})]) is None, "an untrained residual has no actions"


def test_retention_is_three_rounds_running_below_seven_tenths() -> None:
    name, full, few = "clients stay away", {"accepted": list(range(10))}, {"accepted": list(range(6))}
    enough = {"accepted": list(range(7))}
    assert holds(name, [line(1, **full), *[line(t, **few) for t in (2, 3, 4)]]) is True
    assert holds(name, [line(1, **full), line(2, **few), line(3, **enough), line(4, **few), line(5, **few)]) is False
    refused = {"accepted": [0] * 4, "refused": [refusal(1, "stale")] * 3}
    assert holds(name, [line(1, **full), *[line(t, **refused) for t in (2, 3, 4)]]) is False, "who was refused has come"


def test_unsteady_weights() -> None:
    name = "weights jump from round to round"

    def told(second: float) -> list[Any]:
        return [client(1, judged={"action": 0.5}), client(2, judged={"action": second})]

    assert holds(name, [line(1)], told(0.66)) is True and holds(name, [line(1)], told(0.64)) is False
    assert holds(name, [line(1)], [client(1, judged={"action": 0.5})]) is None


def test_a_swinging_loss_rises_by_more_than_fifteen_percent() -> None:
    name = "the global loss swings"
    assert holds(name, [line(t, validation={"loss": loss}) for t, loss in enumerate([1.0, 1.16, 1.0], 1)]) is True
    assert holds(name, [line(t, validation={"loss": loss}) for t, loss in enumerate([1.0, 1.15, 0.5], 1)]) is False
    assert holds(name, [line(1, validation={"loss": 1.0}), line(2, validation=None)]) is None
    packed = [line(t, {"weight_std": 0.02}, test={"loss": loss}) for t, loss in enumerate([1.0, 2.0, 1.0], 1)]
    assert "with weights all alike in round 2" in found(name, packed).figures


def test_a_radius_that_doubles() -> None:
    name = "the SAM radius jumps"
    assert holds(name, [line(1)], [client(1, signals={"rho": 0.01}), client(2, signals={"rho": 0.021})]) is True
    assert holds(name, [line(1)], [client(1, signals={"rho": 0.01}), client(2, signals={"rho": 0.02})]) is False
    assert holds(name, [line(1)], [client(1)]) is None


def test_most_rejected_for_ten_rounds() -> None:
    name = "most clients are rejected for long"
    assert holds(name, [line(t, {"rejected_share": 0.51}) for t in range(1, 11)]) is True
    assert holds(name, [line(t, {"rejected_share": 0.51 if t != 5 else 0.5}) for t in range(1, 15)]) is False
    told = found(name, [line(t, {"rejected_share": 0.6}) for t in range(1, 11)], [client(1, judged={"direction": 0.95})])
    assert "0.95" in told.figures


def test_no_progress_for_a_hundred_rounds() -> None:
    name = "nothing has improved for a hundred rounds"
    losses = [1.0, 0.5, *[0.6] * 120]
    assert holds(name, [line(t, validation={"loss": loss}) for t, loss in enumerate(losses[:102], 1)]) is True
    assert holds(name, [line(t, validation={"loss": loss}) for t, loss in enumerate(losses[:101], 1)]) is False
    assert holds(name, [line(t, validation={"loss": loss}) for t, loss in enumerate(losses[:50], 1)]) is None


def test_rejections_that_fall_on_slow_devices() -> None:
    name = "rejections fall on one kind of device"

    def told(slow_gone: int) -> list[Any]:
        slow = [client(t, 1, latency=9.0, code="E111" if t <= slow_gone else None) for t in range(1, 11)]
        return [*slow, *[client(t, 2, latency=1.0, code="E111" if t <= 1 else None) for t in range(1, 11)]]

    assert holds(name, [line(1)], told(4)) is True and holds(name, [line(1)], told(3)) is False
    assert holds(name, [line(1)], [client(1, latency=1.0)]) is None


def test_breaker_shadow_and_quarantine_are_told_from_events() -> None:
    staged = {"stage": "on", "used": "policy", "loss_policy": 1.0}
    opened = line(2, {**staged, "events": [{"event": "breaker_opened", "cause": "stalled", "until": 13}]})
    assert found("the breaker opened", [line(1, staged), opened]).figures == "stalled 1 times (round 2)"
    assert holds("the breaker opened", [line(1, staged)]) is False and holds("the breaker opened", [line(1)]) is None
    assert holds("the policy is not scored", [line(1, {**staged, "loss_policy": None})]) is True
    assert holds("the policy is not scored", [line(1, staged)]) is False
    put = line(3, {"events": [{"event": "quarantined", "client": 7, "until": 14}]})
    assert found("clients are in quarantine", [put]).figures == "clients 7" and holds("clients are in quarantine", [line(1)]) is False


def test_the_same_clients_left_out_and_free_riders_are_named() -> None:
    out = [line(t, refused=[refusal(2, "opposed")]) for t in range(1, 6)]
    assert "clients 2 " in found("the same clients are left out again and again", out).figures
    assert holds("the same clients are left out again and again", out[:4]) is False
    riders = [line(1, refused=[refusal(4, "replayed"), refusal(5, "copied")]), line(2, refused=[refusal(4, "no_update")])]
    assert found("clients send no work of their own", riders).figures == "clients 4, 5: replayed 1 times, copied 1 times, no_update 1 times"


@pytest.mark.parametrize("rounds", [[], [{"round": 1}], [{"round": 1, "trust": None, "validation": {"loss": None}, "refused": []}]])
def test_records_that_lack_everything_are_no_error(rounds: list[Any]) -> None:
    told = diagnose(Record({}, rounds=rounds, clients=[{"kind": "train", "round": 1, "client": 3}]))
    assert len(told) == len(RULES) and not any(each.holds for each in told)


OPTIONS: dict[str, Any] = {
    "partition": fa.DirichletPerClass(alpha=1.0, clients=10),
    "cohort": 10,
    "rounds": 12,
    "local": fa.LocalPlan(lr=0.05, epochs=2, batch_size=20),
}


def test_a_clean_run_holds_nothing(tmp_path: Path) -> None:
    run = fa.run(fa.digits("softmax"), fa.FedAvg(), policy=fa.Residual(weights="untrained"), **OPTIONS)
    assert [each.name for each in diagnose(run.record) if each.holds] == []


def test_free_riders_and_a_policy_that_fails_are_found_in_a_real_run() -> None:
    class Fails(fa.Policy):
        is_learned = True

        def weigh(self, cohort: Any, memory: Any) -> Any:
            raise RuntimeError("no weights")

    run = fa.run(
        fa.digits("softmax"), fa.FedAvg(), policy=Fails(), screen=fa.RuleGuard(), attack=fa.FreeRider(clients=(3,), kind="zero"), **OPTIONS
    )
    told = {each.name: each for each in diagnose(run.record) if each.holds}
    assert "exception" in told["the breaker opened"].figures and told["clients send no work of their own"].figures.startswith("clients 3:")
