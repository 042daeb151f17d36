"""A process that trains clients for whoever hired it. It ends when nobody is at the other end of its socket any more."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedaccord.core.errors import ConfigError
from fedaccord.runtime.allocator import keep_freed_blocks
from fedaccord.runtime.carrying import Written, message, packed, packed_error, parts_of, read_tree, unpacked, write_tree
from fedaccord.runtime.client import Answer, Clients, Request
from fedaccord.runtime.columns import rows_of
from fedaccord.runtime.crew import DEPTH, NOBODY, Answers, Load, Order, Tasks, Told, Trained, client_at
from fedaccord.runtime.shared import Forms, Memory
from fedaccord.runtime.side_by_side import SideBySide
from fedaccord.runtime.states import ClientState


class Trainer:
    """The clients as they were loaded, the round as it was told, and the memories that states come in and answers leave by."""

    def __init__(self, memories: list[Memory]) -> None:
        self._memories, self._read, self._written = memories, Forms(), Forms()
        self._num_told = 0  # forms of ours that the other side knows

    def load(self, order: Load, arrays: Memory, round_memory: Memory) -> None:
        """E207 where the code of the task cannot be imported here."""
        sys.path[:] = order.search_path
        order.settings.apply()
        try:
            clients, per_example = unpacked(order.clients, arrays)
        except Exception as problem:
            what = f"a worker process cannot take up the task: {type(problem).__name__}: {problem}"
            raise ConfigError("E207", what, "runtime", "Import what the task needs by its own name from the search path") from problem
        self._clients: Clients = clients
        self._side_by_side, self._round_memory = SideBySide(clients, per_example), round_memory

    def train(self, order: Order) -> Answers:
        """The clients of an order, one after another, or side by side if that can be done."""
        if order.forms is not None:
            self._read.learn(unpacked(order.forms))
        if order.told is not None:
            self._request = self._told(order.told)
        started, memory = time.perf_counter(), self._memories[order.memory]
        if isinstance(order.tasks, list):
            found = ((client, None if at is None else read_tree(self._read, memory, at, copy=False)) for client, at in order.tasks)
            columns = list[Written]()
            trained, end = self._one_by_one(found, memory, order.free)
        else:
            columns, trained, end = self._together(*self._tasks(memory, order.tasks), memory, order.free)
        new = self._written.after(self._num_told)
        self._num_told += len(new)
        return Answers(packed(new, "a method") if new else None, trained, columns, end, time.perf_counter() - started)

    def _tasks(self, memory: Memory, written: Written) -> tuple[list[int], list[ClientState | None]]:
        """(clients, the state of each)."""
        tasks: Tasks = read_tree(self._read, memory, written, copy=False)
        has_state = tasks.has_state.tolist()
        states = iter(rows_of(tasks.states, sum(has_state)))
        return tasks.client.tolist(), [next(states) if has_one else None for has_one in has_state]

    def _together(
        self, clients: list[int], states: list[ClientState | None], memory: Memory, free: int
    ) -> tuple[list[Written], list[Trained], int]:
        """(where the columns of their answers are, or the answers of each, the end of what was written)."""
        client_at(memory)[0] = NOBODY
        columns = self._side_by_side.columns(self._request, clients, states)
        if columns is None:
            return [], *self._one_by_one(zip(clients, states, strict=True), memory, free)
        written = []
        for each in columns:
            place, free = write_tree(self._written, memory, free, each)
            written.append(place)
        return written, [], free

    def _one_by_one(self, tasks: Iterable[tuple[int, ClientState | None]], memory: Memory, free: int) -> tuple[list[Trained], int]:
        """(the answers of each, the end of what was written)."""
        trained, at = [], client_at(memory)
        for client, state in tasks:
            at[0] = client
            try:
                line, free = self._line(self._clients.train(self._request, client, state), memory, free)
            except BaseException as problem:  # as if it had been raised where the others are
                line = Trained(problem=packed_error(problem))
            trained.append(line)
        return trained, free

    def _told(self, told: Told) -> Request:
        if told.method is not None:
            self._method: tuple[Any, Any] = unpacked(told.method)
        algorithm, plan = self._method
        sent, buffers = read_tree(self._read, self._round_memory, told.sent, copy=False)
        return Request(algorithm, sent, buffers, plan, told.round, told.lr)

    def _line(self, answer: Answer, memory: Memory, free: int) -> tuple[Trained, int]:
        upload, kept = answer.upload, None
        sent, free = write_tree(self._written, memory, free, (upload.upload, upload.buffers))
        if answer.kept is not None:
            kept, free = write_tree(self._written, memory, free, answer.kept)
        error = None if upload.error is None else packed_error(upload.error)
        return Trained(None, upload.report, error, sent, kept), free


def serve(number: int) -> None:
    """Work until the other end of the socket is closed."""
    for each in (signal.SIGINT, signal.SIGTERM):  # these are for whoever is at the other end
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(number,), daemon=True).start()
    _print_to_stderr()
    torch.set_num_threads(1)
    keep_freed_blocks()
    gc.freeze()  # all that was imported lives as long as this process: collections need not look through it
    link, connection = socket.socket(fileno=number), Connection(os.dup(number))
    trainer = Trainer([Memory(file) for file in _files(link, DEPTH)])
    while True:
        try:
            order = parts_of(connection.recv_bytes())
        except (EOFError, OSError):
            return
        answers, problem = None, None
        try:
            if isinstance(order, Load):
                arrays, round_memory = _files(link, 2)
                trainer.load(order, Memory(arrays, private=True), Memory(round_memory))
            else:
                answers = trainer.train(order)
        except BaseException as raised:
            problem = packed_error(raised)
        with contextlib.suppress(OSError):  # nobody is there any more
            connection.send_bytes(message((answers, problem)))


def _files(link: socket.socket, number: int) -> list[int]:
    _, files, _, _ = socket.recv_fds(link, 1, number)
    return list(files)


def _end_with(number: int) -> None:
    """End this process, whatever it is doing, once the other end of the socket is closed."""
    watch = select.poll()
    watch.register(number, 0)  # hanging up is always told
    watch.poll()
    os._exit(0)


def _print_to_stderr() -> None:
    """Whatever user code prints."""
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
