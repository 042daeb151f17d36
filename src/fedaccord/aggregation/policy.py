"""Policies: the weight of each accepted client in the aggregate. They see scalars, never tensors of the model.

A policy is a frozen dataclass. What it remembers from round to round is plain data (numbers, strings, lists and tables of them), goes in
and comes out by the signatures, lies in every checkpoint, and comes back from JSON as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedaccord.core.reports import ClientReport

Memory = Mapping[str, Any]  # plain JSON data; keys are strings
NOTHING: Memory = MappingProxyType({})
NEUTRAL = 0.5  # the action of a policy that has nothing to say of a client


@dataclass(frozen=True)
class CohortView:
    """What a policy may look at: the uploads that guard and screen let pass, C of them, in client order."""

    round: int  # counted from 1
    seed: int  # of the run; draw by `stream(seed, "policy", round)`
    reports: tuple[ClientReport, ...]  # what the clients say
    counts: Tensor  # [C] float64, sample counts as the screen left them
    figures: Mapping[str, Tensor] = field(default_factory=dict)  # what the server computed: name -> [C] float64, NaN where unknown
    asked: int = 0  # clients that the round asked
    size: int = 1  # numbers of the model, d

    @property
    def clients(self) -> tuple[int, ...]:
        return tuple(report.client for report in self.reports)

    def by_size(self) -> Tensor:
        """FedAvg's weights [C], which sum to 1."""
        return self.counts / self.counts.sum()


class Decision(NamedTuple):
    """What a policy decides about one round."""

    weights: Tensor  # [C] float64, not negative; the round divides them by their sum. 0 = left out
    memory: Memory = NOTHING
    retrain: tuple[int, ...] = ()  # clients that the next round has to ask again
    marked: Mapping[int, str] = MappingProxyType({})  # client -> what is odd about it
    actions: Tensor | None = None  # [C] in (0, 1): what the policy gave before counts, caps and shares
    notes: Mapping[str, Tensor] = MappingProxyType({})  # name -> [C]: what else belongs into the records


class Outcome(NamedTuple):
    """What came of a decision."""

    reward: float | None  # validation loss under FedAvg's weights less that under the policy's, on the same uploads; None: not measured
    used: bool  # whether the policy's aggregate became the model
    validation: Mapping[str, float] | None  # metrics of the new model


@dataclass(frozen=True)
class Policy:
    """Base of all policies: override `weigh`, and `observe` where it learns while it serves."""

    looks_at: ClassVar[tuple[str, ...]] = ()  # of `figures.FIGURES`: only these are computed
    is_learned: ClassVar[bool] = False  # True: capped, shadowed by FedAvg, and behind the breaker
    wants_client_metrics: ClassVar[bool] = False  # True: the figure "accuracy", each client's metric at the start of the round

    def check(self) -> None:
        """Called when the run is built: errors that need no round to show themselves, as a file of weights that is not there."""

    def start(self) -> Memory:
        """What it remembers before round 1."""
        return NOTHING

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        """Weights of the cohort; never called without clients."""
        raise NotImplementedError

    def observe(self, cohort: CohortView, decision: Decision, outcome: Outcome) -> Memory:
        """What it remembers after it has seen what came of its decision."""
        return decision.memory


@dataclass(frozen=True)
class BySize(Policy):
    """FedAvg's: in proportion to the sample counts."""

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        return Decision(cohort.counts, memory)


@dataclass(frozen=True)
class Equal(Policy):
    """Every accepted client the same, as FL-Simulator."""

    def weigh(self, cohort: CohortView, memory: Memory) -> Decision:
        return Decision(torch.ones_like(cohort.counts), memory)
