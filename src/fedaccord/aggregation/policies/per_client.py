"""The source's policy: each client's seven features to a weight, acceptance with hysteresis, and retraining on a three-fold condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le

from fedaccord.aggregation import figures
from fedaccord.aggregation.policies.features import SEVEN, LossChange, Told, jumped, remembered, scaled, seven
from fedaccord.aggregation.policies.network import SHIPPED, Layers, explored, forward, read
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import Count, NonNegative, Share

NEW_WEIGHT = 0.5  # of a client that is seen for the first time


@dataclass(frozen=True)
class PerClient(Policy):
    """Weights n_k w_k of those accepted, w = sigmoid of the network's first output, acceptance by its second.

    Accepted where p > `accept`, rejected where p < `reject`, else as last time; a new client is accepted with w = 0.5. A client is asked
    again in the next round where direction < 0.2 and loss change < -0.1 and volatility > 0.6, all three, at most once in
    `retrain_every` rounds: the condition decides, so the network has no third output. Whose norm jumps over 5 standard deviations of its
    own history has w at most `liar_weight` and is marked. The order of the clients cannot matter.
    """

    weights: str = SHIPPED  # of the network: the package's, "untrained", or a safetensors file
    accept: Share = 0.85
    reject: Share = 0.15
    loss_change: LossChange = "within"
    relative_latency: bool = False  # between the fastest and the slowest of the cohort, for mixed hardware
    retrain_direction: Annotated[float, Ge(-1), Le(1)] = 0.2
    retrain_loss_change: float = -0.1
    retrain_volatility: float = 0.6
    retrain_every: Count = 5  # rounds
    liar_weight: Share = 0.3
    explore: NonNegative = 0.0  # standard deviation of noise on the network's outputs, for a journal that can be learned from

    looks_at: ClassVar[tuple[str, ...]] = (figures.NORM, figures.DIRECTION, figures.ACCURACY)
    is_learned: ClassVar[bool] = True
    wants_client_metrics: ClassVar[bool] = True

    def check(self) -> None:
        self._layers()

    def _layers(self) -> Layers:
        return read(self.weights, "per_client.safetensors", len(SEVEN), 2)

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        features, _ = scaled(seven(cohort, memory, self.loss_change, self.relative_latency), memory)
        outputs = forward(self._layers(), features)
        return self.decided(cohort, memory, explored(outputs, self.explore, cohort).sigmoid())

    def decided(self, cohort: CohortView, memory: Memory, actions: torch.Tensor) -> Decision:
        """The decision for these actions [C, 2] in (0, 1), w and the probability of acceptance: the network's, or a learner's."""
        told = seven(cohort, memory, self.loss_change, self.relative_latency)
        features, window = scaled(told, memory)
        known = memory.get("clients", {})
        before = [known.get(str(client), {}) for client in cohort.clients]
        is_new = torch.tensor(["weight" not in each for each in before])
        weight = torch.where(is_new, NEW_WEIGHT, actions[:, 0])
        liars = torch.tensor(jumped(cohort, told, memory))
        weight = torch.where(liars, weight.clamp(max=self.liar_weight), weight)
        p, last = actions[:, 1], torch.tensor([bool(each.get("accepted", True)) for each in before])
        accepted = torch.where(is_new | (p > self.accept), True, torch.where(p < self.reject, False, last))
        again = self._again(cohort, told, before)
        clients = remembered(
            cohort,
            told,
            memory,
            weight=weight.tolist(),
            accepted=accepted.tolist(),
            retrained=[
                cohort.round if client in again else each.get("retrained") for client, each in zip(cohort.clients, before, strict=True)
            ],
        )
        notes = {f"feature_{name}": column for name, column in zip(SEVEN, told.values.T, strict=True)}
        notes |= {f"scaled_{name}": column for name, column in zip(SEVEN, features.T, strict=True)} | {"accept": p}
        return Decision(
            torch.where(accepted, cohort.counts * weight, 0.0),
            {"clients": clients, "window": window},
            tuple(again),
            {client: "its norm jumped" for client, lies in zip(cohort.clients, liars.tolist(), strict=True) if lies},
            weight,
            notes,
        )

    def _again(self, cohort: CohortView, told: Told, before: list[dict[str, Any]]) -> list[int]:
        direction, change, volatility = (told.column(name) for name in ("direction", "loss_change", "volatility"))
        fires = (direction < self.retrain_direction) & (change < self.retrain_loss_change) & (volatility > self.retrain_volatility)
        last = [each.get("retrained") for each in before]
        rested = [not isinstance(t, int) or cohort.round - t >= self.retrain_every for t in last]
        return [client for client, fire, rest in zip(cohort.clients, fires.tolist(), rested, strict=True) if fire and rest]
