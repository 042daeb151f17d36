"""The alerts that go out while a run trains (`aggregation/alerts.py`), and one that needs a number a client, over a whole run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from fedaccord.aggregation.alerts import Alerts, mean_radius
from fedaccord.core.algorithm import PositiveCount, Share
from fedaccord.diagnosis.finding import Finding, Rule, in_rounds
from fedaccord.diagnosis.seen import Client, Seen, many

NO_POLICY = "no policy weighed this run"


@dataclass(frozen=True)
class OverCautious(Rule):
    alerts: Alerts = field(default_factory=Alerts)

    rule: ClassVar[str] = "over_cautious"
    name: ClassVar[str] = "the policy is over-cautious"
    advice: ClassVar[str] = "Raise what a gain is worth in the reward, or lower the policy's reject; who is rejected: fedaccord show RUN"

    def look(self, seen: Seen) -> Finding:
        told = [(t, self.alerts.over_cautious(trust)) for t, trust in seen.trust]
        if all(holds is None for _, holds in told):
            return self.cannot_say(NO_POLICY)
        hit = [t for t, holds in told if holds]
        limits = f"over {self.alerts.rejected_share:.0%} rejected, and weights that differ by less than {self.alerts.over_cautious_std:g}"
        return self.holds(f"{limits} in {in_rounds(hit)}", hit) if hit else self.does_not(f"no round had {limits}")


@dataclass(frozen=True)
class Collapsed(Rule):
    """In most of the rounds in which it said anything: one such round is an alert, and no diagnosis."""

    alerts: Alerts = field(default_factory=Alerts)
    rounds: Share = 0.5

    rule: ClassVar[str] = "collapsed"
    name: ClassVar[str] = "the policy has collapsed"
    advice: ClassVar[str] = "Train it with smaller steps first, then with a wider clip (0.3): fedaccord policy train"

    def look(self, seen: Seen) -> Finding:
        told = [(t, self.alerts.collapsed(trust)) for t, trust in seen.trust]
        spoke = [t for t, holds in told if holds is not None]
        hit = [t for t, holds in told if holds]
        if not spoke:
            return self.cannot_say("no policy gave several clients actions of its own")
        figures = f"its raw actions differ by less than {self.alerts.collapsed_std:g} in {len(hit)} of {len(spoke)} rounds"
        return self.holds(f"{figures}, up to round {hit[-1]}", hit) if len(hit) > self.rounds * len(spoke) else self.does_not(figures)


@dataclass(frozen=True)
class ClientsStayAway(Rule):
    alerts: Alerts = field(default_factory=Alerts)

    rule: ClassVar[str] = "retention"
    name: ClassVar[str] = "clients stay away"
    advice: ClassVar[str] = "See who is absent: fedaccord show RUN; ask more clients a round, or give them longer"

    def look(self, seen: Seen) -> Finding:
        counts = [(t, len(many(line.get("cohort"))), len(many(line.get("absent")))) for t, line in seen.rounds]
        shares = [(t, 1 - absent / asked) for t, asked, absent in counts if asked]
        if not shares:
            return self.cannot_say("no round asked anybody")
        first = shares[0][1]
        if not first:
            return self.cannot_say(f"nobody answered in round {shares[0][0]}")
        hit, running = list[int](), 0
        for t, share in shares:
            running = running + 1 if self.alerts.few_answer(share, first) else 0
            hit += [t] if running >= self.alerts.retention_rounds else []
        least = min(share for _, share in shares) / first
        figures = f"{least:.2f} of round {shares[0][0]}'s share answered at the least"
        rows = f"{self.alerts.retention_rounds} rounds running below {self.alerts.retention:g}"
        return self.holds(f"{figures}; {rows}, in {in_rounds(hit)}", hit) if hit else self.does_not(f"{figures}; never {rows}")


@dataclass(frozen=True)
class WeightsJump(Rule):
    """Not told while the run goes: it needs each client's last action."""

    alerts: Alerts = field(default_factory=Alerts)

    rule: ClassVar[str] = "stability"
    name: ClassVar[str] = "weights jump from round to round"
    advice: ClassVar[str] = (
        "Widen the hysteresis (accept, reject), lower the policy's explore, or raise d of its reward; a linear policy has no memory"
    )

    def look(self, seen: Seen) -> Finding:
        last, moves = dict[Client, float](), defaultdict[int, list[float]](list)
        for t, client, action in seen.judged("action"):
            if client in last:
                moves[t].append(abs(action - last[client]))
            last[client] = action
        stability = {t: 1 - statistics.fmean(each) for t, each in sorted(moves.items())}
        if not stability:
            return self.cannot_say("no client had an action of a policy in two rounds")
        hit = [t for t, value in stability.items() if value < self.alerts.stability]
        figures = f"1 - mean |w - w before| is {min(stability.values()):.2f} at the least"
        return self.holds(f"{figures}, below {self.alerts.stability:g} in {in_rounds(hit)}", hit) if hit else self.does_not(figures)


@dataclass(frozen=True)
class LossSwings(Rule):
    alerts: Alerts = field(default_factory=Alerts)

    rule: ClassVar[str] = "swing"
    name: ClassVar[str] = "the global loss swings"
    advice: ClassVar[str] = "Lower local.lr or the server's, or ask more clients a round"
    of_policy: ClassVar[str] = "The policy is over-fitted: train it with smaller steps, then with a clip of 0.3: fedaccord policy train"

    def look(self, seen: Seen) -> Finding:
        split, losses = seen.losses
        if len(losses) < 3:
            return self.cannot_say("fewer than three rounds have a loss")
        rises = {t: after / before - 1 for (_, before), (t, after) in pairwise(losses) if self.alerts.swings(before, after)}
        if not rises:
            return self.does_not(f"the {split} loss never rose by more than {self.alerts.swing:.0%}")
        worst = max(rises, key=rises.__getitem__)
        hit = list(rises)
        figures = f"the {split} loss rose by more than {self.alerts.swing:.0%} in {in_rounds(hit)}, at the most by {rises[worst]:.0%}"
        figures += f" (round {worst})" if len(hit) > 1 else ""
        alike = {t for t, trust in seen.trust if self.alerts.collapsed(trust)} & set(hit)
        if alike:
            return self.holds(f"{figures}, with the policy's actions all alike in {in_rounds(sorted(alike))}", hit, advice=self.of_policy)
        return self.holds(figures, hit)


@dataclass(frozen=True)
class RadiusJumps(Rule):
    alerts: Alerts = field(default_factory=Alerts)

    rule: ClassVar[str] = "radius"
    name: ClassVar[str] = "the SAM radius jumps"
    advice: ClassVar[str] = "Look at the clients' gradient noise (signals of fedaccord show RUN --client); lower rho_base or rho_max"

    def look(self, seen: Seen) -> Finding:
        signals = defaultdict[int, list[object]](list)
        for t, _, line in seen.uploads:
            if line.get("accepted", True):
                signals[t].append(line.get("signals"))
        means = [(t, mean) for t, each in sorted(signals.items()) if (mean := mean_radius(each)) is not None]
        if len(means) < 2:
            return self.cannot_say("no method reported radii (rho) in two rounds")
        hit = [t for (_, before), (t, after) in pairwise(means) if self.alerts.jumps(before, after)]
        figures = f"more than {self.alerts.radius:g} times the last round's mean"
        return self.holds(f"{figures} in {in_rounds(hit)}", hit) if hit else self.does_not(f"never {figures}")


@dataclass(frozen=True)
class NoProgress(Rule):
    """The lowest loss of the global model is this many rounds old."""

    rounds: PositiveCount = 100

    rule: ClassVar[str] = "no_progress"
    name: ClassVar[str] = "nothing has improved for long"
    advice: ClassVar[str] = "Stop here, or lower the learning rate; the best round's weights are kept"
    of_policy: ClassVar[str] = (
        "The gain is too small a part of the reward: raise its weight (c) to 0.6. Where it comes encrypted, see that the opened sums are "
        "plausible (private_reward in rounds.jsonl), or send it in clear in a test"
    )

    def look(self, seen: Seen) -> Finding:
        split, losses = seen.losses
        if not losses or losses[-1][0] - losses[0][0] < self.rounds:
            return self.cannot_say(f"fewer than {self.rounds} rounds have a loss")
        at, best = min(losses, key=lambda each: each[1])
        figures = f"the lowest {split} loss, {best:.4g}, was in round {at} of {losses[-1][0]}"
        if losses[-1][0] - at < self.rounds:
            return self.does_not(figures)
        return self.holds(figures, [at], advice=self.of_policy if seen.has_policy else None)
