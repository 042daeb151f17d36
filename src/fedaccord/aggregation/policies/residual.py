"""Our policy: a residual on FedAvg's weights, from features relative to the cohort, equivariant over any number of clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Gt, Le
from torch import Tensor

from fedaccord.aggregation import figures
from fedaccord.aggregation.policies.features import RELATIVE, LossChange, relative, remembered, seven
from fedaccord.aggregation.policies.network import SHIPPED, Layers, explored, forward, read
from fedaccord.aggregation.policy import CohortView, Decision, Memory, Policy
from fedaccord.core.algorithm import NonNegative


@dataclass(frozen=True)
class Residual(Policy):
    """w_k proportional to n_k exp(beta tanh f(x_k)), so that a network whose last layer is zero is FedAvg to the bit.

    x_k holds the client's own features beside means and spreads of the cohort's (Zaheer et al. 2017, arXiv:1703.06114: equivariant by
    pooling), and f is the same for all, so any order and any number of clients will do. It weighs and never rejects: that is the screen's.
    """

    weights: str = SHIPPED  # of the network: the package's, "untrained", or a safetensors file
    beta: Annotated[float, Gt(0), Le(1)] = 1.0
    loss_change: LossChange = "within"
    explore: NonNegative = 0.0  # standard deviation of noise on the network's output, for a journal that can be learned from

    looks_at: ClassVar[tuple[str, ...]] = figures.FIGURES
    is_learned: ClassVar[bool] = True

    def check(self) -> None:
        self._layers()

    def _layers(self) -> Layers:
        return read(self.weights, "residual.safetensors", len(RELATIVE), 1)

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        told = seven(cohort, memory, self.loss_change)
        outputs = forward(self._layers(), relative(cohort, told, memory))
        return self.decided(cohort, memory, explored(outputs, self.explore, cohort)[:, 0].tanh())

    def decided(self, cohort: CohortView, memory: Memory, tilts: Tensor) -> Decision:
        """The decision for these tilts [C] in [-1, 1]: the network's, or a learner's."""
        told = seven(cohort, memory, self.loss_change)
        factors = (self.beta * tilts).exp()
        clients = remembered(cohort, told, memory, weight=factors.tolist())
        notes = {f"feature_{name}": column for name, column in zip(RELATIVE, relative(cohort, told, memory).T, strict=True)}
        # A network that says nothing yet has no action whose spread could tell anything.
        actions = None if bool((tilts == 0).all()) else (1 + tilts) / 2
        return Decision(cohort.counts * factors, {"clients": clients}, actions=actions, notes={**notes, "tilt": tilts})
