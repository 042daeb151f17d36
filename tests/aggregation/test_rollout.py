"""rollout.py: stages, the breaker's clock, and the limits that open it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch

from fedaccord.aggregation import rollout
from fedaccord.aggregation.rollout import Rollout


def after(rules: Rollout, differences: list[float]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    facts, events = rollout.start(rules), list[dict[str, Any]]()
    for difference in differences:
        facts, new = rollout.scored(rules, json.loads(json.dumps(facts)), difference)
        events += new
    return facts, events


def test_by_rule_a_harmless_policy_goes_from_shadow_to_on_step_by_step() -> None:
    facts, events = after(Rollout("shadow", promotion="rule"), [0.0] * 400)
    assert facts["stage"] == "on"
    steps = [(event["to"], event["step"]) for event in events]
    assert steps == [("canary", 0), ("switchback", 0), ("switchback", 1), ("switchback", 2), ("on", 0)]


def test_without_the_rule_only_an_operator_promotes() -> None:
    rules = Rollout("shadow")
    facts, events = after(rules, [0.05] * 400)
    assert facts["stage"] == "shadow" and events == []
    facts, events = rollout.promoted(rules, facts)
    assert facts["stage"] == "canary" and events == [{"event": "promoted", "from": "shadow", "to": "canary", "step": 0}]
    facts, events = rollout.rolled_back(facts)
    assert facts["stage"] == "shadow" and events[0]["event"] == "rolled_back"
    assert rollout.rolled_back(facts)[1] == [] and rollout.promoted(rules, {**facts, "stage": "on"})[1] == []


def test_a_stage_lasts_for_its_rounds_however_good_the_policy_is() -> None:
    facts, _ = after(Rollout("shadow", promotion="rule", min_rounds=20), [1.0] * 19)
    assert facts["stage"] == "shadow"


def test_a_policy_that_is_worse_by_more_than_the_margin_goes_back_into_the_shadow() -> None:
    facts, events = after(Rollout("on", margin=0.02), [-0.1] * 60)
    assert facts["stage"] == "shadow" and [event["event"] for event in events] == ["demoted"]
    facts, events = after(Rollout("on", margin=0.02), [-0.01, 0.01] * 200)
    assert facts["stage"] == "on" and events == []


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_switchback_uses_the_policy_in_its_share_of_the_rounds_drawn_by_name(share: float) -> None:
    rules = Rollout("switchback", switchback_shares=(share,))
    used = [rollout.plan(rules, rollout.start(rules), t, 5) for t in range(1, 401)]
    assert abs(sum(plan.uses for plan in used) / 400 - share) < 0.08 and all(plan.asks for plan in used)
    assert used == [rollout.plan(rules, rollout.start(rules), t, 5) for t in range(1, 401)]


def test_in_the_canary_stage_a_twentieth_of_the_clients_has_the_policys_weights() -> None:
    by_size = torch.full((40,), 1 / 40, dtype=torch.float64)
    weights = torch.linspace(1, 2, 40, dtype=torch.float64)
    mixed = rollout.canary_weights(Rollout(), weights / weights.sum(), by_size, 3, 0)
    assert int((mixed / mixed.median() - 1).abs().gt(1e-12).sum()) == 2 and float(mixed.sum()) == pytest.approx(1)
    one = torch.ones(1, dtype=torch.float64)
    assert torch.equal(rollout.canary_weights(Rollout(), torch.zeros(1, dtype=torch.float64), one, 3, 0), one), "somebody has to count"


def test_the_breaker_waits_ten_rounds_then_tries_one_and_waits_twice_as_long_each_time_it_fails() -> None:
    rules, facts = Rollout(), rollout.start(Rollout())
    facts, event = rollout.tripped(rules, facts, 5, "exception")
    assert event == {"event": "breaker_opened", "cause": "exception", "until": 16}
    assert [rollout.plan(rules, facts, t, 0).asks for t in (6, 15, 16)] == [False, False, True]
    facts, event = rollout.tripped(rules, facts, 16, "exception")
    assert event["until"] == 37
    for _ in range(9):
        facts, event = rollout.tripped(rules, facts, 100, "exception")
    assert event["until"] == 100 + 160 + 1
    facts, events = rollout.went_well(facts, facts["open_until"])
    assert events == [{"event": "breaker_closed"}]
    assert rollout.tripped(rules, facts, 300, "exception")[1]["until"] == 311


def test_a_policy_that_rejects_too_many_two_rounds_running_opens_it() -> None:
    rules, facts = Rollout(), rollout.start(Rollout())
    opens = []
    for share in (0.5, 0.3, 0.5, 0.41):
        facts, is_open = rollout.rejecting(rules, facts, share)
        opens.append(is_open)
    assert opens == [False, False, False, True]


@pytest.mark.parametrize(
    ("raw", "cause"),
    [
        ([float("nan"), 1.0, 1.0], "bad_weights"),
        ([float("inf"), 1.0, 1.0], "bad_weights"),
        ([-1.0, 1.0, 1.0], "bad_weights"),
        ([1.0, 1.0], "bad_weights"),
        ([1.0, 0.001, 0.001], "collapsed"),
        ([1.0, 0.5, 0.5], None),
        ([0.0, 0.0, 0.0], None),
    ],
)
def test_weights_that_are_none_or_all_one_clients(raw: list[float], cause: str | None) -> None:
    by_size = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert rollout.fault_of(Rollout(), torch.tensor(raw, dtype=torch.float64), by_size) == cause


def test_one_client_that_is_nearly_everything_by_size_is_no_collapse() -> None:
    by_size = torch.tensor([0.97, 0.03], dtype=torch.float64)
    assert rollout.fault_of(Rollout(), by_size, by_size) is None
    assert rollout.fault_of(Rollout(), torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)) is None


def test_who_thinks_too_long_by_the_clock_is_too_late() -> None:
    ticks = iter([0.0, 0.6])
    with pytest.raises(TimeoutError):
        rollout.in_time(lambda: 1, 0.5, lambda: next(ticks))
    ticks = iter([0.0, 0.4])
    assert rollout.in_time(lambda: 1, 0.5, lambda: next(ticks)) == 1


def test_who_never_answers_is_not_waited_for() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        rollout.in_time(lambda: time.sleep(1.5), 0.05, time.monotonic)
    assert time.monotonic() - started < 1.0


def test_what_it_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        rollout.in_time(lambda: 1 / 0, 0.5, time.monotonic)
