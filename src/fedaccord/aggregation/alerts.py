"""Alerts: what an operator should know of a round while the run goes, from the round itself and a few numbers of the rounds before it.

The conditions stand here once; `fedaccord diagnose` holds the same ones against a whole run's records. They change nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Gt

from fedaccord.core.algorithm import Positive, PositiveCount, Share
from fedaccord.core.reports import ClientReport, alert_kind, number

Facts = Mapping[str, Any]  # {"answered": share of round 1, "few": rounds running, "loss": the last, "radius": the last mean}


class Seen(NamedTuple):
    """One round, as the alerts look at it."""

    asked: int
    absent: int
    accepted: Sequence[ClientReport]
    loss: float | None  # of the new model on the server's validation data; None: not measured in this round
    trust: Mapping[str, Any]  # the round's record of what the pipeline decided
    said: Sequence[str] = ()  # what the method tells itself


@dataclass(frozen=True)
class Alerts:
    """Thresholds.

    Over-cautious: a policy that rejects more than `rejected_share` while its actions differ by less than `over_cautious_std`; of a policy
    without actions, its weights. Collapsed: raw actions in (0, 1) that differ by less than `collapsed_std`. Retention: the share of those
    asked that answers, over round 1's, below `retention` for `retention_rounds` rounds (with cohorts of one size it is the source's ratio
    of counts). Stability: 1 - mean |w - w before| below `stability`, w each client's action. Swing: a loss more than `swing` above the one
    before, relative to it. Radius: a mean SAM radius more than `radius` times the last round's.
    """

    rejected_share: Share = 0.3
    over_cautious_std: Positive = 0.05
    collapsed_std: Positive = 0.03
    retention: Share = 0.7
    retention_rounds: PositiveCount = 3
    stability: Share = 0.85
    swing: Positive = 0.15
    radius: Annotated[float, Gt(1)] = 2.0

    def over_cautious(self, trust: Mapping[str, Any]) -> bool | None:
        """Of one round's record; None where no policy weighed it."""
        rejected, spread = number(trust.get("rejected_share")), spread_of(trust)
        return None if rejected is None or spread is None else rejected > self.rejected_share and spread < self.over_cautious_std

    def collapsed(self, trust: Mapping[str, Any]) -> bool | None:
        """Of one round's record; None where no policy gave several clients actions of its own."""
        spread = number(trust.get("action_std"))
        return None if spread is None else spread < self.collapsed_std

    def few_answer(self, share: float, first: float) -> bool:
        return share < self.retention * first

    def swings(self, before: float, after: float) -> bool:
        return before > 0 and after - before > self.swing * before

    def jumps(self, before: float, after: float) -> bool:
        return before > 0 and after > self.radius * before

    def told(self, seen: Seen, facts: Facts) -> tuple[tuple[str, ...], dict[str, Any]]:
        """(what an operator is told of this round, the facts for the next one). What the method tells stands first, and once."""
        share = 1 - seen.absent / seen.asked if seen.asked else None
        first = number(facts.get("answered")) if facts.get("answered") is not None else share
        few = 0 if share is None or first is None or not self.few_answer(share, first) else int(facts.get("few", 0)) + 1
        radius, loss = mean_radius([report.signals for report in seen.accepted]), number(seen.loss)
        found = [
            *_of_policy(self, seen.trust),
            *_of_events(seen.trust),
            *(
                [f"clients stay away: {few} rounds running with less than {self.retention:g} of round 1's share"]
                if few >= self.retention_rounds
                else []
            ),
            *_of_loss(self, number(facts.get("loss")), loss),
            *_of_radius(self, number(facts.get("radius")), radius),
        ]
        kinds = {alert_kind(each) for each in seen.said}
        now = {"answered": first, "few": few, "loss": loss, "radius": radius}
        return (
            (*seen.said, *(each for each in found if alert_kind(each) not in kinds)),
            {name: facts.get(name) if value is None else value for name, value in now.items()},
        )


def spread_of(trust: Mapping[str, Any]) -> float | None:
    """How far apart a policy holds the clients in one round: the deviation of its actions, or of its weights where it has none."""
    actions = number(trust.get("action_std"))
    return actions if actions is not None else number(trust.get("weight_std"))


def mean_radius(signals: Sequence[Any]) -> float | None:
    """Of the SAM radii that methods report (`rho`); None where none does."""
    radii = [rho for each in signals if isinstance(each, Mapping) and (rho := number(each.get("rho"))) is not None]
    return statistics.fmean(radii) if radii else None


def _of_policy(alerts: Alerts, trust: Mapping[str, Any]) -> Iterator[str]:
    if alerts.over_cautious(trust):
        yield f"over-cautious policy: {trust['rejected_share']:.0%} rejected, and the weights of the others hardly differ"
    if alerts.collapsed(trust):
        yield f"collapsed policy: its actions differ by {trust['action_std']:.2g}, less than {alerts.collapsed_std:g}"


def _of_events(trust: Mapping[str, Any]) -> Iterator[str]:
    for event in trust.get("events", ()):
        if event["event"] == "breaker_opened":
            why = f"{event['cause']} ({event['detail']})" if event.get("detail") else event["cause"]
            yield f"breaker opened: {why}; FedAvg's weights before round {event['until']}"
        elif event["event"] == "demoted":
            yield f"policy demoted: from {event['from']} to {event['to']}, the sequential test shows harm"
        elif event["event"] == "all_rejected":
            yield "policy rejected everybody: the round has FedAvg's weights"
        elif event["event"] == "quarantined":
            yield f"quarantine: client {event['client']} is not asked before round {event['until']}"


def _of_loss(alerts: Alerts, before: float | None, after: float | None) -> Iterator[str]:
    if before is not None and after is not None and alerts.swings(before, after):
        yield f"the validation loss rose: {before:.4g} to {after:.4g}, by {after / before - 1:.0%}"


def _of_radius(alerts: Alerts, before: float | None, after: float | None) -> Iterator[str]:
    if before is not None and after is not None and alerts.jumps(before, after):
        yield f"the mean SAM radius jumped to {after:.3g}, {after / before:.1f} times the last round's"
