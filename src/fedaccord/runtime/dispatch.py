"""A cohort on its way to worker processes and back.

Data lie once in memory that all share; what the server sends is written there once a round, states and uploads pass through each
worker's own part of it, and only small messages cross the sockets. Which worker trains a client never matters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fedaccord.core.algorithm import Algorithm
from fedaccord.core.local import LocalPlan
from fedaccord.core.state import num_bytes
from fedaccord.runtime.balance import Parts
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.carrying import Written, packed, read_tree, unpacked_error, write_tree
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.columns import answers_of, stacked
from fedaccord.runtime.crew import DEPTH, FIRST, Answers, Crew, Given, Loaded, Order, Tasks, Told, Worker
from fedaccord.runtime.padding import PerExample
from fedaccord.runtime.shared import Memory
from fedaccord.runtime.states import ClientStates


class Dispatch:
    """Raises E217 where the task cannot be sent to other processes, E207 where they cannot import it, E702 where one of them dies; the
    next round starts new ones.
    """

    def __init__(self, clients: Clients, states: ClientStates, crew: Crew, per_example: PerExample | None = None) -> None:
        self.crew, self._clients, self._states, self._per_example = crew, clients, states, per_example
        self._loaded: Loaded | None = None
        self._method: tuple[Algorithm, LocalPlan, bytes] | None = None
        self.bytes_each = 1  # the most that a client has kept and sent
        self.steps_per_second = 0.0  # of the last orders of one worker; 0 where nothing is known

    def answers(self, request: Request, clients: Sequence[int], parts: Parts) -> list[Answer]:
        """In the order of `clients`, of those in the parts. Where some raise, the first of them in that order does so here."""
        try:
            answers, problems = self._trained(request, clients, parts)
        except BaseException:
            self.crew.close()  # some may still be training
            raise
        if problems:
            raise unpacked_error(problems[min(problems)])
        return [answers[position] for position in sorted(answers)]

    def _trained(self, request: Request, clients: Sequence[int], parts: Parts) -> tuple[dict[int, Answer], dict[int, bytes]]:
        """What came back, by position: answers, and what was raised instead. After the first such, only earlier ones are still asked."""
        if self._loaded is None:
            self._loaded = Loaded(self._clients, self._per_example)
        workers = self.crew.hire(len(parts), self._loaded)
        told = self._told(request, self._loaded)
        self.bytes_each = max(self.bytes_each, num_bytes(request.sent.w))
        answers, problems = dict[int, Answer](), dict[int, bytes]()
        while True:
            for depth in range(DEPTH):
                for worker in workers:
                    if worker.has_room and len(worker.orders) == depth and (positions := parts.take(ahead=depth > 0)):
                        self._order(worker, told, positions, [clients[position] for position in positions], parts.side_by_side)
            if not len(parts) and not any(worker.orders for worker in workers):
                break
            for worker in self.crew.answering():
                if (received := worker.receive()) is None:
                    continue
                done, given = received
                found = dict(_answers(worker, given, done, request.round))
                answers |= found
                self._learn(done, given, found)
                failed = {position: each.problem for position, each in zip(given.positions, done.trained, strict=False) if each.problem}
                if failed:
                    problems |= failed
                    parts.keep_before(min(problems))
        return answers, problems

    def _told(self, request: Request, loaded: Loaded) -> Told:
        algorithm, plan = request.algorithm, request.plan
        if self._method is None or self._method[0] is not algorithm or self._method[1] is not plan:
            self._method = algorithm, plan, packed((algorithm, plan), "the method")
        sent, _ = write_tree(self.crew.forms, loaded.round, 0, (request.sent, request.buffers))
        return Told(self._method[2], request.round, request.lr, sent)

    def _order(self, worker: Worker, told: Told, positions: list[int], clients: list[int], side_by_side: bool) -> None:
        """Give a worker clients with their states, and all that it needs for them and does not know."""
        number = worker.free_memory
        tasks, free = (self._together if side_by_side else self._alone)(worker.memories[number], clients)
        new = self.crew.forms.after(worker.num_forms)
        worker.num_forms += len(new)
        news = None
        if worker.round is not told:
            news = told._replace(method=None) if worker.method == told.method else told
            worker.round, worker.method = told, told.method
        worker.order(Order(packed(new, "the method") if new else None, news, number, tasks, free), positions, clients)

    def _alone(self, memory: Memory, clients: list[int]) -> tuple[list[tuple[int, Written | None]], int]:
        """Clients one after another, each with its state, and where the memory is free."""
        free, with_states = FIRST, []
        for client in clients:
            found, place = self._states.load(client), None
            if found is not None:
                place, free = write_tree(self.crew.forms, memory, free, found)
            with_states.append((client, place))
        return with_states, free

    def _together(self, memory: Memory, clients: list[int]) -> tuple[Written, int]:
        """Clients side by side: what they bring lies in the memory as one tree."""
        found = [self._states.load(client) for client in clients]
        known = [state for state in found if state is not None]
        tasks = Tasks(torch.tensor(clients), torch.tensor([state is not None for state in found]), stacked(known) if known else ())
        return write_tree(self.crew.forms, memory, FIRST, tasks)

    def _learn(self, done: Answers, given: Given, found: dict[int, Answer]) -> None:
        """How much clients send and how fast they are, for the orders to come."""
        self.bytes_each = max(self.bytes_each, (done.end - FIRST) // len(given.clients))
        steps = sum(answer.upload.report.steps for answer in found.values())
        self.steps_per_second = max(steps, len(given.clients)) / max(done.seconds, 1e-6)


def _answers(worker: Worker, given: Given, done: Answers, round: int) -> Iterator[tuple[int, Answer]]:
    """(position, answer), with tensors of our own: the worker writes its next answers over these."""
    memory = worker.memories[given.memory]
    for position, client, each in zip(given.positions, given.clients, done.trained, strict=False):  # nothing where they were side by side
        if each.problem is None:
            upload, buffers = read_tree(worker.forms, memory, each.sent, copy=True)
            kept = None if each.kept is None else read_tree(worker.forms, memory, each.kept, copy=True)
            error: Any = None if each.error is None else unpacked_error(each.error)
            assert each.report is not None
            yield position, Answer(ClientUpload(client, upload, buffers, each.report, error), kept)
    position_of = dict(zip(given.clients, given.positions, strict=True))
    for written in done.columns:
        for answer in answers_of(read_tree(worker.forms, memory, written, copy=True), round):
            yield position_of[answer.upload.client], answer
