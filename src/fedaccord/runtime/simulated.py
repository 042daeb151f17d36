"""What all runtimes on one machine share: clients' state, and the global model on their held-out examples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedaccord.core.algorithm import Algorithm
from fedaccord.core.local import LocalPlan
from fedaccord.core.reports import Evaluation
from fedaccord.core.state import State
from fedaccord.core.vector import Buffers
from fedaccord.runtime.allocator import keep_freed_blocks
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.evaluation import Metric, evaluate_parts
from fedaccord.runtime.states import ClientState, ClientStates


class Simulated:
    """A runtime whose clients' data lie in this process; `_answers` says where and how they train."""

    def __init__(self, clients: Clients, metrics: Mapping[str, Metric], states: ClientStates) -> None:
        self._clients, self._metrics, self._states = clients, metrics, states
        self._pending: dict[int, ClientState] = {}
        keep_freed_blocks()

    @property
    def population(self) -> int:
        return len(self._clients.data)

    def expect(self, clients: Sequence[int]) -> None:
        self._states.expect(clients)

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Buffers, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        answers = list(self._answers(Request(algorithm, sent, buffers, plan, round, lr), clients))
        self._pending = {answer.upload.client: answer.kept for answer in answers if answer.kept is not None}
        return [self._clients.on_its_device(answer.upload) for answer in answers]

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        """What each client of the cohort answers, in any order."""
        raise NotImplementedError

    def settle(self, accepted: Collection[int]) -> None:
        self._states.settle({client: state for client, state in self._pending.items() if client in accepted})
        self._pending = {}

    def client_state(self, client: int) -> State | None:
        """All that a client keeps between rounds, the method's own state first; None where it never had an upload accepted."""
        return self._states.load(client)

    def evaluate(self, w: Tensor, buffers: Buffers, clients: Sequence[int]) -> list[Evaluation]:
        own, data = self._clients, self._clients.data
        parts = (data.examples(data.held_out, client) for client in clients)
        if not own.local_buffers:
            return evaluate_parts(own.model, w, buffers, parts, own.loss, self._metrics)
        found = (self._states.load(client) for client in clients)
        kept = (buffers if state is None else state.buffers for state in found)
        return [evaluate_parts(own.model, w, b, [part], own.loss, self._metrics)[0] for b, part in zip(kept, parts, strict=True)]

    def save(self, folder: Path) -> None:
        self._states.save(folder)

    def committed(self, folder: Path) -> None:
        self._states.committed(folder)

    def restore(self, folder: Path | None) -> None:
        self._states.restore(folder)

    def close(self) -> None:
        """Nothing was started."""
