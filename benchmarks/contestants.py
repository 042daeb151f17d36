"""Who runs a workload in this process: naive and lean loops, the floor, and fedaccord with each of its runtimes.

A contestant does one federated round a turn (`work`, timed) and then says what it did (`outcome`, not timed).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from naive import train_round
from sequential_against_lean import lean_round
from torch import nn
from torch.nn.utils import parameters_to_vector
from workloads import Outcome, Workload

import fedaccord as fa
from fedaccord.core.errors import FedaccordError
from fedaccord.runs import RunFolder
from fedaccord.runtime.cores import cores
from fedaccord.telemetry import Event

MANY = 1_000_000  # rounds: nobody comes to the last one, which evaluates


class NotHere(Exception):
    """A contestant that cannot take part, and why."""


class Contestant(Protocol):
    name: str
    workload: Workload
    threads: int  # of torch, inside an operation

    def work(self) -> None:
        """One federated round."""
        ...

    def outcome(self) -> Outcome:
        """What the last round did, as counted by the contestant."""
        ...

    def close(self) -> None: ...


class Naive:
    """Research code, with torch's default threads."""

    def __init__(self, workload: Workload) -> None:
        self.name, self.workload, self.threads = "naive", workload, cores()
        x, y = workload.tensors()
        self._parts = [(x[start:end], y[start:end]) for start, end in workload.bounds()]
        self._model = workload.module()
        self._before, self._counted = parameters_to_vector(self._model.parameters()).detach(), (0, 0)

    def work(self) -> None:
        self._before = parameters_to_vector(self._model.parameters()).detach()
        self._counted = train_round(self._model, self._parts, self.workload.batch_size, self.workload.lr, self.workload.rho)

    def outcome(self) -> Outcome:
        moved = (parameters_to_vector(self._model.parameters()).detach() - self._before).norm()
        return Outcome(self._counted[1], self._counted[0], float(moved))

    def close(self) -> None:
        pass


class Apart:
    """Another contestant in a process of its own, where nothing of ours is: neither our settings of the allocator, which made the naive
    loop a third faster, nor OpenMP threads beside its own, which made it half as fast.
    """

    def __init__(self, kind: type[Naive], workload: Workload) -> None:
        self.name, self.workload, self.threads = kind(workload).name, workload, 1
        context = multiprocessing.get_context("spawn")
        self._link, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, kind, workload), daemon=True)
        limits = {name: os.environ.pop(name) for name in list(os.environ) if name.endswith("_NUM_THREADS")}  # it has torch's default
        try:
            self._process.start()
        finally:
            os.environ |= limits
        self._link.recv()

    def work(self) -> None:
        self._link.send("work")
        self._link.recv()

    def outcome(self) -> Outcome:
        self._link.send("outcome")
        found: Outcome = self._link.recv()
        return found

    def close(self) -> None:
        self._link.send("")
        self._process.join()


def _serve(link: Connection, kind: type[Naive], workload: Workload) -> None:
    contestant = kind(workload)
    torch.set_num_threads(contestant.threads)
    link.send("ready")
    while asked := link.recv():
        link.send(getattr(contestant, asked)())


class NaiveOneThread(Naive):
    """The same, each operation on one core."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.name, self.threads = "naive, one thread", 1


class Lean:
    """The hand-written loop of sequential_against_lean.py, one thread."""

    def __init__(self, workload: Workload) -> None:
        self.name, self.workload, self.threads = "lean", workload, 1
        self._x, self._y = workload.tensors()
        self._rows = [np.arange(start, end) for start, end in workload.bounds()]
        self._plan = plan_of(workload)
        self._model = workload.module()
        self._w = [parameter.detach().clone() for parameter in self._model.parameters()]
        self._before, self._round, self._counted = self._w, 0, (0, 0)

    def work(self) -> None:
        self._before, self._round = self._w, self._round + 1
        self._w, *counted = lean_round(self._model, self._w, self._x, self._y, self._rows, self._plan, self._round, self.workload.rho)
        self._counted = (counted[0], counted[1])

    def outcome(self) -> Outcome:
        moved = torch.cat([(now - then).reshape(-1) for now, then in zip(self._w, self._before, strict=True)]).norm()
        return Outcome(self._counted[1], self._counted[0], float(moved))

    def close(self) -> None:
        pass


class Floor:
    """The same number of sample passes on one model with large batches, on all cores: no more than this can be asked of torch.

    Measured once in several ways (threads inside an operation, or one worker a core; three batch sizes); the fastest is the floor.
    """

    BATCHES = (250, 1000, 4000)

    def __init__(self, workload: Workload, channels_last: bool = False) -> None:
        self.name, self.workload, self.threads = f"floor{', channels_last' if channels_last else ''}", workload, 1
        self._x, self._y = workload.tensors()
        if channels_last:
            self._x = self._x.contiguous(memory_format=torch.channels_last)
        layout: Any = {"memory_format": torch.channels_last} if channels_last else {}
        self._models = [workload.module().to(**layout) for _ in range(cores())]
        self._crew = ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,))
        ways = [(way, batch) for batch in self.BATCHES for way in (self._inside, self._workers)]
        some = min(workload.num_examples, 10_000)
        self._way, self._batch = min(ways, key=lambda each: self._trial(each[0], each[1], some))
        self._counted = 0

    def work(self) -> None:
        self._counted = self._way(self._batch, self.workload.num_examples)

    def outcome(self) -> Outcome:
        return Outcome(self._counted)

    def close(self) -> None:
        self._crew.shutdown()

    def _trial(self, way: Callable[[int, int], int], batch: int, some: int) -> float:
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            way(batch, some)
            taken.append(time.perf_counter() - started)
        return min(taken)

    def _inside(self, batch: int, count: int) -> int:
        with torch_threads(cores()):
            return self._passes(self._models[0], 0, count, batch)

    def _workers(self, batch: int, count: int) -> int:
        ends = [count * worker // len(self._models) for worker in range(len(self._models) + 1)]
        parts = zip(self._models, ends[:-1], ends[1:], strict=True)
        jobs = [self._crew.submit(self._passes, model, start, end, batch) for model, start, end in parts]
        return sum(job.result() for job in jobs)

    def _passes(self, model: nn.Module, start: int, end: int, batch: int) -> int:
        parameters, counted = list(model.parameters()), 0
        for first in range(start, end, batch):
            x, y = self._x[first : min(first + batch, end)], self._y[first : min(first + batch, end)]
            for _ in range(self.workload.passes):
                gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-self.workload.lr)
                counted += len(x)
        return counted


class Ours:
    """`fedaccord.run` with a folder, as a user calls it: guard, aggregation, records, weights and checkpoints. One round a turn."""

    threads = 1

    def __init__(self, workload: Workload, kind: str) -> None:
        self.name, self.workload = kind, workload
        self._folder = Path(tempfile.mkdtemp(prefix="bench_"))
        self._gate = Gate()
        self._gate.start(lambda: run_of(workload, options_of(kind), self._folder / "run", self._gate))
        self._clients: IO[str] = (self._folder / "run" / "clients.jsonl").open()
        self.chosen = runtime_text(self._gate.experiment["runtime"])

    def work(self) -> None:
        self._gate.round()

    def outcome(self) -> Outcome:
        """From the records: each client's steps, gradient evaluations and examples, as its report says."""
        line = self._gate.line
        told = [json.loads(each) for each in self._clients.read().splitlines()]
        own = [each for each in told if each["round"] == line["round"] and each["accepted"]]
        examples = sum(each["num_examples"] * each["gradients"] / each["steps"] for each in own)
        return Outcome(round(examples), sum(each["steps"] for each in own), line["update_norm"])

    def close(self) -> None:
        RunFolder(self._folder / "run").ask_to_stop()
        self._gate.end()
        self._clients.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Gate:
    """Telemetry that holds a run, in a thread of its own, before each of its rounds until it is told to go on."""

    def __init__(self) -> None:
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._is_open, self._failure = False, None
        self.experiment: dict[str, Any] = {}
        self.line: dict[str, Any] = {}

    def start(self, run: Callable[[], Any]) -> None:
        """Until the run stands before its first round. NotHere where it does not come that far."""

        def target() -> None:
            # Else this thread gets OpenMP threads of its own, and with more of them than cores, those of the others sleep between any two
            # operations: a naive loop with two threads took twice its time.
            torch.set_num_threads(1)
            try:
                run()
            except BaseException as problem:
                self._failure = problem
            self._arrived.release()

        self._thread = threading.Thread(target=target, daemon=True)
        self._thread.start()
        self._arrived.acquire()
        if isinstance(self._failure, FedaccordError):
            raise NotHere(str(self._failure)) from self._failure
        self._check()

    def round(self) -> None:
        self._go.release()
        self._arrived.acquire()
        self._check()

    def end(self) -> None:
        self._is_open = True
        self._go.release()
        self._thread.join()

    def emit(self, event: Event) -> None:
        if event.kind == "run_started":
            self.experiment = event.data["experiment"]
        elif event.kind == "round_finished":
            self.line = event.data
        else:
            return
        self._arrived.release()
        if not self._is_open:
            self._go.acquire()

    def _check(self) -> None:
        if self._failure:
            raise self._failure


def plan_of(workload: Workload) -> fa.LocalPlan:
    return fa.LocalPlan(lr=workload.lr, epochs=1, batch_size=workload.batch_size)


def method_of(workload: Workload) -> fa.Algorithm:
    return fa.FedSAM(rho=workload.rho) if workload.rho else fa.FedAvg()


def task_of(workload: Workload) -> fa.Task:
    x, y = workload.tensors()
    classes = int(workload.y.max()) + 1
    train = fa.Examples(x, y, ids=np.repeat(np.arange(len(workload.sizes)), workload.sizes))
    return fa.Task(model=workload.module(), loss=F.cross_entropy, train=train, test=(x[:10], y[:10]), num_classes=classes)


def run_of(workload: Workload, runtime: fa.RuntimeOptions, folder: Path, *telemetry: Any, rounds: int = MANY, **options: Any) -> fa.Run:
    """All clients in every round, all examples train, nobody evaluates."""
    given = {"partition": fa.NaturalIds(), "cohort": len(workload.sizes), "local": plan_of(workload), "runtime": runtime, **options}
    every = {"client_test": 0.0, "evaluate_every": MANY, "rounds": rounds, "folder": folder, "telemetry": telemetry}
    return fa.run(task_of(workload), method_of(workload), **{**every, **given})


def options_of(kind: str) -> fa.RuntimeOptions:
    """sequential, vectorized, pool or auto; after a comma the kind of step (as in "pool, eager"), or "cuda"."""
    name, _, step = kind.partition(", ")
    where: dict[str, Any] = {"device": step} if step == "cuda" else {"step": step or "auto"}
    return fa.RuntimeOptions(name, **where)  # type: ignore[arg-type]


def runtime_text(table: dict[str, Any]) -> str:
    """What a run's resolved [runtime] says, shortly."""
    return ", ".join([table["name"], *(f"{key}={value}" for key, value in table.items() if key not in ("name", "state", "debug"))])


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def entrants(workload: Workload, kinds: list[str]) -> tuple[list[Contestant], dict[str, str]]:
    """The contestants of these kinds, and why others are missing."""
    made: dict[str, Callable[[], Contestant]] = {
        "naive": lambda: Apart(Naive, workload),
        "naive, one thread": lambda: Apart(NaiveOneThread, workload),
        "lean": lambda: Lean(workload),
        "floor": lambda: Floor(workload),
        "floor, channels_last": lambda: Floor(workload, channels_last=True),
    }
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for kind in kinds:
        try:
            found.append(made[kind]() if kind in made else Ours(workload, kind))
        except NotHere as reason:
            missing[kind] = str(reason)
    return found, missing
