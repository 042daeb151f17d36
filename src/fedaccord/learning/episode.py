"""One episode: a real federation, of which someone else decides the weights, round by round; and the rewards of what was decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation import figures
from fedaccord.aggregation.policies.features import RELATIVE, SEVEN, relative, scaled, seven
from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.aggregation.policies.reward import LateGains, SourceReward
from fedaccord.aggregation.policy import CohortView, Decision
from fedaccord.core.reports import Evaluation
from fedaccord.federation import Collected, RoundResult
from fedaccord.learning.scenes import Scene, built

Learned = PerClient | Residual


@dataclass(frozen=True)
class DenseReward:
    """On the same uploads, the validation loss under FedAvg's weights less that under the policy's, relative to the first; less penalties.

    A part of a client's reward is shared; most of it is its own part of the same gain to first order: C (p_k - p_k of FedAvg) times
    <-g, u_k - mean u>, with g the mean of the loss's gradients before the round and after FedAvg's step, so that the curvature between
    them counts.
    """

    scale: float = 20.0  # a gain of 5% of the loss is 1
    own: float = 0.8
    worst: float = 0.3  # of the relative rise of the worst tenth's loss, on clients' held-out examples, times scale
    distance: float = 0.02  # of the squared tilt
    measured_clients: int = 10  # of the cohort, for the worst tenth; 0: not measured
    most: float = 2.0  # a reward's size


class Stepped(NamedTuple):
    """What one round gave."""

    rewards: Tensor  # [C], of the clients that the decision was about
    gain: float  # relative validation loss of FedAvg's weights less that of the policy's
    done: bool
    result: RoundResult


class Episode:
    """A scene, stopped between its halves of a round: `features` [C, F] and `clients` tell what is to be decided.

    actions: of PerClient [C, 2] in (0, 1), weight and probability of acceptance; of Residual [C, 1] in [-1, 1]. A round in which nothing is
    to be decided is passed over.
    """

    def __init__(self, scene: Scene, policy: Learned, reward: DenseReward | SourceReward | None = None) -> None:
        self.scene, self.policy = scene, policy
        self._reward = reward or (SourceReward() if isinstance(policy, PerClient) else DenseReward())
        prepared = built(scene, policy)
        self.federation, self._state = prepared.federation, prepared.start
        self.rounds = scene.rounds
        self._collected: Collected | None = None
        self._next()

    @property
    def is_over(self) -> bool:
        return self._collected is None

    @property
    def view(self) -> CohortView:
        """What the policy may see."""
        assert self._collected is not None and self._collected.examined.view is not None
        seen = self._collected.examined.view
        if not self.scene.blind:
            return seen
        unknown = torch.full_like(seen.counts, torch.nan)
        hidden = {name: unknown for name in (figures.ROOT_DIRECTION, figures.CREDIT) if name in seen.figures}
        return replace(seen, figures={**seen.figures, **hidden})

    @property
    def features(self) -> Tensor:
        """What the policy's network would see, [C, F] float64."""
        memory, told = self._memory(), seven(self.view, self._memory(), self.policy.loss_change)
        return scaled(told, memory)[0] if isinstance(self.policy, PerClient) else relative(self.view, told, memory)

    def step(self, actions: Tensor) -> Stepped:
        """Decide, finish the round, and begin the next."""
        assert self._collected is not None
        collected, view, memory = self._collected, self.view, self._memory()
        given = actions.double() if isinstance(self.policy, PerClient) else actions.double()[:, 0]
        decision = self.policy.decided(view, memory, given)
        result = self.federation.conclude(collected, decision)
        self._state = result.state
        self._next()
        gain = _gain(result)
        if isinstance(self._reward, SourceReward):
            rewards = self._source(self._reward, collected, view, decision, memory, result)
        else:
            rewards = self._dense(self._reward, collected, view, decision, result, gain)
        return Stepped(rewards, gain, self.is_over, result)

    def _next(self) -> None:
        """On to the next round in which there is something to decide."""
        self._collected = None
        while self._state.round < self.rounds:
            collected = self.federation.collect(self._state)
            if collected.examined.view is not None:
                self._collected = collected
                return
            self._state = self.federation.conclude(collected).state

    def _memory(self) -> dict[str, object]:
        assert self._collected is not None
        return dict(self._collected.state.trust.facts.get("policy", {}))

    def _dense(
        self, reward: DenseReward, collected: Collected, view: CohortView, decision: Decision, result: RoundResult, gain: float
    ) -> Tensor:
        deltas = [answer.upload.delta for answer in collected.examined.chosen]
        by_size, shares = view.by_size(), decision.weights / decision.weights.sum()
        credit = -figures.dots(deltas, self._gradient(collected, result))
        own = len(deltas) * (shares - by_size) * (credit - (by_size * credit).sum()) / max(_loss(result), 1e-12)
        worst = self._worst(reward, collected, result)
        shared = reward.scale * (gain - reward.worst * worst)
        tilts = decision.notes["tilt"]
        rewards = reward.own * reward.scale * own + (1 - reward.own) * shared - reward.distance * tilts.square()
        return rewards.nan_to_num(nan=0.0).clamp(-reward.most, reward.most)

    def _gradient(self, collected: Collected, result: RoundResult) -> Tensor:
        server = collected.context.server
        assert server is not None and self.federation.server_data is not None
        by_size = result.other if result.other is not None else result.state
        after = self.federation.server_data(by_size, collected.context.round, collected.lr)
        return (server.gradient() + after.gradient()) / 2

    def _worst(self, reward: DenseReward, collected: Collected, result: RoundResult) -> float:
        """By how much the worst tenth's loss rose beside FedAvg's, relative."""
        clients = collected.cohort[: reward.measured_clients]
        if result.other is None or not clients:
            return 0.0
        ours, theirs = (_losses(self.federation.runtime.evaluate(s.server.w, s.buffers, clients)) for s in (result.state, result.other))
        if not ours or not theirs:
            return 0.0
        tenth = max(1, round(len(ours) / 10))
        mine, fedavgs = sum(ours[-tenth:]), sum(theirs[-tenth:])
        return max(0.0, mine - fedavgs) / max(fedavgs, 1e-12)

    def _source(
        self,
        reward: SourceReward,
        collected: Collected,
        view: CohortView,
        decision: Decision,
        memory: dict[str, object],
        result: RoundResult,
    ) -> Tensor:
        known: dict[str, dict[str, float]] = memory.get("clients", {})  # type: ignore[assignment]
        before = torch.tensor([known.get(str(client), {}).get("weight", torch.nan) for client in view.clients], dtype=torch.float64)
        returning = set() if self._collected is None else set(self._collected.cohort)
        after = {client: value for client, value in self._accuracies(result, view.clients).items() if client in returning}
        then = collected.context.accuracies
        gains = torch.tensor([after.get(c, torch.nan) - then.get(c, torch.nan) for c in view.clients], dtype=torch.float64)
        changes = decision.notes["feature_loss_change"]
        assert decision.actions is not None
        return reward(
            collected.context.round - 1,
            view.figures[figures.NORM],
            view.figures[figures.DIRECTION].nan_to_num(nan=1.0),
            LateGains().fill(gains, changes),
            decision.weights > 0,
            decision.actions,
            before,
        )

    def _accuracies(self, result: RoundResult, clients: tuple[int, ...]) -> dict[int, float]:
        found = self.federation.runtime.evaluate(result.state.server.w, result.state.buffers, clients)
        return {c: each.metrics["accuracy"] for c, each in zip(clients, found, strict=True) if each.metrics and "accuracy" in each.metrics}


def _losses(found: Sequence[Evaluation]) -> list[float]:
    """Finite ones, the largest last."""
    return sorted(each.metrics["loss"] for each in found if each.metrics and "loss" in each.metrics)


def width(policy: Learned) -> tuple[int, int]:
    """(features, actions) of one client."""
    return (len(SEVEN), 2) if isinstance(policy, PerClient) else (len(RELATIVE), 1)


def _loss(result: RoundResult) -> float:
    return float(result.report.trust.get("loss_by_size") or 0.0)


def _gain(result: RoundResult) -> float:
    by_size, policy = result.report.trust.get("loss_by_size"), result.report.trust.get("loss_policy")
    return 0.0 if by_size is None or policy is None else (by_size - policy) / max(abs(by_size), 1e-12)
