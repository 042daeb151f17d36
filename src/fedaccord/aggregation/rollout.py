"""How a learned policy comes into use, and how it is taken out of it: stages, and a breaker that acts in the same round.

Stages, each a step further: `shadow` (its aggregate is scored beside FedAvg's, and FedAvg's is used), `canary` (in every round a share of
the clients has the policy's weights and the rest FedAvg's), `switchback` (a growing share of the rounds, drawn at random, uses it), `on`.
Both aggregates are computed on the same uploads in every round and scored on the server's validation data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from annotated_types import Gt, Le
from torch import Tensor

from fedaccord.aggregation.evidence import bet, evidence
from fedaccord.core.algorithm import Count, Positive, PositiveCount, Share
from fedaccord.core.rng import stream

Stage = Literal["shadow", "canary", "switchback", "on"]
STAGES: tuple[Stage, ...] = ("shadow", "canary", "switchback", "on")
Facts = Mapping[str, Any]
T = TypeVar("T")

CAUSES = ("exception", "stalled", "bad_weights", "collapsed", "rejects", "harm", "not_finite")  # why the breaker opens


@dataclass(frozen=True)
class Rollout:
    """Where a policy begins, what takes it further, and what takes it out."""

    stage: Stage = "on"  # of the first round
    promotion: Literal["rule", "operator"] = "operator"  # rule: after `min_rounds` scored rounds whose sequential test shows no harm
    canary_share: Annotated[float, Gt(0), Le(1)] = 0.05  # of the clients, at least one
    switchback_shares: tuple[Share, ...] = (0.1, 0.5, 1.0)  # of the rounds, one after another
    min_rounds: PositiveCount = 20  # scored rounds in a stage before the rule may promote
    level: Annotated[float, Gt(0), Le(0.5)] = 0.05  # of the sequential tests
    margin: Positive = 0.02  # of the validation loss, relative to FedAvg's: below it, worse is no harm
    deadline: Positive = 0.5  # seconds that the policy may think
    max_rejected: Share = 0.4  # of the uploads, in two rounds running
    max_worse: Positive = 0.1  # of the validation loss, relative to FedAvg's: set aside in that round; two rounds running open the breaker
    max_share: Share = 0.95  # of one client in the raw weights, where FedAvg gives it less than half of that
    good_rounds: PositiveCount = 10  # rounds on FedAvg's weights until the breaker tries again
    max_rounds: Count = 160  # the wait doubles with each failure, up to this


class Plan(NamedTuple):
    """What the stage and the breaker say before a round is weighed."""

    asks: bool  # whether the policy is asked
    uses: bool  # whether its aggregate may become the model
    canary: bool = False


def start(rollout: Rollout) -> dict[str, Any]:
    """The facts before round 1."""
    return {
        "stage": rollout.stage,
        "step": 0,
        "scored": 0,
        "gain": [],
        "harm": [],
        "rejecting": 0,
        "harming": 0,
        "open_until": 0,
        "wait": 0,
    }


def plan(rollout: Rollout, facts: Facts, t: int, seed: int) -> Plan:
    """Of round t."""
    if t < facts["open_until"]:
        return Plan(asks=False, uses=False)
    if facts["stage"] == "switchback":
        share = rollout.switchback_shares[facts["step"]]
        return Plan(asks=True, uses=bool(stream(seed, "switchback", t).random() < share))
    return Plan(asks=True, uses=facts["stage"] != "shadow", canary=facts["stage"] == "canary")


def canary_weights(rollout: Rollout, weights: Tensor, by_size: Tensor, t: int, seed: int) -> Tensor:
    """A drawn share of the clients with the policy's weights [C], the rest with FedAvg's."""
    count = len(weights)
    size = max(1, round(rollout.canary_share * count))
    chosen = torch.zeros(count, dtype=torch.bool)
    chosen[stream(seed, "canary", t).choice(count, size, replace=False)] = True
    mixed = torch.where(chosen, weights, by_size)
    return mixed / mixed.sum() if float(mixed.sum()) > 0 else by_size


def in_time(function: Callable[[], T], deadline: float, clock: Callable[[], float]) -> T:
    """The function's result. TimeoutError where it takes longer than `deadline` seconds; it is left behind then."""
    started, pool = clock(), ThreadPoolExecutor(1, thread_name_prefix="policy")
    try:
        result = pool.submit(function).result(timeout=deadline)
    except TooLate:
        raise TimeoutError from None
    finally:
        pool.shutdown(wait=False)
    if clock() - started > deadline:
        raise TimeoutError
    return result


def fault_of(rollout: Rollout, raw: Tensor, by_size: Tensor) -> str | None:
    """What is wrong with raw weights [C], one of `CAUSES`."""
    if raw.shape != by_size.shape or not bool(raw.isfinite().all()) or bool((raw < 0).any()):
        return "bad_weights"
    total = float(raw.sum())
    if total > 0 and len(raw) > 1:
        top = int(raw.argmax())
        if float(raw[top]) / total > rollout.max_share and float(by_size[top]) < rollout.max_share / 2:
            return "collapsed"
    return None


def tripped(rollout: Rollout, facts: Facts, t: int, cause: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts, event) after the breaker opened in round t; the wait doubles where it had just tried again."""
    wait = min(max(rollout.max_rounds, rollout.good_rounds), facts["wait"] * 2) if facts["wait"] else rollout.good_rounds
    until = t + wait + 1
    return {**facts, "open_until": until, "wait": wait, "rejecting": 0, "harming": 0}, {
        "event": "breaker_opened",
        "cause": cause,
        "until": until,
    }


def went_well(facts: Facts, t: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, events) after a round in which the policy served without a fault: the first one after a wait closes the breaker."""
    if facts["wait"] and t >= facts["open_until"]:
        return {**facts, "wait": 0, "open_until": 0}, [{"event": "breaker_closed"}]
    return dict(facts), []


def rejecting(rollout: Rollout, facts: Facts, share: float) -> tuple[dict[str, Any], bool]:
    """(facts, whether the breaker opens) where the policy rejects this share of the uploads."""
    running = facts["rejecting"] + 1 if share > rollout.max_rejected else 0
    return {**facts, "rejecting": running}, running >= 2


def harming(rollout: Rollout, facts: Facts, difference: float) -> tuple[dict[str, Any], bool, bool]:
    """(facts, whether this round's aggregate is set aside, whether the breaker opens); difference as `scored` has it. One bad round of a
    small cohort is no fault of a policy's; two running are."""
    running = facts["harming"] + 1 if -difference > rollout.max_worse else 0
    return {**facts, "harming": running}, running > 0, running >= 2


def scored(rollout: Rollout, facts: Facts, difference: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, events) after one more round: (FedAvg's validation loss - the policy's) / FedAvg's.

    Promotion: the test has ruled out that the policy is worse by more than `margin`. Demotion to shadow: it has shown that it is.
    """
    scale = 1 / (10 * rollout.margin)  # a difference of ten margins is as much as counts
    value, margin = max(-1.0, min(1.0, difference * scale)), rollout.margin * scale
    new = {
        **facts,
        "scored": facts["scored"] + 1,
        "gain": list(bet(facts["gain"], value, -margin)),
        "harm": list(bet(facts["harm"], -value, margin)),
    }
    if evidence(new["harm"]) >= 1 / rollout.level and facts["stage"] != "shadow":
        return _moved(new, "shadow", 0), [{"event": "demoted", "from": facts["stage"], "to": "shadow", "cause": "harm"}]
    if rollout.promotion == "rule" and new["scored"] >= rollout.min_rounds and evidence(new["gain"]) >= 1 / rollout.level:
        return promoted(rollout, new)
    return new, []


def promoted(rollout: Rollout, facts: Facts) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, events) one step further."""
    stage, step = facts["stage"], facts["step"]
    if stage == "on":
        return dict(facts), []
    if stage == "switchback" and step + 1 < len(rollout.switchback_shares):
        following: tuple[Stage, int] = ("switchback", step + 1)
    else:
        following = (STAGES[STAGES.index(stage) + 1], 0)
    return _moved(facts, *following), [{"event": "promoted", "from": stage, "to": following[0], "step": following[1]}]


def rolled_back(facts: Facts) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(facts, events) back in the shadow."""
    if facts["stage"] == "shadow":
        return dict(facts), []
    return _moved(facts, "shadow", 0), [{"event": "rolled_back", "from": facts["stage"], "to": "shadow"}]


def _moved(facts: Facts, stage: Stage, step: int) -> dict[str, Any]:
    return {**facts, "stage": stage, "step": step, "scored": 0, "gain": [], "harm": []}
