"""A block of clients from their first step to their uploads, side by side: [C, ...] where one client has [...].

Clients are sorted by their number of steps, and those that are done leave: a step costs what those cost that still train. Batches of
unequal length are padded where the loss is a plain mean over examples; else clients whose batches are equally long go together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.algorithm import RoundStart, Work
from fedaccord.core.batch import BoundBatch, FunctionalGrad
from fedaccord.core.local import local_step
from fedaccord.core.state import State, separated, tensors_of
from fedaccord.runtime.client import Assignment, Clients, Request
from fedaccord.runtime.padding import Padded, PerExample

Rebuild = Callable[[Sequence[Tensor]], State]


class NeedsDirection(Exception):
    """The method asks for random directions, which were not drawn."""


class Examples(NamedTuple):
    """One set of examples of each of several clients, equally long or padded."""

    x: Tensor  # [C, B, ...]
    y: Tensor  # [C, B, ...]
    share: Tensor | None  # [C, B], of each example in its client's mean; None where nothing is padded


class Member(NamedTuple):
    """One client of a block."""

    assigned: Assignment
    batches: list[np.ndarray]  # rows of each step
    validation: np.ndarray  # rows that do not train, perhaps none

    @property
    def num_steps(self) -> int:
        return len(self.batches)


class Table:
    """The rows of all mini-batches of some clients, looked up once. Short batches are filled with their own first example."""

    def __init__(self, members: Sequence[Sequence[np.ndarray]]) -> None:
        steps = max(map(len, members))
        self.lengths = np.zeros((len(members), steps), dtype=np.int64)  # [C, K]; 0 for steps that a client does not take
        for own, batches in zip(self.lengths, members, strict=True):
            own[: len(batches)] = [len(batch) for batch in batches]
        counts = np.arange(self.lengths.max()) < self.lengths[..., None]
        rows = np.zeros(counts.shape, dtype=np.int64)
        rows[counts] = np.concatenate([batch for batches in members for batch in batches])
        self.rows = np.where(counts, rows, rows[..., :1])  # [C, K, B]

    def of_step(self, clients: int | np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(rows [C, B], how many of them are the client's own batch [C]), of the first clients or of those named."""
        chosen = slice(clients) if isinstance(clients, int) else clients
        lengths = self.lengths[chosen, step]
        return self.rows[chosen, step, : lengths.max()], lengths


class Started(NamedTuple):
    """Clients before their first step. `w` is the same for all."""

    members: list[Member]
    local: list[Tensor]  # tensors of the method's local state, [C, ...] each
    rebuild: Rebuild
    told: tuple[Any, ...]  # what the local state holds beside tensors, the same for all
    gradients: list[int]  # evaluated so far by each


class TrainedTogether(NamedTuple):
    """What local training returns, of clients side by side: [C, ...] where one client has [...]."""

    members: list[Member]
    upload: State
    kept: State
    moments: State  # of the local optimiser, after the last step
    losses: Tensor  # [C, K], objective of each step's clean pass; 0 after a client's last step
    gradients: list[int]  # gradient evaluations of each


class Carry(NamedTuple):
    """What the steps thread through, [C, ...] each."""

    w: Tensor
    moments: list[Tensor]
    local: list[Tensor]

    def rows(self, chosen: slice | Tensor) -> Carry:
        return Carry(self.w[chosen], [each[chosen] for each in self.moments], [each[chosen] for each in self.local])


class Block:
    """Trains one block. per_example: the loss of each example where batches may be padded, None where they may not."""

    def __init__(self, request: Request, clients: Clients, per_example: PerExample | None, draws_directions: bool) -> None:
        self._request, self._clients, self._per_example = request, clients, per_example
        self._draws_directions = draws_directions
        self._max_norm = request.plan.clip_norm if request.plan.clip_scope == "data_gradient" else None

    def trained(self, block: Sequence[Assignment]) -> list[TrainedTogether]:
        """What the clients' training returned, of each group of clients whose methods were told the same."""
        data, round = self._clients.data, self._request.round
        self._clients.model.train(True)
        rows = data.batch_rows_of_all([each.client for each in block], round, [each.plan for each in block])
        members = [Member(each, batches[: each.num_steps], data.validation[each.client]) for each, batches in zip(block, rows, strict=True)]
        try:
            return [self._steps(group) for group in self._groups(members)]
        finally:
            self._clients.model.release()

    def _groups(self, members: list[Member]) -> Iterator[Started]:
        """Clients that start alike, then joined where their methods were told the same, so that the steps are taken together."""
        started = [self._begun(list(alike)) for _, alike in groupby(sorted(members, key=self._told), key=self._told)]
        for _, alike in groupby(sorted(started, key=lambda each: repr(each.told)), key=lambda each: repr(each.told)):
            yield _joined(list(alike))

    def _told(self, member: Member) -> tuple[Any, ...]:
        """What `begin` sees as plain numbers and shapes."""
        lengths = () if self._per_example else tuple(map(len, self._reference(member)))
        validation = min(len(member.validation), 1) if self._per_example else len(member.validation)
        return -member.num_steps, member.assigned.two_pass_share, validation, lengths

    def _reference(self, member: Member) -> list[np.ndarray]:
        return member.batches[1 : self._request.algorithm.num_reference_batches]

    def _begun(self, members: list[Member]) -> Started:
        request, first = self._request, members[0]
        kept, rebuild_kept, _ = _stacked([each.assigned.state.kept for each in members])
        reference, held_out = [], None
        if num_reference := len(self._reference(first)):
            table = Table([self._reference(each) for each in members])
            reference = [self._examples(*table.of_step(len(members), step)) for step in range(num_reference)]
        if len(first.validation):
            held_out = self._examples(*Table([[each.validation] for each in members]).of_step(len(members), 0))
        direction = None
        if self._draws_directions:
            direction = torch.stack([self._clients.random_direction(request, each.assigned.client) for each in members])
        seen: dict[str, Any] = {}

        def one(kept: list[Tensor], reference: list[Examples], held_out: Examples | None, direction: Tensor | None) -> list[Tensor]:
            state = rebuild_kept(kept)
            grads = [self._grad(each, state, 0) for each in reference]
            validation = None if held_out is None else self._grad(held_out, state, 0)

            def random_direction() -> Tensor:
                if direction is None:
                    raise NeedsDirection
                return direction

            start = RoundStart(
                request.round,
                request.lr,
                grads,
                validation,
                random_direction,
                self._clients.model.layout,
                first.num_steps,
                first.assigned.two_pass_share,
            )
            tensors, seen["rebuild"], seen["told"] = separated(request.algorithm.begin(start, request.sent, state))
            seen["gradients"] = sum(grad.passes for grad in [*grads, *([validation] if validation else [])])
            return tensors

        local = _vmapped(one, len(members), kept, reference, held_out, direction)
        return Started(members, local, seen["rebuild"], seen["told"], [seen["gradients"]] * len(members))

    def _steps(self, group: Started) -> TrainedTogether:
        request, members = self._request, group.members
        w = request.sent.w.expand(len(members), -1)
        kept_moments = [
            each.assigned.state.moments[0] if each.assigned.state.moments else request.plan.optimizer.init(w[0]) for each in members
        ]
        moments, rebuild_moments, _ = _stacked(kept_moments)
        carry, left, losses, passes = Carry(w, moments, group.local), [], [], [0]
        active, table = len(members), Table([each.batches for each in members])
        for step in range(members[0].num_steps):
            still = int((table.lengths[:active, step] > 0).sum())
            if still < active:
                left.append(carry.rows(slice(still, active)))
                carry, active = carry.rows(slice(still)), still
            carry, loss, count = self._step(group, carry, rebuild_moments, table, active, step)
            losses.append(loss)
            passes.append(count)
        whole = _concatenated([carry, *reversed(left)])
        return self._uploads(group, whole, rebuild_moments, losses, passes)

    def _step(
        self, group: Started, carry: Carry, rebuild_moments: Rebuild, table: Table, active: int, step: int
    ) -> tuple[Carry, Tensor, int]:
        """(the carry, the losses [C] of the clean passes, gradients that each evaluated), after one step of the first `active` clients."""
        rows, lengths = table.of_step(active, step)
        if self._per_example or (lengths == lengths[0]).all():
            return self._vmapped_step(group, carry, rebuild_moments, self._examples(rows, lengths), step)
        parts, places = [], []
        for length in np.unique(lengths):
            alike = np.flatnonzero(lengths == length)
            place = torch.from_numpy(alike)
            parts.append(self._vmapped_step(group, carry.rows(place), rebuild_moments, self._examples(*table.of_step(alike, step)), step))
            places.append(place)
        back = torch.cat(places).argsort()
        return _concatenated([part[0] for part in parts]).rows(back), torch.cat([part[1] for part in parts])[back], parts[0][2]

    def _vmapped_step(
        self, group: Started, carry: Carry, rebuild_moments: Rebuild, given: Examples, step: int
    ) -> tuple[Carry, Tensor, int]:
        request, passes = self._request, 0

        def one(
            w: Tensor, moments: list[Tensor], local: list[Tensor], examples: Examples
        ) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
            nonlocal passes
            state = group.rebuild(local)
            grad = self._grad(examples, state, step)
            after = local_step(
                request.algorithm, request.plan, grad, w, request.sent, state, rebuild_moments(moments), request.lr, is_ours=False
            )
            tensors, _, told = separated(after.local)
            assert told == group.told, "a method's plain numbers do not change over its steps"
            passes = grad.passes
            loss = w.new_zeros(()) if grad.first_loss is None else grad.first_loss
            return after.w, separated(after.moments)[0], tensors, loss

        w, moments, local, loss = _vmapped(one, len(carry.w), carry.w, carry.moments, carry.local, given)
        return Carry(w, moments, local), loss, passes

    def _uploads(self, group: Started, carry: Carry, rebuild_moments: Rebuild, losses: list[Tensor], passes: list[int]) -> TrainedTogether:
        request, members = self._request, group.members
        steps = carry.w.new_tensor([each.num_steps for each in members])
        effective = carry.w.new_tensor([request.plan.optimizer.effective_steps(each.num_steps) for each in members])
        seen: dict[str, Rebuild] = {}

        def one(w: Tensor, local: list[Tensor], steps: Tensor, effective: Tensor) -> tuple[list[Tensor], list[Tensor]]:
            work = Work(steps, request.lr, effective)
            upload, kept = request.algorithm.upload(w, request.sent, group.rebuild(local), work)
            (sent, seen["upload"], _), (own, seen["kept"], _) = separated(upload), separated(kept)
            return sent, own

        sent, own = _vmapped(one, len(members), carry.w, carry.local, steps, effective)
        table = carry.w.new_zeros(len(members), len(losses))
        for step, each in enumerate(losses):
            table[: len(each), step] = each
        spent = np.cumsum(passes)
        gradients = [before + int(spent[each.num_steps]) for each, before in zip(members, group.gradients, strict=True)]
        upload, kept, moments = seen["upload"](sent), seen["kept"](own), rebuild_moments(carry.moments)
        return TrainedTogether(members, upload, kept, (moments, ()), table, gradients)

    def _grad(self, examples: Examples, local: State, step: int) -> FunctionalGrad:
        own, request = self._clients, self._request
        batch: Any
        if examples.share is None:
            batch = BoundBatch(own.model, own.loss, {}, examples.x, examples.y)
        else:
            assert self._per_example is not None
            batch = Padded(own.model, self._per_example, examples.x, examples.y, examples.share)
        return FunctionalGrad(request.algorithm.objective(batch, request.sent, local), step, self._max_norm)

    def _examples(self, rows: np.ndarray, lengths: np.ndarray) -> Examples:
        """The examples at these rows [C, B] of the data, one set a client, of which the first lengths [C] count."""
        x, y = self._clients.data.examples_at(rows)
        if (lengths == rows.shape[1]).all():
            return Examples(x, y, None)
        counts = np.arange(rows.shape[1]) < lengths[:, None]
        return Examples(x, y, torch.from_numpy(counts / lengths[:, None]).to(self._request.sent.w))


def _joined(parts: list[Started]) -> Started:
    """Groups that were told the same as one, in the order of their steps."""
    parts = sorted(parts, key=lambda part: -part.members[0].num_steps)
    members = [member for part in parts for member in part.members]
    gradients = [count for part in parts for count in part.gradients]
    local = [torch.cat(each) for each in zip(*(part.local for part in parts), strict=True)] if len(parts) > 1 else parts[0].local
    return parts[0]._replace(members=members, local=local, gradients=gradients)


def _concatenated(parts: list[Carry]) -> Carry:
    if len(parts) == 1:
        return parts[0]
    moments = [torch.cat(each) for each in zip(*(part.moments for part in parts), strict=True)]
    local = [torch.cat(each) for each in zip(*(part.local for part in parts), strict=True)]
    return Carry(torch.cat([part.w for part in parts]), moments, local)


def _stacked(states: Sequence[State]) -> tuple[list[Tensor], Rebuild, tuple[Any, ...]]:
    """Trees of one shape as one tree of [C, ...] tensors."""
    _, rebuild, told = separated(states[0])
    tensors = [torch.stack(each) for each in zip(*map(tensors_of, states), strict=True)]
    return tensors, rebuild, told


def _vmapped(function: Callable[..., Any], size: int, *arguments: Any) -> Any:
    """torch.func.vmap over the first dimension of every tensor in the arguments; also where there is none."""
    tensors, rebuild, _ = separated(tuple(map(_as_state, arguments)))
    extra = torch.arange(size, device=tensors[0].device if tensors else None)

    def one(_: Tensor, *given: Tensor) -> Any:
        return function(*rebuild(given))

    return torch.func.vmap(one, randomness="error")(extra, *tensors)


def _as_state(argument: Any) -> State:
    return tuple(map(_as_state, argument)) if isinstance(argument, list) else argument
