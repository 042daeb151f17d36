"""All rules, and what they say of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.diagnosis.alerts import ClientsStayAway, Collapsed, LossSwings, NoProgress, OverCautious, RadiusJumps, WeightsJump
from fedaccord.diagnosis.clients import FreeRiders, LeftOutAlways, Quarantined
from fedaccord.diagnosis.devices import RejectionsByDevice, WeightsByDevice
from fedaccord.diagnosis.finding import Finding, Rule
from fedaccord.diagnosis.rollout import BreakerOpened, HistoryGrows, MostlyRejected, NotScored
from fedaccord.diagnosis.seen import Seen
from fedaccord.runs import Record

RULES: tuple[Rule, ...] = (
    OverCautious(),
    Collapsed(),
    ClientsStayAway(),
    WeightsJump(),
    LossSwings(),
    RadiusJumps(),
    MostlyRejected(),
    NoProgress(),
    HistoryGrows(),
    WeightsByDevice(),
    RejectionsByDevice(),
    BreakerOpened(),
    NotScored(),
    Quarantined(),
    LeftOutAlways(),
    FreeRiders(),
)


def diagnose(record: Record, facts: Mapping[str, Any] | None = None, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """What the rules find, those that hold first, then those of which the records say nothing.

    facts: what the newest checkpoint remembers (`RunFolder.facts`).
    """
    seen = Seen(record.rounds, record.clients, facts or {})
    return sorted((rule.look(seen) for rule in rules), key=lambda each: {True: 0, None: 1, False: 2}[each.holds])
