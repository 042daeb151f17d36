"""A method around another one: every rule is the inner one's until it is overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedaccord.core.algorithm import Algorithm, Batch, BatchGrad, Cohort, Device, Effort, LocalParts, Objective, RoundStart, Work
from fedaccord.core.gradient import Grad
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import State


@dataclass(frozen=True)
class Transformed:
    """The gradient of a step's mini-batch seen through a transform: what the inner method takes for the gradient."""

    grad: BatchGrad
    transform: Callable[[Grad], Grad]

    @property
    def step(self) -> int:
        return self.grad.step

    def __call__(self, w: Tensor) -> Tensor:
        return self.transform(self.grad)(w)

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The loss is that of the transform's first evaluation."""
        losses: list[Tensor] = []

        def recorded(v: Tensor) -> Tensor:
            loss, gradient = self.grad.with_loss(v)
            losses.append(loss)
            return gradient

        gradient = self.transform(recorded)(w)
        return losses[0], gradient

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        return self.grad.hessian_product(w, v)


class Around(Algorithm):
    """Not a method itself: `inner` says whose rules these are."""

    @property
    def inner(self) -> Algorithm:
        raise NotImplementedError

    def init_server(self, w: Tensor) -> State:
        return self.inner.init_server(w)

    def init_client(self, w: Tensor) -> State:
        return self.inner.init_client(w)

    def broadcast(self, server: State) -> State:
        return self.inner.broadcast(server)

    def effort(self, epochs: int, steps_per_epoch: int, signals: Mapping[str, float], device: Device) -> Effort:
        return self.inner.effort(epochs, steps_per_epoch, signals, device)

    def begin(self, start: RoundStart, sent: State, kept: State) -> State:
        return self.inner.begin(start, sent, kept)

    def objective(self, batch: Batch, sent: State, local: State) -> Objective:
        return self.inner.objective(batch, sent, local)

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return self.inner.direction(grad, w, sent, local)

    def beside(self, w: Tensor, sent: State, local: State) -> Tensor | None:
        return self.inner.beside(w, sent, local)

    def upload(self, w: Tensor, sent: State, local: State, work: Work) -> tuple[Any, State]:
        return self.inner.upload(w, sent, local, work)

    def moved(self, upload: Any) -> Tensor:
        return self.inner.moved(upload)

    def update(self, server: State, cohort: Cohort) -> State:
        return self.inner.update(server, cohort)

    def observe(self, server: State, reports: Sequence[ClientReport]) -> State:
        return self.inner.observe(server, reports)

    def alerts(self, before: State, after: State, reports: Sequence[ClientReport], absent: Sequence[int]) -> tuple[str, ...]:
        return self.inner.alerts(before, after, reports, absent)

    def signals(self, kept: State) -> dict[str, Tensor]:
        return self.inner.signals(kept)

    def confidence(self, reports: Sequence[ClientReport]) -> Tensor:
        return self.inner.confidence(reports)

    @property
    def num_reference_batches(self) -> int:
        return self.inner.num_reference_batches

    @property
    def proximal_weight(self) -> float:
        return self.inner.proximal_weight

    @property
    def local_parts(self) -> LocalParts:
        return self.inner.local_parts

    @property
    def objective_is_loss(self) -> bool:
        return self.inner.objective_is_loss if type(self).objective is Around.objective else super().objective_is_loss
