"""Many clients at once: blocks of a cohort side by side, under torch.func.vmap."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from fedaccord.core.local import LocalPlan
from fedaccord.core.state import map_state
from fedaccord.core.vector import FlatModel
from fedaccord.runtime.block import Block, NeedsDirection
from fedaccord.runtime.client import Answer, Assignment, Clients, Request
from fedaccord.runtime.evaluation import Metric
from fedaccord.runtime.padding import PerExample
from fedaccord.runtime.simulated import Simulated
from fedaccord.runtime.states import ClientStates

BLOCK_BYTES = 1 << 28  # of weights side by side, with the copies that a step makes
COPIES = 8  # of a client's weights: gradient, direction, perturbed point, method's state
RANDOM_LAYERS = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def why_not(model: FlatModel, plan: LocalPlan) -> str | None:
    """What keeps this model, trained by this plan, from running for many clients at once; None for nothing."""
    if model.initial_buffers:
        return f"the model has buffers that move ({next(iter(model.initial_buffers))!r}); GroupNorm has none"
    random = [name for name, part in model.module.named_modules() if isinstance(part, RANDOM_LAYERS) and getattr(part, "p", 1) > 0]
    if random:
        return f"the layer {random[0]!r} draws random numbers, one client after another"
    if plan.precision != "float32":
        return f"local.precision is {plan.precision!r}"
    return "local.micro_batch splits the batches" if plan.micro_batch is not None else None


def block_size(w: Tensor) -> int:
    """How many clients with models like w [d] are trained side by side, unless somebody says."""
    return max(1, BLOCK_BYTES // (COPIES * w.nbytes))


class Vectorized(Simulated):
    """per_example: the task's loss of each example, where batches may be padded; block: how many clients at once (None: what fits)."""

    def __init__(
        self,
        clients: Clients,
        metrics: Mapping[str, Metric],
        states: ClientStates,
        per_example: PerExample | None = None,
        block: int | None = None,
    ) -> None:
        super().__init__(clients, metrics, states)
        self._per_example, self._size = per_example, block
        self._draws_directions = False

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        own = self._clients
        self._states.expect(clients)
        assigned = [own.assignment(request, client, self._states.load(client)) for client in clients]
        yield from (own.without_data(request, each.client) for each in assigned if not each.num_examples)
        working = sorted((each for each in assigned if each.num_examples), key=lambda each: (-each.num_steps, each.client))
        size = self._size or block_size(request.sent.w)
        for start in range(0, len(working), size):
            yield from self._block(request, working[start : start + size])

    def _block(self, request: Request, assigned: list[Assignment]) -> Iterator[Answer]:
        started = time.perf_counter()
        per_example = self._per_example if request.algorithm.objective_is_loss else None
        try:
            trained = Block(request, self._clients, per_example, self._draws_directions).trained(assigned)
        except NeedsDirection:
            self._draws_directions = True
            yield from self._block(request, assigned)
            return
        except Exception:  # one client fails, or user code looks at values: each alone says what is wrong
            yield from (self._clients.train(request, each.client, self._states.load(each.client)) for each in assigned)
            return
        seconds = (time.perf_counter() - started) / len(assigned)
        yield from (self._clients.answer(request, each, trained[each.client], seconds) for each in assigned)

    def settle(self, accepted: Collection[int]) -> None:
        """Each row becomes a tensor of its own, or one client's state would keep its whole block in memory."""
        self._pending = {client: map_state(torch.clone, state) for client, state in self._pending.items() if client in accepted}
        super().settle(accepted)
