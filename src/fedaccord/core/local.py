"""Local training: the only loop over local steps in the project."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from fedaccord.core.algorithm import Algorithm, BatchGrad, NonNegative, Objective, Positive, PositiveCount, RoundStart, Work
from fedaccord.core.batch import BoundBatch, Differentiate, Examples, Loss, Numerics, ObjectiveGrad, Part, WholeLossGrad, micro_batches
from fedaccord.core.gradient import CLIP_SCOPES
from fedaccord.core.optimizer import LocalOptimizer, Sgd
from fedaccord.core.precision import Precision, first_scaler, next_scaler
from fedaccord.core.schedule import Constant, Schedule
from fedaccord.core.state import State, holds, where_state
from fedaccord.core.vector import Buffers, FlatModel, Layout

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
    keep_moments: bool = False  # the optimiser's moments survive from one of a client's rounds to its next
    precision: Precision = "float32"  # of the forward passes; weights, perturbations and duals stay in float32
    micro_batch: PositiveCount | None = None  # examples a forward pass; gradients of a mini-batch add up (batch norm sees the parts)
    same_masks: bool = False  # dropout draws the same masks in every pass of a step
    drop_last: bool = False  # leave out a last, shorter batch of an epoch (not where it is the only one)

    def batches(self, rows: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
        """The rows [n] of each step's mini-batch; reshuffled every epoch, none left out unless `drop_last`."""
        num_examples = len(rows)
        if num_examples == 0:
            return []
        if self.batch_size == "full" or self.batch_size >= num_examples:
            return [rows] * self.epochs
        size, end = self.batch_size, num_examples
        if self.drop_last:
            end -= num_examples % size
        steps = []
        for _ in range(self.epochs):
            order = rows[rng.permutation(num_examples)]
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
    moments: Any  # of the local optimiser, after the last step
    losses: Tensor  # [steps], objective of each step's clean pass
    gradients: int  # gradient evaluations


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
    num_steps: int,
    validation: Examples | None,
    random_direction: Callable[[], Tensor],
    two_pass_share: float = 1.0,
    moments: Any = None,
    differentiate: Differentiate | None = None,
    watch: Watch | None = None,
) -> Trained:
    """Train one client for one round.

    `batches()` starts the round's mini-batches afresh; `sent.w` is the global model, `buffers` the client's first buffers (not changed),
    `moments` what its optimiser kept (None: it starts afresh), `differentiate` the task's loss and gradient by other means than autograd.
    """
    first_buffers = buffers
    buffers = {name: b.clone() for name, b in buffers.items()}
    optimizer, scaler = plan.optimizer, first_scaler(sent.w) if plan.precision == "float16" else None
    by_other_means = differentiate if algorithm.objective_is_loss and plan.precision == "float32" else None
    max_norm = plan.clip_norm if plan.clip_scope == "data_gradient" else None
    numerics = Numerics(max_norm, plan.precision, plan.same_masks, model.own, by_other_means)
    # A step's gradient with nothing around it. Dropout's masks, buffers and a client's own parameters need more.
    is_plain = by_other_means is not None and not (plan.micro_batch or plan.same_masks or model.own or buffers)
    # What `begin` looks at has no second chance to be scaled less, so it is never in float16.
    exact = numerics if scaler is None else numerics._replace(precision="float32")

    def objective_of(part: Examples, local: State) -> Callable[[Buffers], Objective]:
        return lambda own: algorithm.objective(BoundBatch(model, loss, own, *part), sent, local)

    def grad_of(example: Examples, local: State, moving: Buffers | None, step: int = 0) -> ObjectiveGrad:
        parts = [Part(share, objective_of(part, local), part) for share, part in micro_batches(example, plan.micro_batch)]
        if moving is None:
            return ObjectiveGrad(parts, None, first_buffers, exact, step)
        return ObjectiveGrad(parts, moving, moving, numerics, step, None if scaler is None else scaler.scale)

    more = algorithm.num_reference_batches - 1
    reference = [grad_of(example, kept, None) for example in islice(batches(), 1, 1 + more)] if more else []
    held_out = None if validation is None else grad_of(validation, kept, None)
    start = RoundStart(
        round, lr, reference, held_out, random_direction, model.layout, num_steps, two_pass_share, steps_may_fail=scaler is not None
    )
    drawn_from = torch.get_rng_state() if reference or held_out else None
    local = algorithm.begin(start, sent, kept)
    if drawn_from is not None:  # what a method looks at beforehand does not change the steps' dropout
        torch.set_rng_state(drawn_from)
    gradients = sum(grad.passes for grad in [*reference, *([held_out] if held_out else [])])

    w, own_w = sent.w, model.own.flatten(buffers) if model.own else None
    moments, own_moments = moments or (optimizer.init(w), () if own_w is None else optimizer.init(own_w))
    losses: list[Tensor] = []
    num_counted = sent.w.new_zeros(())
    for example in batches():
        before = None if scaler is None else (w, moments, local, own_w, own_moments, {name: b.clone() for name, b in buffers.items()})
        if by_other_means is not None and is_plain:
            grad: ObjectiveGrad = WholeLossGrad(by_other_means, example, objective_of(example, local), numerics, len(losses))
        else:
            grad = grad_of(example, local, buffers, len(losses))
        is_ours = bool(losses) and scaler is None  # from the second step on, w is ours if nobody keeps it
        w, moments, local, direction = local_step(algorithm, plan, grad, w, sent, local, moments, lr, is_ours)
        own_direction = None  # own parameters follow the gradient of the last pass
        if own_w is not None and grad.own_gradient is not None:
            own_direction = grad.own_gradient + plan.weight_decay * own_w
            own_w, own_moments = optimizer.step(own_w, own_direction, own_moments, lr)
        if scaler is not None:  # an overflow of float16: the step does not count, and the next one is scaled less
            is_finite = torch.isfinite(direction).all()
            if own_direction is not None:
                is_finite = is_finite & torch.isfinite(own_direction).all()
            w, moments, local, own_w, own_moments, buffers = where_state(
                is_finite, (w, moments, local, own_w, own_moments, buffers), before
            )
            direction, scaler = torch.where(is_finite, direction, 0.0), next_scaler(scaler, is_finite)
            num_counted = num_counted + is_finite
        if model.own and own_w is not None:
            buffers |= model.own.unflatten(own_w)
        gradients += grad.passes
        losses.append(w.new_zeros(()) if grad.first_loss is None else grad.first_loss)
        if watch:
            watch(len(losses), direction, w)
    steps = len(losses)
    work = Work(steps, lr, optimizer.effective_steps(steps))
    if scaler is not None:
        work = _work_that_counted(optimizer, steps, num_counted, lr)
        w = torch.where(num_counted > 0, w, torch.nan)  # a round without a step is no answer: the guard refuses it
    upload, kept = algorithm.upload(w, sent, local, work)
    return Trained(upload, kept, buffers, (moments, own_moments), torch.stack(losses) if losses else w.new_zeros(0), gradients)


class Step(NamedTuple):
    """What one local step leaves."""

    w: Tensor  # [d]
    moments: Any
    local: State
    direction: Tensor  # [d]


def local_step(
    algorithm: Algorithm, plan: LocalPlan, grad: BatchGrad, w: Tensor, sent: State, local: State, moments: Any, lr: float, is_ours: bool
) -> Step:
    """One local step. is_ours: the memory of w may take the new weights, if neither the method nor the optimiser keeps it."""
    direction, local = algorithm.direction(grad, w, sent, local)
    if plan.clip_norm:
        direction = CLIP_SCOPES[plan.clip_scope](direction, w, plan.clip_norm, algorithm.proximal_weight)
    if plan.weight_decay:
        direction = direction + plan.weight_decay * w
    if (beside := algorithm.beside(w, sent, local)) is not None:
        w = w - lr * beside
    w, moments = plan.optimizer.step(w, direction, moments, lr, w if is_ours and not holds((local, moments), w) else None)
    return Step(w, moments, local, direction)


def _work_that_counted(optimizer: LocalOptimizer, steps: int, num_counted: Tensor, lr: float) -> Work:
    """The work of `num_counted` [] of the steps, at least of one."""
    taken = num_counted.clamp(min=1)
    displacements = num_counted.new_tensor([optimizer.effective_steps(each) for each in range(max(steps, 1) + 1)])
    return Work(taken, lr, displacements[taken.long()])


def upload_template(algorithm: Algorithm, w: Tensor, layout: Layout) -> Any:
    """An upload of the right fields, shapes and dtypes, from no work: what the guard holds uploads against."""
    sent, kept = algorithm.broadcast(algorithm.init_server(w)), algorithm.init_client(w)
    local = algorithm.begin(RoundStart(1, 1.0, (), None, lambda: torch.zeros_like(w), layout, 1, 1.0), sent, kept)
    return algorithm.upload(w, sent, local, Work(1, 1.0, 1.0))[0]


def epoch_means(losses: Sequence[float], epochs: int) -> tuple[float, ...]:
    """Mean of a round's step losses for each local epoch."""
    if not losses:
        return ()
    size, longer = divmod(len(losses), min(epochs, len(losses)))  # the first `longer` epochs have one step more
    ends = [size * epoch + min(epoch, longer) for epoch in range(min(epochs, len(losses)) + 1)]
    return tuple(sum(losses[start:end]) / (end - start) for start, end in itertools.pairwise(ends))
