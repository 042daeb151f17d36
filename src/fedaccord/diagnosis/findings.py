"""Alerts and diagnoses as rules over the lines of rounds.jsonl and clients.jsonl. They never fail: what is missing cannot be said."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from fedaccord.core.reports import number
from fedaccord.runs import Record

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """One rule on one run."""

    name: str
    holds: bool | None  # None: the records do not say
    figures: str  # what was seen, or why nothing can be said
    advice: str = ""  # what to do where it holds

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Seen:
    """A run's records, by what the rules ask of them."""

    rounds: Sequence[Line]
    clients: Sequence[Line]  # of training

    @property
    def trust(self) -> list[tuple[int, Line]]:
        """(round, what the pipeline decided) of the rounds in which it decided anything."""
        return [(line["round"], line["trust"]) for line in self.rounds if line.get("trust")]

    def events(self, *kinds: str) -> list[tuple[int, Line]]:
        return [(t, event) for t, trust in self.trust for event in trust.get("events", ()) if event.get("event") in kinds]

    def series(self, name: str) -> list[tuple[int, float]]:
        found = [(t, number(trust.get(name))) for t, trust in self.trust]
        return [(t, value) for t, value in found if value is not None]

    def refusals(self) -> Iterator[tuple[int, int, str]]:
        for line in self.rounds:
            for refusal in line.get("refused", ()):
                yield line["round"], refusal["client"], refusal["reason"]


Rule = Callable[[Seen], Finding]


def diagnose(record: Record) -> list[Finding]:
    """All rules, those that hold first."""
    seen = Seen(record.rounds, [line for line in record.clients if line.get("kind") == "train"])
    found = [rule(seen) for rule in RULES]
    return sorted(found, key=lambda each: {True: 0, None: 1, False: 2}[each.holds])


def over_cautious(seen: Seen) -> Finding:
    name = "the policy is over-cautious"
    rejected, spread = dict(seen.series("rejected_share")), dict(seen.series("weight_std"))
    hit = [t for t in rejected if t in spread and rejected[t] > 0.3 and spread[t] < 0.05]
    if not rejected:
        return _silent(name, "no policy weighed this run")
    figures = f"rejected share above 0.3 with weights that hardly differ (std below 0.05) in {_rounds(hit)}" if hit else "not in any round"
    return Finding(
        name, bool(hit), figures, "Raise what a gain is worth in the reward, or lower `reject`; see which clients: fedaccord show RUN"
    )


def collapsed(seen: Seen) -> Finding:
    name = "the policy has collapsed"
    spreads = seen.series("action_std")
    if not spreads:
        return _silent(name, "no learned policy gave actions of its own")
    sizes = {line["round"]: len(line.get("accepted", ())) for line in seen.rounds}
    hit = [t for t, value in spreads if value < 0.03 and sizes.get(t, 0) > 1]
    figures = (
        f"its raw actions differ by less than 0.03 (std) in {_rounds(hit)}" if hit else f"least spread {min(v for _, v in spreads):.3g}"
    )
    return Finding(name, len(hit) > len(spreads) / 2, figures, "Train it with smaller steps first, then with a wider clip (0.3)")


def retention(seen: Seen) -> Finding:
    name = "clients stay away"
    counts = [(line["round"], len(line.get("accepted", ())) + len(line.get("refused", ()))) for line in seen.rounds]
    if not counts or not counts[0][1]:
        return _silent(name, "nobody answered in round 1")
    low = [t for t, count in counts if count / counts[0][1] < 0.7]
    runs = [t for t in low if t - 1 in low and t - 2 in low]
    figures = (
        f"fewer than 0.7 of round 1's {counts[0][1]} answered, three rounds running, up to {_rounds(runs)}" if runs else "no three rounds"
    )
    return Finding(name, bool(runs), figures, "Look who is absent: fedaccord show RUN; ask more clients a round, or give them longer")


def unsteady_weights(seen: Seen) -> Finding:
    name = "weights jump from round to round"
    last: dict[int, float] = {}
    moves: dict[int, list[float]] = defaultdict(list)
    for line in seen.clients:
        action = number((line.get("judged") or {}).get("action"))
        if action is None:
            continue
        if line["client"] in last:
            moves[line["round"]].append(abs(action - last[line["client"]]))
        last[line["client"]] = action
    stability = {t: 1 - statistics.fmean(each) for t, each in moves.items()}
    if not stability:
        return _silent(name, "no client had an action of a policy in two rounds")
    hit = [t for t, value in stability.items() if value < 0.85]
    figures = f"1 - mean |w - w before| fell to {min(stability.values()):.2f}, below 0.85 in {_rounds(hit)}"
    return Finding(
        name,
        bool(hit),
        figures if hit else f"at least {min(stability.values()):.2f}",
        "Widen the hysteresis, or lower the policy's explore",
    )


def swinging_loss(seen: Seen) -> Finding:
    name = "the global loss swings"
    losses = [(line["round"], _loss(line)) for line in seen.rounds]
    known = [(t, loss) for t, loss in losses if loss is not None]
    if len(known) < 3:
        return _silent(name, "fewer than three rounds have a loss")
    hit = [t for (_, before), (t, after) in pairwise(known) if before > 0 and after - before > 0.15 * before]
    spread = dict(seen.series("weight_std"))
    packed = [t for t in hit if spread.get(t, 1.0) < 0.03]
    figures = f"it rose by more than 15% in {_rounds(hit)}" if hit else "it never rose by more than 15%"
    advice = "Lower local.lr or the server's; with a learned policy: smaller steps, then a clip of 0.3"
    return Finding(name, bool(hit), figures + (f", with weights all alike in {_rounds(packed)}" if packed else ""), advice)


def growing_radius(seen: Seen) -> Finding:
    name = "the SAM radius jumps"
    radii: dict[int, list[float]] = defaultdict(list)
    for line in seen.clients:
        rho = number((line.get("signals") or {}).get("rho"))
        if rho is not None:
            radii[line["round"]].append(rho)
    means = sorted((t, statistics.fmean(each)) for t, each in radii.items())
    if len(means) < 2:
        return _silent(name, "no method reported radii in two rounds")
    hit = [t for (_, before), (t, after) in pairwise(means) if before > 0 and after > 2 * before]
    figures = f"its mean more than doubled in {_rounds(hit)}" if hit else "its mean never doubled"
    return Finding(name, bool(hit), figures, "Look at the clients' gradient noise; lower rho_base or rho_max")


def mostly_rejected(seen: Seen) -> Finding:
    name = "most clients are rejected for long"
    rejected = seen.series("rejected_share")
    if not rejected:
        return _silent(name, "no policy weighed this run")
    longest = _longest([t for t, value in rejected if value > 0.5], [t for t, _ in rejected])
    directions = [number((line.get("judged") or {}).get("direction")) for line in seen.clients[-50:]]
    known = [value for value in directions if value is not None]
    told = f"; the last cosines to the global move lie around {statistics.median(known):.2f}" if known else ""
    advice = "The reference is stale, or the cosine is computed wrongly: compare raw values of three clients, fedaccord show RUN --client"
    return Finding(name, longest >= 10, f"{longest} rounds running with more than half rejected{told}", advice)


def no_progress(seen: Seen) -> Finding:
    name = "nothing has improved for a hundred rounds"
    scored = [(line["round"], _loss(line)) for line in seen.rounds]
    known = [(t, loss) for t, loss in scored if loss is not None]
    if len(known) < 2 or known[-1][0] - known[0][0] < 100:
        return _silent(name, "the run has fewer than a hundred rounds")
    best = min(known, key=lambda each: each[1])
    since = known[-1][0] - best[0]
    advice = "The gain is too small a part of the reward: raise its weight to 0.6, or send it in clear in a test; or stop here"
    return Finding(name, since >= 100, f"the lowest loss, {best[1]:.4g}, was in round {best[0]}", advice)


def singled_out(seen: Seen) -> Finding:
    name = "rejections fall on one kind of device"
    groups: dict[str, list[bool]] = defaultdict(list)
    for line in seen.clients:
        latency = number(line.get("latency"))
        if latency is not None and line.get("code") in (None, "E111", "E116"):
            groups[str(line["client"])].append(line.get("code") is not None)
    latencies = {str(line["client"]): number(line.get("latency")) or 0.0 for line in seen.clients if line.get("latency") is not None}
    if len(set(latencies.values())) < 2:
        return _silent(name, "no two kinds of device are known")
    middle = statistics.median(latencies.values())
    slow = [gone for client, each in groups.items() if latencies[client] > middle for gone in each]
    fast = [gone for client, each in groups.items() if latencies[client] <= middle for gone in each]
    if not slow or not fast:
        return _silent(name, "one kind of device never took part")
    shares = statistics.fmean(slow), statistics.fmean(fast)
    holds = max(shares) > 0.2 and max(shares) > 3 * min(shares)
    figures = f"rejected: {shares[0]:.0%} of slow devices' updates, {shares[1]:.0%} of the others'"
    return Finding(
        name, holds, figures, "The threshold is too strict for one kind: use relative_latency, and a median + 2 std for each kind"
    )


def breaker(seen: Seen) -> Finding:
    name = "the breaker opened"
    opened = seen.events("breaker_opened")
    if not any("stage" in trust for _, trust in seen.trust):
        return _silent(name, "no policy ran behind a breaker")
    causes = Counter(str(event.get("cause")) for _, event in opened)
    figures = (
        ", ".join(f"{cause} {count} times" for cause, count in causes.items()) + f" ({_rounds([t for t, _ in opened])})"
        if opened
        else "never"
    )
    return Finding(
        name,
        bool(opened),
        figures,
        "Rounds went on with FedAvg's weights. Evaluate the policy before it comes back: fedaccord policy status RUN",
    )


def no_shadow(seen: Seen) -> Finding:
    name = "the policy is not scored"
    staged = [trust for _, trust in seen.trust if trust.get("used") == "policy" or trust.get("stage") == "shadow"]
    if not staged:
        return _silent(name, "no policy ran behind a breaker")
    holds = all(trust.get("loss_policy") is None for trust in staged)
    advice = "Give the task validation data: without them there is no shadow, and stages move by hand alone"
    return Finding(
        name, holds, "there are no validation data on the server" if holds else "its aggregate is scored beside FedAvg's", advice
    )


def quarantined(seen: Seen) -> Finding:
    name = "clients are in quarantine"
    put = seen.events("quarantined")
    who = sorted({int(event["client"]) for _, event in put})
    figures = f"clients {', '.join(map(str, who[:20]))}{'...' if len(who) > 20 else ''}" if who else "nobody"
    return Finding(name, bool(who), figures, "See what they sent: fedaccord quarantine RUN, and let them back in by --release")


def always_left_out(seen: Seen) -> Finding:
    name = "the same clients are left out again and again"
    asked, out = Counter[int](), Counter[int]()
    for line in seen.rounds:
        asked.update(line.get("cohort", ()))
    for _, client, reason in seen.refusals():
        if reason in ("opposed", "not_selected", "no_trust", "norm_jump", "no_weight"):
            out[client] += 1
    who = [client for client, count in out.items() if count >= 5 and count > 0.8 * asked[client]]
    if not out:
        return Finding(name, False, "no screen and no policy left anybody out")
    figures = (
        f"clients {', '.join(map(str, sorted(who)[:20]))} in more than four of five of their rounds"
        if who
        else "nobody in most of his rounds"
    )
    advice = "They attack, or their data differ most: look at their labels (partition.json) before you blame them; try another screen"
    return Finding(name, bool(who), figures, advice)


def free_riders(seen: Seen) -> Finding:
    name = "clients send no work of their own"
    caught = [(t, client, reason) for t, client, reason in seen.refusals() if reason in ("replayed", "copied", "no_update")]
    who = sorted({client for _, client, _ in caught})
    kinds = Counter(reason for _, _, reason in caught)
    figures = (
        f"clients {', '.join(map(str, who[:20]))}: " + ", ".join(f"{kind} {count} times" for kind, count in kinds.items())
        if who
        else "nobody"
    )
    return Finding(name, bool(who), figures, "Look at them: fedaccord show RUN --client; quarantine takes them out after three refusals")


RULES: tuple[Rule, ...] = (
    over_cautious,
    collapsed,
    retention,
    unsteady_weights,
    swinging_loss,
    growing_radius,
    mostly_rejected,
    no_progress,
    singled_out,
    breaker,
    no_shadow,
    quarantined,
    always_left_out,
    free_riders,
)


def _silent(name: str, why: str) -> Finding:
    return Finding(name, None, why)


def _loss(line: Line) -> float | None:
    """On the server's data, validation first."""
    for part in ("validation", "test"):
        found = number((line.get(part) or {}).get("loss"))
        if found is not None:
            return found
    return None


def _rounds(rounds: Sequence[int]) -> str:
    shown = ", ".join(map(str, rounds[:6]))
    return f"round {shown}" if len(rounds) == 1 else f"{len(rounds)} rounds ({shown}{', ...' if len(rounds) > 6 else ''})"


def _longest(hit: Sequence[int], among: Sequence[int]) -> int:
    """The longest row of neighbours of `among` that are all in `hit`."""
    best = row = 0
    for t in among:
        row = row + 1 if t in set(hit) else 0
        best = max(best, row)
    return best
