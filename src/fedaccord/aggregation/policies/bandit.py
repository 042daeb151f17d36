"""A contextual bandit: linear regression of the reward on features and tilts, and optimism where it has seen little."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Gt, Le

from fedaccord.aggregation import figures
from fedaccord.aggregation.policies.features import RELATIVE, LossChange, relative, remembered, seven
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Outcome, Policy
from fedaccord.core.algorithm import NonNegative, Positive
from fedaccord.core.rng import stream

ARMS = (-1.0, 0.0, 1.0)  # tilts
SEEN = ("norm_ratio", "median_direction", "root_direction", "credit", "size_ratio")


@dataclass(frozen=True)
class Bandit(Policy):
    """Each client's tilt is one of -1, 0, 1 with the largest optimistic estimate (LinUCB: Li et al. 2010, arXiv:1003.0146, algorithm 1, one
    model for all arms on features times tilt). The round's reward is shared: each client is credited its own share of it, by tilt."""

    alpha: NonNegative = 0.5  # width of the confidence bound
    ridge: Positive = 1.0
    beta: Annotated[float, Gt(0), Le(1)] = 1.0
    scale: Positive = 20.0  # of the reward: 1 is a gain of 5% of the loss
    loss_change: LossChange = "within"

    looks_at: ClassVar[tuple[str, ...]] = figures.FIGURES
    is_learned: ClassVar[bool] = True

    def start(self) -> Memory:
        size = len(SEEN) + 1
        return {"precision": (self.ridge * torch.eye(size, dtype=torch.float64)).tolist(), "target": [0.0] * size, "clients": {}}

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        memory = memory or self.start()
        told = seven(cohort, memory, self.loss_change)
        features = relative(cohort, told, memory)
        x = torch.cat([features[:, [RELATIVE.index(name) for name in SEEN]], torch.ones_like(features[:, :1])], dim=1)
        precision = torch.tensor(memory["precision"], dtype=torch.float64)
        theta = torch.linalg.solve(precision, torch.tensor(memory["target"], dtype=torch.float64))
        width = (x * torch.linalg.solve(precision, x.T).T).sum(1).clamp(min=0).sqrt()
        estimates = torch.stack([arm * (x @ theta) + self.alpha * abs(arm) * width for arm in ARMS], dim=1)
        lots = [stream(cohort.seed, "bandit", cohort.round, client).random(len(ARMS)) for client in cohort.clients]
        ties = 1e-9 * torch.from_numpy(np.stack(lots))
        tilts = torch.tensor(ARMS, dtype=torch.float64)[(estimates + ties).argmax(dim=1)]
        clients = remembered(cohort, told, memory, weight=(self.beta * tilts).exp().tolist())
        notes = {"tilt": tilts} | {f"feature_{name}": x[:, i] for i, name in enumerate(SEEN)}
        # One arm for all gives FedAvg's weights: no action whose spread could tell anything.
        actions = None if bool((tilts == tilts[0]).all()) else (1 + tilts) / 2
        return Decision(cohort.counts * (self.beta * tilts).exp(), {**memory, "clients": clients}, actions=actions, notes=notes)

    def observe(self, cohort: CohortView, decision: Decision, outcome: Outcome) -> Memory:
        memory = decision.memory
        tilts = decision.notes["tilt"]
        moved = float(tilts.abs().sum())
        if outcome.reward is None or not moved:
            return memory
        x = torch.stack([*(decision.notes[f"feature_{name}"] for name in SEEN), torch.ones_like(tilts)], dim=1)
        acted = x * tilts[:, None]
        reward = max(-2.0, min(2.0, self.scale * outcome.reward))
        precision = torch.tensor(memory["precision"], dtype=torch.float64) + acted.T @ acted / len(tilts)
        target = torch.tensor(memory["target"], dtype=torch.float64) + reward * acted.sum(0) / len(tilts)
        return {**memory, "precision": precision.tolist(), "target": target.tolist()}
