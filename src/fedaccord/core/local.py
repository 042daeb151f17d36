"""Local training: the only loop over local steps in the project."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, NonNegative, Objective, Positive, PositiveCount, RoundStart, Work
from fedaccord.core.gradient import CLIP_SCOPES, shortened
from fedaccord.core.optimizer import LocalOptimizer, Sgd
from fedaccord.core.schedule import Constant, Schedule
from fedaccord.core.state import State, holds
from fedaccord.core.vector import Buffers, FlatModel

Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs [B, ...], y [B, ...]) -> mean loss []
Examples = tuple[Tensor, Tensor]  # x [n, ...], y [n, ...]
Watch = Callable[[int, Tensor, Tensor], None]  # (step, direction [d], new w [d]), called after each step


@dataclass(frozen=True)
class LocalPlan:
    """How a client trains in one round. The order of a step: data gradient, method, clip, weight decay, optimiser."""

    lr: Positive = 0.1
    epochs: PositiveCount = 5
    batch_size: PositiveCount | Literal["full"] = 50  # "full": one step an epoch on all of the client's examples
    optimizer: LocalOptimizer = field(default_factory=Sgd)
    schedule: Schedule = field(default_factory=Constant)
    weight_decay: NonNegative = 0.0
    clip_norm: Annotated[float, Gt(0)] | None = None
    clip_scope: Literal["direction", "data_gradient", "reference"] = "direction"
    drop_last: bool = False  # leave out a last, shorter batch of an epoch (not where it is the only one)

    def batches(self, num_examples: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Positions of each step's mini-batch in 0..num_examples-1; reshuffled every epoch, none left out unless `drop_last`."""
        if num_examples == 0:
            return []
        if self.batch_size == "full" or self.batch_size >= num_examples:
            return [np.arange(num_examples)] * self.epochs
        size, end = self.batch_size, num_examples
        if self.drop_last:
            end -= num_examples % size
        steps = []
        for _ in range(self.epochs):
            order = rng.permutation(num_examples)
            steps += [order[start : min(start + size, end)] for start in range(0, end, size)]
        return steps

    def steps_per_epoch(self, num_examples: int) -> int:
        """Local steps of one epoch."""
        if num_examples == 0 or self.batch_size == "full" or self.batch_size >= num_examples:
            return min(num_examples, 1)
        return num_examples // self.batch_size if self.drop_last else math.ceil(num_examples / self.batch_size)


class Trained(NamedTuple):
    """What local training returns."""

    upload: Any
    kept: State
    buffers: Buffers
    losses: Tensor  # [steps], objective of each step's clean pass
    gradients: int  # gradient evaluations


class BoundBatch:
    """One mini-batch bound to the model and to one set of buffers."""

    def __init__(self, model: FlatModel, loss: Loss, buffers: Buffers, x: Tensor, y: Tensor) -> None:
        self.model, self.loss, self.buffers, self.x, self.y = model, loss, buffers, x, y

    def outputs(self, w: Tensor) -> Tensor:
        return self.model(w, self.buffers, self.x)

    def loss_of(self, outputs: Tensor) -> Tensor:
        return self.loss(outputs, self.y)


class ObjectiveGrad:
    """Gradient of a method's objective on one mini-batch; keeps the loss of its first pass and counts its passes.

    `moving` are the buffers that the first, clean pass moves in place; `resting` those that every other pass reads, each from a fresh copy.
    """

    def __init__(
        self, objective: Callable[[Buffers], Objective], moving: Buffers | None, resting: Buffers, max_norm: float | None, step: int
    ) -> None:
        self._objective, self._moving, self._resting, self._max_norm, self.step = objective, moving, resting, max_norm, step
        self.passes = 0
        self.first_loss: Tensor | None = None

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        moving = self._moving if self.passes == 0 else None
        buffers = {name: b.clone() for name, b in self._resting.items()} if moving is None else moving
        leaf = w.detach().requires_grad_()
        loss = self._objective(buffers)(leaf)
        (gradient,) = torch.autograd.grad(loss, leaf)
        loss = loss.detach()
        if self.first_loss is None:
            self.first_loss = loss
        self.passes += 1
        return loss, gradient if self._max_norm is None else shortened(gradient, self._max_norm)

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]


def local_training(
    algorithm: Algorithm,
    model: FlatModel,
    loss: Loss,
    plan: LocalPlan,
    sent: State,
    buffers: Buffers,
    kept: State,
    batches: Callable[[], Iterator[Examples]],
    *,
    round: int,
    lr: float,
    validation: Examples | None,
    random_direction: Callable[[], Tensor],
    watch: Watch | None = None,
) -> Trained:
    """Train one client for one round.

    `batches()` starts the round's mini-batches afresh; `sent.w` is the global model, `buffers` the client's first buffers (not changed).
    """
    first_buffers = buffers
    buffers = {name: b.clone() for name, b in buffers.items()}
    max_norm = plan.clip_norm if plan.clip_scope == "data_gradient" else None

    def grad_of(example: Examples, local: State, moving: Buffers | None, step: int = 0) -> ObjectiveGrad:
        def objective(own: Buffers) -> Objective:
            return algorithm.objective(BoundBatch(model, loss, own, *example), sent, local)

        return ObjectiveGrad(objective, moving, first_buffers if moving is None else moving, max_norm, step)

    more = algorithm.num_reference_batches - 1
    reference = [grad_of(example, kept, None) for example in islice(batches(), 1, 1 + more)] if more else []
    held_out = None if validation is None else grad_of(validation, kept, None)
    local = algorithm.begin(RoundStart(round, lr, reference, held_out, random_direction), sent, kept)
    gradients = sum(grad.passes for grad in [*reference, *([held_out] if held_out else [])])

    w, moments = sent.w, plan.optimizer.init(sent.w)
    losses: list[Tensor] = []
    for example in batches():
        grad = grad_of(example, local, buffers, len(losses))
        direction, local = algorithm.direction(grad, w, sent, local)
        if plan.clip_norm:
            direction = CLIP_SCOPES[plan.clip_scope](direction, w, plan.clip_norm, algorithm.proximal_weight)
        if plan.weight_decay:
            direction = direction + plan.weight_decay * w
        own = w if losses and not holds((local, moments), w) else None  # w is ours from the second step on, unless the method keeps it
        w, moments = plan.optimizer.step(w, direction, moments, lr, own)
        gradients += grad.passes
        losses.append(w.new_zeros(()) if grad.first_loss is None else grad.first_loss)
        if watch:
            watch(len(losses), direction, w)
    steps = len(losses)
    upload, kept = algorithm.upload(w, sent, local, Work(steps, lr, plan.optimizer.effective_steps(steps)))
    return Trained(upload, kept, buffers, torch.stack(losses) if losses else w.new_zeros(0), gradients)


def upload_template(algorithm: Algorithm, w: Tensor) -> Any:
    """An upload of the right fields, shapes and dtypes, from no work: what the guard holds uploads against."""
    sent, kept = algorithm.broadcast(algorithm.init_server(w)), algorithm.init_client(w)
    local = algorithm.begin(RoundStart(1, 1.0, (), None, lambda: torch.zeros_like(w)), sent, kept)
    return algorithm.upload(w, sent, local, Work(1, 1.0, 1.0))[0]


def epoch_means(losses: Sequence[float], epochs: int) -> tuple[float, ...]:
    """Mean of a round's step losses for each local epoch."""
    if not losses:
        return ()
    return tuple(float(np.mean(part)) for part in np.array_split(np.asarray(losses, dtype=np.float64), min(epochs, len(losses))))
