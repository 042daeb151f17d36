"""Many clients at once: blocks of a cohort side by side, under torch.func.vmap, in this process or one block a worker process."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch

from fedaccord.core.state import map_state, tensors_of
from fedaccord.runtime.balance import Blocks
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.columns import answers_of
from fedaccord.runtime.crew import Crew
from fedaccord.runtime.dispatch import Dispatch
from fedaccord.runtime.evaluation import Metric
from fedaccord.runtime.padding import PerExample
from fedaccord.runtime.side_by_side import SideBySide, block_size, blocks_of
from fedaccord.runtime.simulated import Simulated
from fedaccord.runtime.states import ClientStates


class Vectorized(Simulated):
    """per_example: the task's loss of each example, where batches may be padded; block: how many clients at once (None: what fits).

    workers: processes that train blocks; 1: this one. crew: workers that several runtimes use, one after another. The bits follow from
    the blocks, and those from the cohort and `block` alone. Raises what a `Dispatch` does.
    """

    def __init__(
        self,
        clients: Clients,
        metrics: Mapping[str, Metric],
        states: ClientStates,
        per_example: PerExample | None = None,
        block: int | None = None,
        workers: int = 1,
        crew: Crew | None = None,
    ) -> None:
        super().__init__(clients, metrics, states)
        self._size, self._side_by_side = block, SideBySide(clients, per_example)
        crew = Crew(workers) if crew is None and workers > 1 else crew
        self._dispatch = None if crew is None else Dispatch(clients, states, crew, per_example)

    def close(self) -> None:
        """End the workers now, and not when nobody holds the runtime any more."""
        if self._dispatch is not None:
            self._dispatch.crew.close()

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        work = self._clients.expected_work(request.plan, clients)
        answers = [self._clients.without_data(request, client) for client, (_, size) in zip(clients, work, strict=True) if not size]
        working = [(client, each) for client, each in zip(clients, work, strict=True) if each[1]]
        cohort = [client for client, _ in working]
        blocks = blocks_of([steps for _, (steps, _) in working], cohort, self._size or block_size(request.sent.w))
        if self._dispatch is not None:
            return answers + self._dispatch.answers(request, cohort, Blocks(blocks, self._dispatch.crew.size))
        return answers + [answer for block in blocks for answer in self._block(request, [cohort[position] for position in block])]

    def _block(self, request: Request, clients: list[int]) -> Iterator[Answer]:
        states = [self._states.load(client) for client in clients]
        columns = self._side_by_side.columns(request, clients, states)
        if columns is None:
            for client, state in zip(clients, states, strict=True):
                yield self._clients.train(request, client, state)
        else:
            for each in columns:
                yield from answers_of(each, request.round)

    def settle(self, accepted: Collection[int]) -> None:
        """Each row becomes a tensor of its own, or one client's state would keep its whole block in memory."""
        kept = [(client, state) for client, state in self._pending.items() if client in accepted]
        if kept and tensors_of(kept[0][1]):  # else there is nothing to copy
            kept = [(client, map_state(torch.clone, state)) for client, state in kept]
        self._pending = dict(kept)
        super().settle(accepted)
