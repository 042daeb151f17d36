"""Worker processes: started once, fed over sockets, gone when this process is gone, however it ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedaccord.core.errors import ConfigError, WorkerDied
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import State
from fedaccord.runtime.carrying import Written, message, packed_with_arrays, parts_of, unpacked, unpacked_error
from fedaccord.runtime.client import Clients
from fedaccord.runtime.padding import PerExample
from fedaccord.runtime.shared import ALIGNED, Forms, Memory

IS_WORKER = "FEDACCORD_WORKER"  # set in the environment of workers
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DEPTH = 2  # orders that a worker may have: it goes on with the second while we look at its answers to the first
PATIENCE = 1.0  # seconds without an answer after which we look whether all still live


class Settings(NamedTuple):
    """How torch computes in this process."""

    dtype: torch.dtype
    matmul: str
    deterministic: bool
    mkldnn: bool
    flushes_denormals: bool

    @classmethod
    def here(cls) -> Settings:
        tiny = torch.full((1,), 1e-39)
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            bool(torch.backends.mkldnn.enabled),
            not bool((tiny * 1.0).any()),
        )

    def apply(self) -> None:
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul)
        if self.deterministic != torch.are_deterministic_algorithms_enabled():  # not for nothing: it imports torch's compiler
            torch.use_deterministic_algorithms(self.deterministic)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]  # a descriptor that torch leaves untyped
        torch.set_flush_denormal(self.flushes_denormals)


class Load(NamedTuple):
    """Clients to train from now on; their arrays' memory and the round's memory follow on the socket."""

    search_path: list[str]
    settings: Settings
    clients: bytes  # (clients, the loss of each example)


class Told(NamedTuple):
    """What a worker keeps for all of a round's orders."""

    method: bytes | None  # (algorithm, plan), where it is another one
    round: int
    lr: float
    sent: Written  # (sent, buffers), in the round's memory


class Tasks(NamedTuple):
    """Clients to train side by side, in a worker's memory."""

    client: torch.Tensor  # [C]
    has_state: torch.Tensor  # [C]
    states: State  # [S, ...], of the S clients that have one; () where nobody has


class Order(NamedTuple):
    """Clients to train next."""

    forms: bytes | None  # that the worker does not know
    told: Told | None  # before a worker's first order of a round
    memory: int  # which one of the worker's
    tasks: list[tuple[int, Written | None]] | Written  # (client, its state), one after another; or where the `Tasks` are
    free: int  # where answers begin in this memory


class Trained(NamedTuple):
    """One client's answer, or what it raised."""

    problem: bytes | None = None
    report: ClientReport | None = None
    error: bytes | None = None  # of the upload
    sent: Written = (0, 0)  # (upload, buffers)
    kept: Written | None = None


class Answers(NamedTuple):
    """What a worker made of an order."""

    forms: bytes | None  # that we do not know
    trained: list[Trained]  # of each client, in the order in which they were given
    columns: list[Written]  # instead, of clients that trained side by side: `Columns`
    end: int  # of what it wrote
    seconds: float


class Given(NamedTuple):
    """An order that a worker has not answered."""

    memory: int
    positions: list[int]  # in the cohort
    clients: list[int]


class Loaded:
    """Clients, ready for any worker, and the loss of each example where batches may be padded."""

    def __init__(self, clients: Clients, per_example: PerExample | None = None) -> None:
        self.data, self.arrays = packed_with_arrays((clients, per_example), "the task (its model, its loss or its data)")
        self.round = Memory()  # what the server sends


class Worker:
    """One process, and what it knows."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setblocking(True)  # whatever the default timeout is
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fedaccord.runtime.pool_worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # it prints to stderr
            pass_fds=[theirs.fileno()],
            env={**os.environ, **ONE_THREAD, IS_WORKER: "1", "PYTHONPATH": os.pathsep.join(search_path())},
            start_new_session=True,  # the terminal's Ctrl-C does not reach it
        )
        theirs.close()
        self.socket, self.connection = ours, Connection(os.dup(ours.fileno()))
        self.memories = tuple(Memory() for _ in range(DEPTH))  # one for each order that it may have
        self.forms = Forms()  # of what it writes
        socket.send_fds(ours, [b"m"], [memory.file for memory in self.memories])
        self.loaded: Loaded | None = None
        self.method: bytes | None = None
        self.round: object = None  # the last one that it was told of
        self.num_forms = 0  # of ours that it knows
        self.loads = 0  # how often it has been given clients and has not said that it has them
        self.orders: deque[Given] = deque()

    @property
    def has_room(self) -> bool:
        """Whether it may be given an order."""
        return not self.loads and len(self.orders) < DEPTH

    @property
    def free_memory(self) -> int:
        """A memory that none of its orders uses."""
        used = {given.memory for given in self.orders}
        return next(number for number in range(DEPTH) if number not in used)

    def load(self, loaded: Loaded) -> None:
        """Give it clients; it answers None when it has them."""
        self.loaded, self.method, self.round = loaded, None, None
        self.loads += 1
        self._send(Load(search_path(), Settings.here(), loaded.data))
        socket.send_fds(self.socket, [b"m"], [loaded.arrays.file, loaded.round.file])

    def order(self, order: Order, positions: list[int], clients: list[int]) -> None:
        """Give it clients to train, the states that it needs being in its memory already."""
        self.orders.append(Given(order.memory, positions, clients))
        if len(self.orders) == 1:
            client_at(self.memories[order.memory])[0] = clients[0] if isinstance(order.tasks, list) else NOBODY
        self._send(order)

    def _send(self, order: Load | Order) -> None:
        try:
            self.connection.send_bytes(message(order))
        except OSError as problem:
            raise self.died() from problem

    def receive(self) -> tuple[Answers, Given] | None:
        """Its answers and what it had been given, None where it just says that it is ready; E207, E702 or its own where it could not."""
        try:
            answers, problem = parts_of(self.connection.recv_bytes())
        except (OSError, EOFError) as gone:
            raise self.died() from gone
        if problem is not None:
            raise unpacked_error(problem)
        if answers is None:
            self.loads -= 1
            return None
        if answers.forms is not None:
            self.forms.learn(unpacked(answers.forms))
        return answers, self.orders.popleft()

    def died(self) -> WorkerDied:
        """The error that says what died, and with whom."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        doing = "before it was ready; its last words are on stderr"
        if self.orders:
            at = int(client_at(self.memories[self.orders[0].memory])[0])
            if at == NOBODY:
                doing = f"while it trained side by side clients {_shown(self.orders[0].clients)}"
            else:
                others = [client for given in self.orders for client in given.clients if client != at]
                doing = f"while it trained client {at}" + (f"; it also had clients {_shown(others)}" if others else "")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        remedy = "Resume the run. SIGKILL often means too little memory: use fewer workers"
        return WorkerDied("E702", f"a worker process died ({how}) {doing}", "runtime", remedy)

    def end(self) -> None:
        """At once: it has nothing that is not ours already."""
        self.connection.close()
        self.socket.close()
        self.process.kill()
        self.process.wait()


FIRST = ALIGNED  # bytes; before them a worker's memory says which client it is at
NOBODY = -1  # in particular: it trains clients side by side


def client_at(memory: Memory) -> npt.NDArray[np.int64]:
    """Which client the worker is at, [1], to read and to write."""
    memory.reach(FIRST)
    return memory.flat(torch.int64, 0, 1).numpy()


def _shown(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (f" and {len(clients) - 10} more" if len(clients) > 10 else "")


def search_path() -> list[str]:
    """Where this process looks for modules, in words that mean the same elsewhere."""
    return [os.path.abspath(each) for each in sys.path]


class Crew:
    """At most `size` workers, hired when they are needed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.workers: list[Worker] = []
        self.forms = Forms()  # of what we write
        self._selector = selectors.DefaultSelector()
        self._owner = os.getpid()
        weakref.finalize(self, _end_all, self.workers, self._selector, self._owner)

    def hire(self, number: int, loaded: Loaded) -> list[Worker]:
        """That many workers, no more than `size`, all with these clients or on the way to have them."""
        if os.environ.get(IS_WORKER):
            remedy = "Put what trains at its end under: if __name__ == '__main__'"
            raise ConfigError("E207", "a module that a worker process imports starts a run of its own", "runtime", remedy)
        while len(self.workers) < min(number, self.size):
            worker = Worker()
            self.workers.append(worker)
            self._selector.register(worker.socket, selectors.EVENT_READ, worker)
        chosen = self.workers[: min(number, self.size)]
        for worker in chosen:
            if worker.loaded is not loaded:
                worker.load(loaded)
        return chosen

    def answering(self) -> list[Worker]:
        """Wait until some have answered. E702 where one of them died."""
        while True:
            events = self._selector.select(PATIENCE)
            if events:
                return [key.data for key, _ in events]
            for worker in self.workers:
                if worker.process.poll() is not None:
                    raise worker.died()

    def close(self) -> None:
        """End all workers; they are hired anew when they are needed again."""
        _end_all(self.workers, self._selector, self._owner)


def _end_all(workers: list[Worker], selector: selectors.BaseSelector, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process whose workers they are
        return
    while workers:
        worker = workers.pop()
        with contextlib.suppress(KeyError, ValueError):
            selector.unregister(worker.socket)
        worker.end()
