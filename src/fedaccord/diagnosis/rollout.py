"""What became of a learned policy: its breaker, its shadow, whom it rejects, and what it remembers."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from fedaccord.aggregation.policies.features import NORMS
from fedaccord.core.algorithm import PositiveCount, Share
from fedaccord.core.reports import number
from fedaccord.diagnosis.alerts import NO_POLICY
from fedaccord.diagnosis.finding import Finding, Rule, in_rounds, of_clients, times
from fedaccord.diagnosis.seen import Seen, many, ordered, table

NO_BREAKER = "no policy ran behind a breaker"


@dataclass(frozen=True)
class BreakerOpened(Rule):
    rule: ClassVar[str] = "breaker"
    name: ClassVar[str] = "the breaker opened"
    advice: ClassVar[str] = (
        "Those rounds had FedAvg's weights. See fedaccord policy status RUN, and evaluate the policy before it comes back (fedaccord "
        "policy evaluate); to take it out of use: fedaccord policy rollback RUN"
    )

    def look(self, seen: Seen) -> Finding:
        if not seen.has_policy:
            return self.cannot_say(NO_BREAKER)
        opened = seen.events("breaker_opened")
        if not opened:
            return self.does_not("never")
        causes = Counter(str(event.get("cause")) for _, event in opened)
        figures = ", ".join(f"{cause} {times(count)}" for cause, count in causes.items())
        detail = next((str(event["detail"]) for _, event in reversed(opened) if event.get("detail")), None)
        now = next((str(trust.get("breaker")) for _, trust in reversed(seen.trust) if trust.get("breaker")), "unknown")
        told = f"{figures}, in {in_rounds([t for t, _ in opened])}; now it is {now.replace('_', ' ')}"
        return self.holds(told + (f"; last error: {detail}" if detail else ""), [t for t, _ in opened])


@dataclass(frozen=True)
class NotScored(Rule):
    rule: ClassVar[str] = "not_scored"
    name: ClassVar[str] = "the policy is not scored"
    advice: ClassVar[str] = (
        "Give the task validation data (validation = 0.1): without them there is no shadow, the breaker sees no harm, and stages move by "
        "hand alone"
    )

    def look(self, seen: Seen) -> Finding:
        if not seen.has_policy:
            return self.cannot_say(NO_BREAKER)
        staged = [trust for _, trust in seen.trust if "stage" in trust and trust.get("breaker") != "open"]
        if not staged:
            return self.cannot_say("the breaker was open in every round")
        scored = sum(number(trust.get("loss_policy")) is not None for trust in staged)
        if scored:
            return self.does_not(f"its aggregate was scored beside FedAvg's in {scored} of {len(staged)} rounds")
        reason = next((line.get("validation_reason") for _, line in reversed(seen.rounds) if line.get("validation_reason")), None)
        return self.holds(f"no round has a validation loss: {reason}" if reason else "no round has a validation loss")


@dataclass(frozen=True)
class MostlyRejected(Rule):
    """By the policy: for many rounds running, or often enough for the breaker to open over it more than once."""

    share: Share = 0.5
    rounds: PositiveCount = 10
    openings: PositiveCount = 2

    rule: ClassVar[str] = "mostly_rejected"
    name: ClassVar[str] = "most clients are rejected for long"
    advice: ClassVar[str] = (
        "The reference is stale, or the cosine is computed wrongly: compare rounds and raw values (judged in clients.jsonl) of three "
        "clients: fedaccord show RUN --client"
    )

    def look(self, seen: Seen) -> Finding:
        shares = seen.series("rejected_share")
        opened = [t for t, event in seen.events("breaker_opened") if event.get("cause") == "rejects"]
        if not shares and not opened:
            return self.cannot_say(NO_POLICY)
        longest, running = list[int](), list[int]()
        for t, share in shares:
            running = [*running, t] if share > self.share else []
            longest = max(longest, running, key=len)
        many_rounds, many_openings = len(longest) >= self.rounds, len(opened) >= self.openings
        figures = f"more than {self.share:.0%} rejected in {len(longest)} rounds running at the most"
        figures += f"; the breaker opened over it in {in_rounds(opened)}" if opened else ""
        if not many_rounds and not many_openings:
            return self.does_not(figures)
        rejected = Counter(each.client for each in seen.refusals if each.code == "E111")
        whom = [client for client, _ in rejected.most_common(3)]
        cosines = [value for _, client, value in seen.judged("direction") if client in whom]
        figures += f"; most often {of_clients(whom)}" if whom else ""
        figures += f", whose cosine to the last global move is {statistics.median(cosines):.2f} in the middle" if cosines else ""
        return self.holds(figures, longest if many_rounds else opened, whom)


@dataclass(frozen=True)
class HistoryGrows(Rule):
    """In the checkpoint: what is remembered of a client has to stay as long as it is."""

    norms: PositiveCount = NORMS

    rule: ClassVar[str] = "memory"
    name: ClassVar[str] = "what is remembered of a client grows"
    advice: ClassVar[str] = "The policy keeps a longer history than it reads: cut it where it is written (Decision.memory)"

    def look(self, seen: Seen) -> Finding:
        clients = table(table(seen.facts.get("policy")).get("clients"))
        lengths = {client: len(many(table(each).get("norms"))) for client, each in clients.items()}
        if not any(lengths.values()):
            return self.cannot_say("no checkpoint holds norms of clients")
        long = ordered(int(client) if client.isdigit() else client for client, length in lengths.items() if length > self.norms)
        figures = f"{max(lengths.values())} norms a client at the most, where {self.norms} are read"
        return self.holds(f"{figures}: {of_clients(long)}", clients=long) if long else self.does_not(figures)
