"""Which clients of a cohort train side by side, and their training, in this process or in a worker's."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor, nn

from fedaccord.core.local import LocalPlan
from fedaccord.core.vector import FlatModel
from fedaccord.runtime.block import Block, NeedsDirection, TrainedTogether
from fedaccord.runtime.client import Assignment, Clients, Request
from fedaccord.runtime.columns import Columns, columns_of
from fedaccord.runtime.padding import PerExample
from fedaccord.runtime.states import ClientState

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
    """How many clients with models like w [d] are trained side by side at most, unless somebody says."""
    return max(1, BLOCK_BYTES // (COPIES * w.nbytes))


def blocks_of(steps: Sequence[int], clients: Sequence[int], size: int) -> list[list[int]]:
    """The positions of a cohort, cut into blocks of at most `size`.

    steps: expected of each. Blocks get their clients in turn, the longest first, so that all have about the same work; who is
    in which follows from the cohort alone, and with it every bit.
    """
    order = sorted(range(len(clients)), key=lambda position: (-steps[position], clients[position]))
    count = -(-len(order) // size)
    return [order[first::count] for first in range(count)]


class SideBySide:
    """Trains blocks. per_example: the task's loss of each example, where batches may be padded."""

    def __init__(self, clients: Clients, per_example: PerExample | None) -> None:
        self._clients, self._per_example = clients, per_example
        self._draws_directions = False

    def columns(self, request: Request, clients: Sequence[int], states: Sequence[ClientState | None]) -> list[Columns] | None:
        """Their answers; None where one of them fails, or user code looks at values: each alone says what is wrong."""
        started = time.perf_counter()
        try:
            assigned = [self._clients.assignment(request, client, found) for client, found in zip(clients, states, strict=True)]
            trained = self.trained(request, assigned)
            seconds = (time.perf_counter() - started) / len(clients)
            return [columns_of(request, each, seconds) for each in trained]
        except Exception:
            return None

    def trained(self, request: Request, assigned: Sequence[Assignment]) -> list[TrainedTogether]:
        """Their training; whatever it raises."""
        per_example = self._per_example if request.algorithm.objective_is_loss else None
        try:
            return Block(request, self._clients, per_example, self._draws_directions).trained(assigned)
        except NeedsDirection:
            self._draws_directions = True
            return Block(request, self._clients, per_example, self._draws_directions).trained(assigned)
