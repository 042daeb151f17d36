"""Whether a kind of device fares differently: rejections that fall on one kind, weights that depend on it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from fedaccord.core.algorithm import Positive, PositiveCount, Share
from fedaccord.core.reports import number
from fedaccord.diagnosis.clients import JUDGED
from fedaccord.diagnosis.finding import Finding, Rule
from fedaccord.diagnosis.seen import Client, Line, Seen

UNKNOWN = "the records know no two kinds of device"


@dataclass(frozen=True)
class RejectionsByDevice(Rule):
    """The source's canary incident: by screen or policy, one kind of device is left out far more than the other."""

    share: Share = 0.2  # of a kind's uploads
    factor: Positive = 3.0  # of the other kind's share
    fewest: PositiveCount = 10  # uploads of a kind

    rule: ClassVar[str] = "rejections_by_device"
    name: ClassVar[str] = "rejections fall on one kind of device"
    advice: ClassVar[str] = (
        "A threshold is too strict for one kind: take a median + 2 std for each kind, and a latency relative to the cohort "
        "(relative_latency of the policy per_client)"
    )

    def look(self, seen: Seen) -> Finding:
        kinds = kind_of(seen)
        if kinds is None:
            return self.cannot_say(UNKNOWN)
        out = defaultdict[str, list[bool]](list)
        for _, client, line in seen.uploads:
            if line.get("code") in (None, *JUDGED):
                out[kinds(client, line)].append(line.get("code") is not None)
        if len(out) < 2 or min(map(len, out.values())) < self.fewest:
            return self.cannot_say(f"one kind of device sent fewer than {self.fewest} uploads")
        shares = {kind: statistics.fmean(each) for kind, each in out.items()}
        figures = "left out are " + ", ".join(f"{share:.0%} of the updates of {kind} devices" for kind, share in sorted(shares.items()))
        low, high = sorted(shares.values())
        return self.holds(figures) if high > self.share and high > self.factor * low else self.does_not(figures)


@dataclass(frozen=True)
class WeightsByDevice(Rule):
    """The policy's raw actions, in (0, 1), of one kind of device and of the other."""

    difference: Share = 0.2
    fewest: PositiveCount = 10  # actions of a kind

    rule: ClassVar[str] = "weights_by_device"
    name: ClassVar[str] = "the policy treats kinds of device differently"
    advice: ClassVar[str] = "It sees latency in seconds: use relative_latency = true (policy per_client), and train it on mixed devices"

    def look(self, seen: Seen) -> Finding:
        kinds = kind_of(seen)
        if kinds is None:
            return self.cannot_say(UNKNOWN)
        lines = {(t, client): line for t, client, line in seen.uploads}
        given = defaultdict[str, list[float]](list)
        for t, client, action in seen.judged("action"):
            given[kinds(client, lines[t, client])].append(action)
        if len(given) < 2 or min(map(len, given.values())) < self.fewest:
            return self.cannot_say(f"no policy gave both kinds {self.fewest} actions")
        means = {kind: statistics.fmean(each) for kind, each in sorted(given.items())}
        figures = "its weights are " + ", ".join(f"{mean:.2f} for {kind} devices" for kind, mean in means.items())
        low, high = sorted(means.values())
        return self.holds(figures) if high - low > self.difference else self.does_not(figures)


def kind_of(seen: Seen) -> Callable[[Client, Line], str] | None:
    """A client's kind of device: weak or strong where the records say so, else slow or fast by its mean latency; None: all are one kind."""
    if any(line.get("is_weak") for _, _, line in seen.uploads):
        return lambda client, line: "weak" if line.get("is_weak") else "strong"
    times = defaultdict[Client, list[float]](list)
    for _, client, line in seen.uploads:
        if (latency := number(line.get("latency"))) is not None:
            times[client].append(latency)
    means = {client: statistics.fmean(each) for client, each in times.items()}
    if len(set(means.values())) < 2:
        return None
    middle = statistics.median(means.values())
    slow = {client for client, mean in means.items() if mean > middle}
    return lambda client, line: "slow" if client in slow else "fast"
