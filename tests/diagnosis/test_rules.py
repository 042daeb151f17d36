"""diagnosis/: each rule just below and just above its threshold, on records made by hand; whatever is missing is no error."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.aggregation.alerts import Alerts
from fedaccord.diagnosis import RULES, Finding, diagnose, in_quarantine
from fedaccord.diagnosis.alerts import Collapsed
from fedaccord.diagnosis.seen import Seen
from fedaccord.runs import Record

Lines = list[dict[str, Any]]


def line(t: int, trust: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Of rounds.jsonl: three clients asked, all of them accepted."""
    plain = {"cohort": [0, 1, 2], "accepted": [0, 1, 2], "refused": [], "absent": [], "validation": None, "test": None}
    return {**plain, "round": t, "trust": trust or {}, **more}


def client(t: int, client: int = 0, **more: Any) -> dict[str, Any]:
    """Of clients.jsonl."""
    plain = {"kind": "train", "accepted": True, "code": None, "signals": {}, "judged": {}, "latency": None, "is_weak": False}
    return {**plain, "round": t, "client": client, "update_norm": 1.0, **more}


def refusal(client: int, code: str, reason: str) -> dict[str, Any]:
    return {"client": client, "code": code, "reason": reason, "message": f"{code} {reason}"}


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"event": kind, **more}


def found(rule: str, rounds: Lines, clients: Lines | None = None, facts: dict[str, Any] | None = None) -> Finding:
    return next(each for each in diagnose(Record({}, rounds=rounds, clients=clients or []), facts) if each.rule == rule)


def holds(rule: str, rounds: Lines, clients: Lines | None = None) -> bool | None:
    return found(rule, rounds, clients).holds


def losses(*values: float | None, split: str = "validation") -> Lines:
    return [line(t, **{split: None if value is None else {"loss": value}}) for t, value in enumerate(values, 1)]


# The alerts


def test_over_cautious_is_many_rejected_with_actions_that_hardly_differ() -> None:
    rule = "over_cautious"
    told = found(rule, [line(4, {"rejected_share": 0.31, "action_std": 0.049, "weight_std": 0.4})])
    assert told.holds is True and told.rounds == (4,) and "round 4" in told.figures
    assert holds(rule, [line(1, {"rejected_share": 0.30, "action_std": 0.049})]) is False
    assert holds(rule, [line(1, {"rejected_share": 0.31, "action_std": 0.05, "weight_std": 0.01})]) is False, (
        "shares of many are always alike"
    )
    assert holds(rule, [line(1, {"rejected_share": 0.31, "action_std": None, "weight_std": 0.049})]) is True, "it has no actions"
    assert holds(rule, [line(1)]) is None


def test_collapsed_is_actions_alike_in_most_of_the_rounds_that_have_any() -> None:
    rule = "collapsed"
    assert holds(rule, [line(1, {"action_std": 0.029}), line(2, {"action_std": 0.0}), line(3, {"action_std": 0.03})]) is True
    assert holds(rule, [line(1, {"action_std": 0.03}), line(2, {"action_std": 0.029})]) is False
    assert holds(rule, [line(1, {"action_std": 0.029}), line(2, {"action_std": None}), line(3)]) is True
    assert holds(rule, [line(1, {"action_std": None})]) is None, "an untrained policy has no actions"


def test_the_thresholds_are_fields() -> None:
    seen = Seen([line(1, {"action_std": 0.05})], [])
    assert Collapsed().look(seen).holds is False and Collapsed(Alerts(collapsed_std=0.06)).look(seen).holds is True


def test_retention_is_three_rounds_running_below_seven_tenths_of_round_one() -> None:
    rule, ten = "retention", {"cohort": list(range(10))}

    def answering(*counts: int) -> Lines:
        return [line(t, **ten, absent=list(range(count, 10))) for t, count in enumerate(counts, 1)]

    told = found(rule, answering(10, 6, 6, 6, 6))
    assert told.holds is True and told.rounds == (4, 5) and "0.60 of round 1's share" in told.figures
    assert holds(rule, answering(10, 7, 7, 7)) is False
    assert holds(rule, answering(10, 6, 6, 7, 6, 6)) is False
    assert holds(rule, answering(5, 4, 4, 4)) is False, "0.8 of round 1"
    assert holds(rule, answering(0, 4, 4, 4)) is None
    smaller = [line(1, **ten), *[line(t, cohort=[0, 1, 2]) for t in (2, 3, 4)]]
    assert holds(rule, smaller) is False, "fewer were asked, and all came"
    gone = [line(1, **ten), *[line(t, **ten, accepted=[0], refused=[refusal(1, "E117", "stale")] * 9) for t in (2, 3, 4)]]
    assert holds(rule, gone) is False, "who was refused has come"


def test_stability_is_how_far_each_clients_action_moves_between_its_rounds() -> None:
    rule = "stability"

    def told(second: float) -> Lines:
        return [client(1, judged={"action": 0.5}), client(3, judged={"action": second}), client(3, 1, judged={"action": 0.0})]

    assert found(rule, [line(1)], told(0.66)).rounds == (3,) and holds(rule, [line(1)], told(0.64)) is False
    drifting = [client(t, judged={"action": 0.1 * t}) for t in range(1, 6)]
    assert holds(rule, [line(1)], drifting) is False, "against its last one, not its first"
    assert holds(rule, [line(1)], [client(1, judged={"action": 0.5})]) is None


def test_a_swinging_loss_rises_by_more_than_fifteen_percent() -> None:
    rule = "swing"
    told = found(rule, losses(1.0, 1.16, 1.0, 1.3))
    assert told.holds is True and told.rounds == (2, 4) and "2 rounds (2, 4), at the most by 30% (round 4)" in told.figures
    assert holds(rule, losses(1.0, 1.15, 0.5)) is False
    assert holds(rule, losses(1.0, 1.1)) is None
    assert holds(rule, losses(1.0, None, 1.2, 1.0)) is True, "rounds that were not evaluated lie between"
    alike = losses(1.0, 2.0, 1.0)
    alike[1]["trust"] = {"action_std": 0.02, "weight_std": 0.5}
    assert "all alike in round 2" in found(rule, alike).figures and "clip of 0.3" in found(rule, alike).advice
    assert "all alike" not in found(rule, losses(1.0, 2.0, 1.0)).figures


def test_losses_on_validation_and_test_data_are_never_mixed() -> None:
    rounds = losses(1.0, None, 1.0, split="validation")
    rounds[1]["test"] = {"loss": 2.0}
    rounds.append(line(4, validation={"loss": 1.0}))
    assert holds("swing", rounds) is False
    assert "test loss" in found("swing", losses(1.0, 2.0, 1.0, split="test")).figures


def test_a_radius_that_doubles() -> None:
    rule = "radius"
    one, two = {"signals": {"rho": 0.01}}, {"signals": {"rho": 0.021}}
    assert found(rule, [line(1)], [client(1, **one), client(2, **two)]).rounds == (2,)
    assert holds(rule, [line(1)], [client(1, **one), client(2, signals={"rho": 0.02})]) is False
    assert holds(rule, [line(1)], [client(1, **one), client(2, **two), client(2, 1, signals={"rho": 0.018})]) is False, "the mean is 0.0195"
    refused = client(2, 1, signals={"rho": 9.0}, accepted=False)
    assert holds(rule, [line(1)], [client(1, **one), client(2, **one), refused]) is False
    assert holds(rule, [line(1)], [client(1)]) is None


def test_no_progress_is_a_best_loss_of_a_hundred_rounds_ago() -> None:
    rule, values = "no_progress", [1.0, 0.5, *[0.6] * 120]
    assert found(rule, losses(*values[:102])).rounds == (2,)
    assert holds(rule, losses(*values[:101])) is False
    assert holds(rule, losses(*values[:100])) is None
    assert "Stop here" in found(rule, losses(*values)).advice
    behind = [{**each, "trust": {"stage": "on"}} for each in losses(*values)]
    assert "0.6" in found(rule, behind).advice


# The policy


def test_most_rejected_for_ten_rounds_running_or_the_breaker_opening_over_it_twice() -> None:
    rule = "mostly_rejected"
    ten = [line(t, {"rejected_share": 0.51}, refused=[refusal(t % 2, "E111", "no_weight")]) for t in range(1, 11)]
    told = found(rule, ten, [client(1, 1, judged={"direction": 0.95}), client(1, 2, judged={"direction": -1.0})])
    assert told.holds is True and told.rounds == tuple(range(1, 11)) and told.clients == (1, 0) and "is 0.95" in told.figures
    assert holds(rule, ten[:9]) is False
    assert holds(rule, [line(t, {"rejected_share": 0.51 if t != 5 else 0.5}) for t in range(1, 14)]) is False
    opened = [line(t, {"stage": "on", "events": [event("breaker_opened", cause="rejects", until=t + 11)]}) for t in (2, 13)]
    assert found(rule, opened).rounds == (2, 13) and holds(rule, opened[:1]) is False
    assert holds(rule, [line(1)]) is None


def test_what_is_remembered_of_a_client_stays_at_three_norms() -> None:
    def told(*lengths: int) -> Finding:
        clients = {str(c): {"norms": [1.0] * length} for c, length in enumerate(lengths)}
        return found("memory", [line(1)], facts={"policy": {"clients": clients}})

    assert told(3, 2).holds is False and told(3, 4, 5).clients == (1, 2)
    assert holds("memory", [line(1)]) is None and told().holds is None


def test_the_breaker_says_why_it_opened_and_how_it_stands() -> None:
    staged = {"stage": "on", "used": "policy", "breaker": "closed", "loss_policy": 1.0}
    opened = {**staged, "breaker": "open", "events": [event("breaker_opened", cause="exception", detail="RuntimeError: x", until=13)]}
    told = found("breaker", [line(1, staged), line(2, opened)])
    assert told.figures == "exception once, in round 2; now it is open; last error: RuntimeError: x" and told.rounds == (2,)
    assert holds("breaker", [line(1, staged)]) is False and holds("breaker", [line(1)]) is None


def test_a_policy_without_validation_data_is_not_scored() -> None:
    staged = {"stage": "shadow", "used": "by_size", "breaker": "closed", "loss_policy": None}
    told = found("not_scored", [line(1, staged, validation_reason="the task has no validation data")])
    assert told.holds is True and "the task has no validation data" in told.figures
    assert holds("not_scored", [line(1, staged), line(2, {**staged, "loss_policy": 1.0})]) is False
    assert holds("not_scored", [line(1, {**staged, "breaker": "open"})]) is None, "it was never asked"
    assert holds("not_scored", [line(1)]) is None


# The clients


def test_quarantine_holds_while_somebody_is_not_asked() -> None:
    rule = "quarantine"
    put = line(3, {"events": [event("quarantined", client=7, until=14)]})
    told = found(rule, [put])
    assert told.holds is True and told.clients == (7,) and "client 7 before round 14" in told.figures
    assert holds(rule, [put, line(12)]) is True
    over = found(rule, [put, line(13)])
    assert over.holds is False and "client 7 were" in over.figures, "round 14 may ask it"
    released = line(5, {"events": [event("released", client=7, by="operator")]})
    assert holds(rule, [put, released]) is False
    again = line(9, {"events": [event("quarantined", client=7, until=30)]})
    assert in_quarantine(Seen([put, released, again], [])) == {7: 30}
    assert in_quarantine(Seen([put, released, again], []), t=4) == {7: 14}
    assert holds(rule, [line(1)]) is False


def test_those_whom_a_screen_leaves_out_again_and_again_are_named() -> None:
    rule = "left_out"
    out = [line(t, refused=[refusal(2, "E116", "opposed")]) for t in range(1, 6)]
    assert found(rule, out).clients == (2,) and "client 2 in 5 of 5 rounds" in found(rule, out).figures
    assert holds(rule, out[:4]) is False
    assert holds(rule, [*out, line(6), line(7)]) is False, "five of seven"
    assert holds(rule, [*out, line(6, cohort=[0, 1]), *[line(t, absent=[2]) for t in (7, 8)]]) is True, "it was not there"
    guarded = [*out, line(6, refused=[refusal(2, "E101", "non_finite")])]
    assert holds(rule, guarded) is False, "it does not look honest"
    krum = [line(t, refused=[refusal(c, "E116", "not_selected") for c in (1, 2)]) for t in range(1, 9)]
    told = found(rule, krum)
    assert told.holds is None and "67% of all uploads" in told.figures
    assert holds(rule, [line(1)]) is False and holds(rule, []) is None


def test_free_riders_are_certain_by_repeats_and_likely_by_coming_again() -> None:
    rule = "free_riders"
    copied = found(rule, [line(1, refused=[refusal(5, "E115", "copied")])], [client(1, 5)])
    assert copied.holds is True and copied.clients == (5,) and copied.figures == "client 5: copied once"

    def likely(times: int, rounds: int) -> bool | None:
        gone = [line(t, refused=[refusal(4, "E116", "no_update")] if t <= times else []) for t in range(1, rounds + 1)]
        return holds(rule, gone, [client(t, 4, accepted=t > times) for t in range(1, rounds + 1)])

    assert likely(3, 5) is True
    assert likely(2, 2) is False and likely(3, 6) is False
    nothing = [client(t, 1, update_norm=0.0) for t in (1, 2, 3)]
    assert "client 1: zero 3 times" in found(rule, [line(1)], nothing).figures and holds(rule, [line(1)], nothing[:2]) is False
    assert holds(rule, [line(1)]) is None


# The devices


def devices(slow_gone: int, others_gone: int = 1, **kind: Any) -> Lines:
    told = [client(t, 1, code="E111" if t <= slow_gone else None, accepted=t > slow_gone, **kind) for t in range(1, 11)]
    return [*told, *[client(t, 2, latency=1.0, code="E116" if t <= others_gone else None) for t in range(1, 11)]]


@pytest.mark.parametrize("kind", [{"latency": 9.0}, {"is_weak": True}])
def test_rejections_that_fall_on_one_kind_of_device(kind: dict[str, Any]) -> None:
    rule = "rejections_by_device"
    told = found(rule, [line(1)], devices(4, **kind))
    assert told.holds is True and "40% of the updates of" in told.figures and "10% of the updates of" in told.figures
    assert holds(rule, [line(1)], devices(3, **kind)) is False, "not more than three times the others'"
    assert holds(rule, [line(1)], devices(2, 0, **kind)) is False, "not more than a fifth"
    assert holds(rule, [line(1)], devices(4, **kind)[1:]) is None, "nine uploads"
    malformed = [client(t, 1, code="E101", accepted=False, **kind) for t in range(11, 21)]
    assert holds(rule, [line(1)], devices(3, **kind) + malformed) is False, "the guard's refusals are no opinion of a device"


def test_without_two_kinds_of_device_nothing_can_be_said() -> None:
    for rule in ("rejections_by_device", "weights_by_device"):
        assert holds(rule, [line(1)], devices(4, latency=1.0)) is None
        assert holds(rule, [line(1)], devices(4)) is None


def test_weights_that_depend_on_the_kind_of_device() -> None:
    def told(weak: float, count: int = 10) -> Finding:
        slow = [client(t, 1, is_weak=True, judged={"action": weak}) for t in range(count)]
        return found("weights_by_device", [line(1)], slow + [client(t, 2, judged={"action": 0.5}) for t in range(10)])

    assert told(0.29).holds is True and "0.29 for weak devices" in told(0.29).figures
    assert told(0.31).holds is False and told(0.71).holds is True and told(0.1, count=9).holds is None


# Whatever the records


def full() -> Record:
    """Lines in which every rule finds something to look at."""
    trust = {
        "rejected_share": 0.5,
        "weight_std": 0.1,
        "action_std": 0.2,
        "stage": "on",
        "used": "policy",
        "breaker": "closed",
        "loss_policy": 1.0,
        "events": [event("quarantined", client=1, until=9), event("breaker_opened", cause="rejects", until=9), event("released", client=1)],
    }
    refused = [refusal(1, "E115", "copied"), refusal(2, "E116", "opposed"), refusal(0, "E111", "no_weight")]
    rounds = [line(t, copy.deepcopy(trust), refused=copy.deepcopy(refused), validation={"loss": 1.0 + t % 2}) for t in range(1, 5)]
    judged = {"action": 0.4, "direction": 0.1}
    clients = [
        client(t, c, signals={"rho": 0.1}, judged=dict(judged), latency=float(c), is_weak=c == 1) for t in range(1, 5) for c in range(3)
    ]
    return Record({}, rounds=rounds, clients=clients)


FACTS: dict[str, Any] = {"policy": {"clients": {"1": {"norms": [1.0]}}}}


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inside for place in places(each, (*at, key)))]


@settings(max_examples=100)
@given(st.data())
def test_fields_that_are_missing_or_none_never_make_a_rule_fail(data: st.DataObject) -> None:
    record = full()
    records = {"rounds": record.rounds, "clients": record.clients, "facts": copy.deepcopy(FACTS)}
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(
            st.sampled_from([each for each in places(records) if len(each) > 1 and not (len(each) == 2 and each[0] != "facts")])
        )
        holder: Any = records
        for key in place[:-1]:
            holder = holder[key]
        if data.draw(st.booleans()) and isinstance(holder, dict):
            del holder[place[-1]]
        else:
            holder[place[-1]] = data.draw(st.sampled_from([None, float("inf"), "?", [], {}]))
    told = diagnose(Record({}, rounds=records["rounds"], clients=records["clients"]), records["facts"])
    assert len(told) == len(RULES)
    json.dumps([each.record() for each in told], allow_nan=False)


@pytest.mark.parametrize("rounds", [[], [{}], [{"round": 1}], [{"round": 1, "trust": None, "validation": {"loss": None}, "refused": None}]])
def test_records_that_lack_everything_hold_nothing(rounds: Lines) -> None:
    told = diagnose(Record({}, rounds=rounds, clients=[{"kind": "train", "round": 1, "client": 3}, {"kind": "train"}, {}]))
    assert len(told) == len(RULES) and not any(each.holds for each in told)
    assert all(each.figures and each.advice and each.name for each in told)


def test_rules_have_names_of_their_own_and_those_that_hold_come_first() -> None:
    assert len({rule.rule for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    order = [each.holds for each in diagnose(full(), FACTS)]
    assert order == sorted(order, key=lambda each: {True: 0, None: 1, False: 2}[each]) and True in order
