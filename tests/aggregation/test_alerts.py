"""alerts.py: what is told of a round, and the few numbers that the next one needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedaccord.aggregation.alerts import Alerts, Seen
from fedaccord.core.reports import ClientReport, alert_kind


def seen(
    asked: int = 10, absent: int = 0, loss: float | None = None, rho: float | None = None, said: tuple[str, ...] = (), **trust: Any
) -> Seen:
    reports = [ClientReport(1, client, 10, signals={} if rho is None else {"rho": rho}) for client in range(3)]
    return Seen(asked, absent, reports, loss, trust, said)


def told(*rounds: Seen, alerts: Alerts | None = None) -> list[tuple[str, ...]]:
    """Round after round, the facts through JSON as in a checkpoint."""
    facts: dict[str, Any] = {}
    found = []
    for each in rounds:
        said, facts = (alerts or Alerts()).told(each, json.loads(json.dumps(facts)))
        found.append(said)
    return found


def kinds(*rounds: Seen) -> list[list[str]]:
    return [[alert_kind(alert) for alert in said] for said in told(*rounds)]


def test_a_quiet_round_tells_nothing() -> None:
    assert told(seen(), seen(loss=1.0, rho=0.1), seen(rejected_share=0.0, action_std=0.3, weight_std=0.1)) == [(), (), ()]


@pytest.mark.parametrize(
    ("trust", "expected"),
    [
        ({"rejected_share": 0.31, "action_std": 0.049, "weight_std": 0.2}, ["over-cautious policy"]),
        ({"rejected_share": 0.30, "action_std": 0.049, "weight_std": 0.2}, []),
        ({"rejected_share": 0.31, "action_std": 0.05, "weight_std": 0.01}, []),
        ({"rejected_share": 0.31, "action_std": None, "weight_std": 0.01}, ["over-cautious policy"]),
        ({"rejected_share": 0.0, "action_std": 0.029, "weight_std": 0.2}, ["collapsed policy"]),
        ({"rejected_share": 0.0, "action_std": 0.03, "weight_std": 0.2}, []),
        ({"rejected_share": 0.0, "action_std": None, "weight_std": 0.0}, []),
    ],
)
def test_what_a_policy_does_is_held_against_its_thresholds(trust: dict[str, Any], expected: list[str]) -> None:
    assert kinds(seen(**trust)) == [expected]


def test_retention_counts_rounds_running_from_round_one() -> None:
    few, enough = seen(absent=4), seen(absent=3)
    assert kinds(seen(), few, few, few, few, enough, few) == [[], [], [], ["clients stay away"], ["clients stay away"], [], []]
    assert kinds(seen(absent=5), *[seen(absent=6)] * 4) == [[]] * 5, "0.8 of round 1's"
    assert kinds(seen(asked=0), seen(), few, few, few)[-1] == ["clients stay away"], "round 1 asked nobody"


def test_the_loss_is_held_against_the_last_one_that_was_measured() -> None:
    assert told(seen(loss=1.0), seen(loss=1.151))[1] == ("the validation loss rose: 1 to 1.151, by 15%",)
    assert told(seen(loss=1.0), seen(loss=1.149))[1] == () and told(seen(loss=1.0), seen(loss=0.1))[1] == ()
    assert len(told(seen(loss=1.0), seen(), seen(loss=1.2))[2]) == 1, "not every round is evaluated"


def test_a_radius_that_jumps_is_told_once_whoever_tells() -> None:
    assert told(seen(rho=0.1), seen(rho=0.201))[1] == ("the mean SAM radius jumped to 0.201, 2.0 times the last round's",)
    assert told(seen(rho=0.1), seen(rho=0.2))[1] == ()
    own = "the mean SAM radius jumped to 0.3, 3.0 times the last round's, by 1; absent: 2"
    assert told(seen(rho=0.1), seen(rho=0.3, said=(own, "other")))[1] == (own, "other")


def test_events_that_change_who_counts_are_told_and_orders_are_not() -> None:
    events = [
        {"event": "breaker_opened", "cause": "harm", "until": 12},
        {"event": "quarantined", "client": 3, "until": 14},
        {"event": "quarantined", "client": 5, "until": 14},
        {"event": "all_rejected"},
        {"event": "demoted", "from": "on", "to": "shadow", "cause": "harm"},
        {"event": "promoted", "from": "shadow", "to": "on", "by": "operator"},
        {"event": "released", "client": 3, "by": "operator"},
    ]
    said = told(seen(events=events))[0]
    assert said[0] == "breaker opened: harm; FedAvg's weights before round 12" and len(said) == 5
    assert [each for each in said if "quarantine" in each] == [f"quarantine: client {c} is not asked before round 14" for c in (3, 5)]
