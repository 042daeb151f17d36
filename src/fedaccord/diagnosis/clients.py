"""Which clients stand out: in quarantine, left out again and again, without work of their own."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import ClassVar

from fedaccord.aggregation.memory import COUNTED
from fedaccord.core.algorithm import PositiveCount, Share
from fedaccord.core.reports import number
from fedaccord.diagnosis.finding import NAMED, Finding, Rule, of_clients, times
from fedaccord.diagnosis.quarantine import in_quarantine
from fedaccord.diagnosis.seen import Client, Seen, ids, ordered

JUDGED = ("E111", "E116")  # left out by policy or screen: an upload in order, of which they think little


@dataclass(frozen=True)
class Quarantined(Rule):
    rule: ClassVar[str] = "quarantine"
    name: ClassVar[str] = "clients are in quarantine"
    advice: ClassVar[str] = "See what they sent: fedaccord quarantine RUN; what is mended comes back by --release"

    def look(self, seen: Seen) -> Finding:
        ever = ordered(event["client"] for _, event in seen.events("quarantined") if isinstance(event.get("client"), int | str))
        until = in_quarantine(seen)
        now = ordered(until)
        if not now:
            return self.does_not(f"nobody any more; {of_clients(ever)} were" if ever else "nobody")
        figures = ", ".join(f"client {client} before round {until[client]}" for client in now[:NAMED])
        return self.holds(f"not asked are {figures}" + (", ..." if len(now) > NAMED else ""), clients=now)


@dataclass(frozen=True)
class LeftOutAlways(Rule):
    """By a screen or a policy, in nearly all of their rounds, while others are not; of clients that the guard never refused."""

    share: Share = 0.8
    fewest: PositiveCount = 5  # rounds
    of_all: Share = 0.5  # of all uploads: a screen that leaves out more says nothing of single clients (Krum)

    rule: ClassVar[str] = "left_out"
    name: ClassVar[str] = "the same clients are left out again and again"
    advice: ClassVar[str] = (
        "They attack, or their data differ most: look at their labels (fedaccord show RUN --client) before you blame them; a screen that "
        "shortens instead (norm_clipping), or fltrust where the server has data, keeps rare data in"
    )

    def look(self, seen: Seen) -> Finding:
        came, out = Counter[Client](), Counter[Client]()
        for _, line in seen.rounds:
            came.update(ids(line.get("cohort")) - ids(line.get("absent")))
        out.update(each.client for each in seen.refusals if each.code in JUDGED)
        total = sum(came.values())
        if not total:
            return self.cannot_say("nobody sent anything")
        if not out:
            return self.does_not("no screen and no policy left anybody out")
        overall = sum(out.values()) / total
        if overall > self.of_all:
            return self.cannot_say(f"{overall:.0%} of all uploads are left out, which says nothing of single clients")
        bad = {each.client for each in seen.refusals if each.reason in (*COUNTED, "no_update")}
        who = ordered(c for c, count in out.items() if count >= self.fewest and count > self.share * came[c] and c not in bad)
        if not who:
            return self.does_not(f"nobody in more than {self.share:.0%} of the rounds; of all uploads {overall:.0%}")
        most = ", ".join(f"client {client} in {out[client]} of {came[client]} rounds" for client in who[:NAMED])
        return self.holds(f"{most}; of all uploads {overall:.0%}", clients=who)


@dataclass(frozen=True)
class FreeRiders(Rule):
    """Uploads seen before are certain; what resembles nobody's, or changes nothing, has to come again: of honest ones one in twenty may."""

    fewest: PositiveCount = 3
    share: Share = 0.5  # of the client's rounds

    rule: ClassVar[str] = "free_riders"
    name: ClassVar[str] = "clients send no work of their own"
    advice: ClassVar[str] = (
        "Look at what they send: fedaccord show RUN --client; repeats lead into quarantine, screen = 'rule_guard' finds the others"
    )

    def look(self, seen: Seen) -> Finding:
        certain, likely = defaultdict[Client, Counter[str]](Counter), defaultdict[Client, Counter[str]](Counter)
        came = Counter(client for _, client, _ in seen.uploads)
        for each in seen.refusals:
            if each.code == "E115":
                certain[each.client][each.reason] += 1
            elif each.code == "E116" and each.reason in ("no_update", "replayed"):
                likely[each.client][each.reason] += 1
        for _, client, line in seen.uploads:
            if line.get("accepted") and number(line.get("update_norm")) == 0:
                likely[client]["zero"] += 1
        for client, kinds in likely.items():
            if kinds.total() >= self.fewest and kinds.total() > self.share * came[client]:
                certain[client] += kinds
        if not seen.uploads and not certain:
            return self.cannot_say("nobody sent anything")
        who = ordered(certain)
        if not who:
            return self.does_not("nobody")
        told = (f"client {c}: " + ", ".join(f"{kind.replace('_', ' ')} {times(n)}" for kind, n in certain[c].items()) for c in who[:NAMED])
        return self.holds("; ".join(told) + ("; ..." if len(who) > NAMED else ""), clients=who)
