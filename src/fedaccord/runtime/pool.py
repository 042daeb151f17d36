"""The cohort in worker processes, one a core, each with one thread: the bits are those of one client after another.

Data lie once in memory that all share; what the server sends is written there once a round, states and uploads pass through each
worker's own part of it, and only small messages cross the sockets. Which worker trains a client never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedaccord.core.algorithm import Algorithm
from fedaccord.core.local import LocalPlan
from fedaccord.core.state import num_bytes
from fedaccord.runtime.balance import Queue
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.carrying import packed, read_tree, unpacked_error, write_tree
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.cores import cores
from fedaccord.runtime.crew import DEPTH, FIRST, Answers, Crew, Loaded, Order, Told, Trained, Worker
from fedaccord.runtime.evaluation import Metric
from fedaccord.runtime.shared import Forms, Memory
from fedaccord.runtime.simulated import Simulated
from fedaccord.runtime.states import ClientStates

ORDER_BYTES = 16 << 20  # what the clients of one order may keep and send together, unless it is a single one
ORDER_CLIENTS = 256  # messages stay far smaller than a socket's buffer, so that nobody waits for the other to read
ORDER_SECONDS = 0.002  # an order of less work is not worth its message


class Pool(Simulated):
    """`workers` processes (default: the cores that this process may use), started in the first round and kept until `close`.

    crew: workers that several pools use, one after another. Raises E217 where the task cannot be sent to other processes, E207 where
    they cannot import it, E702 where one of them dies; the next round starts new ones.
    """

    def __init__(
        self,
        clients: Clients,
        metrics: Mapping[str, Metric],
        states: ClientStates,
        workers: int | None = None,
        crew: Crew | None = None,
    ) -> None:
        super().__init__(clients, metrics, states)
        self._crew = crew or Crew(workers or cores())
        self._loaded: Loaded | None = None
        self._method: tuple[Algorithm, LocalPlan, bytes] | None = None
        self._bytes_each = 1  # the most that a client has kept and sent
        self._steps_per_second = 0.0  # of the last orders of one worker; 0 where nothing is known

    def close(self) -> None:
        """End the workers now, and not when nobody holds the pool any more."""
        self._crew.close()

    def _answers(self, request: Request, clients: Sequence[int]) -> Iterable[Answer]:
        """In the order of `clients`. Where some raise, the first of them in that order does so here."""
        try:
            answers, problems = self._trained(request, clients)
        except BaseException:
            self._crew.close()  # some may still be training
            raise
        if problems:
            raise unpacked_error(problems[min(problems)])
        return [answers[position] for position in range(len(clients))]

    def _trained(self, request: Request, clients: Sequence[int]) -> tuple[dict[int, Answer], dict[int, bytes]]:
        """What came back, by position: answers, and what was raised instead. After the first such, only earlier ones are still asked."""
        if self._loaded is None:
            self._loaded = Loaded(self._clients)
        workers = self._crew.hire(len(clients), self._loaded)
        self._states.expect(clients)
        told = self._told(request, self._loaded)
        queue = Queue(self._steps(request, clients), max(len(workers), 1), ORDER_SECONDS * self._steps_per_second)
        self._bytes_each = max(self._bytes_each, num_bytes(request.sent.w))
        most = max(1, min(ORDER_CLIENTS, ORDER_BYTES // self._bytes_each))
        answers, problems = dict[int, Answer](), dict[int, bytes]()
        while True:
            for depth in range(DEPTH):
                for worker in workers:
                    if worker.has_room and len(worker.orders) == depth:
                        positions = queue.take(most, ahead=depth > 0)
                        self._order(worker, told, [(position, clients[position]) for position in positions])
            if not len(queue) and not any(worker.orders for worker in workers):
                break
            for worker in self._crew.answering():
                if (received := worker.receive()) is None:
                    continue
                done, memory = received
                self._learn(done)
                for each in done.trained:
                    if each.problem is None:
                        answers[each.position] = _answer(worker.forms, memory, clients[each.position], each)
                    else:
                        problems[each.position] = each.problem
                        queue.keep_before(min(problems))
        return answers, problems

    def _steps(self, request: Request, clients: Sequence[int]) -> list[tuple[int, int]]:
        """(expected steps, examples) of each client."""
        plan, offsets, chosen = request.plan, self._clients.data.train.offsets, np.asarray(clients, dtype=np.int64)
        sizes = (offsets[chosen + 1] - offsets[chosen]).tolist()
        return [(plan.epochs * plan.steps_per_epoch(size), size) for size in sizes]

    def _told(self, request: Request, loaded: Loaded) -> Told:
        algorithm, plan = request.algorithm, request.plan
        if self._method is None or self._method[0] is not algorithm or self._method[1] is not plan:
            self._method = algorithm, plan, packed((algorithm, plan), "the method")
        sent, _ = write_tree(self._crew.forms, loaded.round, 0, (request.sent, request.buffers))
        return Told(self._method[2], request.round, request.lr, sent)

    def _order(self, worker: Worker, told: Told, tasks: list[tuple[int, int]]) -> None:
        """Give a worker clients with their states, and all that it needs for them and does not know."""
        if not tasks:
            return
        number = worker.free_memory
        forms, memory, free, with_states = self._crew.forms, worker.memories[number], FIRST, []
        for position, client in tasks:
            found, place = self._states.load(client), None
            if found is not None:
                place, free = write_tree(forms, memory, free, found)
            with_states.append((position, client, place))
        new = forms.after(worker.num_forms)
        worker.num_forms += len(new)
        news = None
        if worker.round is not told:
            news = told._replace(method=None) if worker.method == told.method else told
            worker.round, worker.method = told, told.method
        worker.order(Order(packed(new, "the method") if new else None, news, number, with_states, free))

    def _learn(self, done: Answers) -> None:
        """How much clients send and how fast they are, for the orders to come."""
        self._bytes_each = max(self._bytes_each, (done.end - FIRST) // len(done.trained))
        steps = sum(each.report.steps for each in done.trained if each.report)
        self._steps_per_second = max(steps, len(done.trained)) / max(done.seconds, 1e-6)


def _answer(forms: Forms, memory: Memory, client: int, each: Trained) -> Answer:
    """With tensors of our own: the worker writes its next answers over these."""
    upload, buffers = read_tree(forms, memory, each.sent, copy=True)
    kept = None if each.kept is None else read_tree(forms, memory, each.kept, copy=True)
    error: Any = None if each.error is None else unpacked_error(each.error)
    assert each.report is not None
    return Answer(ClientUpload(client, upload, buffers, each.report, error), kept)
