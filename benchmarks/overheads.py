"""What a round costs beside training: an empty round, a hogged core, the start, registered clients, and the kernels of aggregation."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from contestants import MANY, Naive, Ours, options_of
from interleaving import Row, at_most, one_turn
from torch import Tensor, nn
from workloads import WORKLOADS

import fedaccord as fa
from fedaccord.core.algorithm import Algorithm, BatchGrad
from fedaccord.core.state import State
from fedaccord.federation import Federation, RunState
from fedaccord.partition import Explicit, Shards
from fedaccord.runtime.cores import cores

HERE = Path(__file__).parent
EMPTY_COHORT = 100
START_AIM, HELP_AIM = 5.0, 0.5  # seconds
FEW_REGISTERED, MANY_REGISTERED = 1_000, 1_000_000


@dataclass(frozen=True)
class Idle(Algorithm):
    """FedAvg whose clients take one step without a gradient: what is left of a round is everything else."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: State, local: State) -> tuple[Tensor, State]:
        return torch.zeros_like(w), local


def empty_rows(blocks: int) -> Iterator[Row]:
    """A round of 100 clients that compute nothing, against 100 empty tasks of a bare pool of processes."""
    tasks: list[tuple[()]] = [()] * EMPTY_COHORT
    with multiprocessing.get_context("forkserver").Pool(cores()) as pool:
        pool.map(len, tasks, chunksize=1)
        for kind in ("pool", "sequential"):
            federation, state = registered(EMPTY_COHORT, EMPTY_COHORT, kind, Idle())
            ours, bare = [], []
            for block in range(5 * blocks + 3):
                started = time.perf_counter()
                result = federation.round(state)
                middle = time.perf_counter()
                pool.map(len, tasks, chunksize=1)
                ended = time.perf_counter()
                assert result.report.gradients == 0 and len(result.report.accepted) == EMPTY_COHORT, "an empty round of everybody"
                state = result.state
                if block >= 3:
                    ours.append(middle - started)
                    bare.append(ended - middle)
            yield Row("empty", f"{kind}: round of {EMPTY_COHORT}", [1000 * each for each in ours], unit="ms")
            yield Row("empty", f"bare pool beside {kind}", [1000 * each for each in bare], unit="ms")
            federation.runtime.close()
            values = [a / b for a, b in zip(ours, bare, strict=True)]
            yield Row("empty", f"{kind}: round of {EMPTY_COHORT} / bare pool", values, at_most(2.0) if kind == "pool" else None)


def hogged_rows(blocks: int, share: float) -> Iterator[Row]:
    """W1 with another process on one core against W1 alone, and the naive loop's figure beside it."""
    workload = WORKLOADS["W1"](share)
    ours, naive = Ours(workload, "auto"), Naive(workload)
    found: dict[str, list[float]] = {"auto": [], "naive": []}
    try:
        with hog() as process:
            for block in range(blocks + 1):
                for contestant in (ours, naive):
                    alone = one_turn(contestant)
                    process.send_signal(signal.SIGCONT)
                    hogged = one_turn(contestant)
                    process.send_signal(signal.SIGSTOP)
                    workload.check(contestant.name, contestant.outcome())
                    if block:
                        found[contestant.name].append(hogged / alone)
    finally:
        ours.close()
    yield Row("hogged", "auto: W1 with one core hogged / alone", found["auto"], at_most(1.8), note=ours.chosen)
    yield Row("hogged", "naive: W1 with one core hogged / alone", found["naive"])


@contextmanager
def hog() -> Iterator[subprocess.Popen[bytes]]:
    """A process that can hold one core, the first of ours; it stands still at first."""
    pinned = f"import os\nif hasattr(os, 'sched_setaffinity'): os.sched_setaffinity(0, {{{min(_affinity())}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", pinned])
    try:
        time.sleep(0.5)
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}


FIRST_ROUND = """
import sys, time, tempfile
import fedaccord as fa
import torch
sys.path.insert(0, {here!r})
import contestants, workloads
started = time.perf_counter()
work = workloads.WORKLOADS["W1"]({share})
run = contestants.run_of(work, fa.RuntimeOptions("auto"), None, rounds=1, keep_weights=False)
print(time.perf_counter() - started)
"""


def start_rows(share: float) -> Iterator[Row]:
    """From the imports to the end of round 1 of W1, in a new process with an empty calibration; and the command line's help."""
    program, taken = FIRST_ROUND.format(here=str(HERE), share=share), []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "FEDACCORD_CACHE": cache}
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
            taken.append(float(done.stdout))
    yield Row("start", "imports done to end of round 1 of W1", taken, at_most(START_AIM), unit="s")
    helps = []
    for _ in range(7):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fedaccord.cli", "--help"], capture_output=True, check=True)
        helps.append(time.perf_counter() - started)
    yield Row("start", "fedaccord --help", helps, at_most(HELP_AIM), unit="s")


def population_rows(blocks: int, share: float) -> Iterator[Row]:
    """What population.py measures: 100 a round of ever more registered clients, each population a run of its own process."""
    sizes = [size for size in (100, 1_000, 10_000, 100_000, 1_000_000) if size <= max(FEW_REGISTERED, MANY_REGISTERED * share)]
    command = [sys.executable, str(HERE / "population.py"), "--rounds", str(5 * blocks + 2), "--registered", *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        yield Row("population", f"a round, {line['registered']} registered", [line["seconds_a_round"]], unit="s", note="processor time")
    last, note = lines[-1], f"against {FEW_REGISTERED}, median of {5 * blocks}"
    yield Row("population", f"a round with {last['registered']} registered", [last["ratio"]], at_most(1.1), note=note)
    above = [last["peak_mb_above_reference"]]
    yield Row("population", f"memory with {last['registered']} registered, more", above, at_most(200), unit="MB", note=note)


def registered(cohort: int, population: int, kind: str, algorithm: Algorithm) -> tuple[Federation, RunState]:
    """(federation, state) of softmax regression, five rows a client out of five thousand that they share."""
    from fedaccord.experiment import Experiment, RunOptions, prepare

    rng, rows, own = np.random.default_rng(0), 5_000, 5
    x, y = torch.from_numpy(rng.standard_normal((rows, 30), dtype=np.float32)), torch.from_numpy(rng.integers(2, size=rows))
    shards = Shards(np.arange(population * own) % rows, np.arange(population + 1) * own)
    task = fa.Task(model=nn.Linear(30, 2), loss=F.cross_entropy, train=(x, y), test=(x[:10], y[:10]), num_classes=2)
    experiment = Experiment(
        partition=Explicit(shards, duplicates=True),
        algorithm=algorithm,
        local=fa.LocalPlan(lr=0.05, epochs=1, batch_size=50),
        runtime=options_of(kind),
        run=RunOptions(rounds=MANY, cohort=fa.Uniform(cohort), client_test=0.0, evaluate_every=MANY),
    )
    torch.set_num_threads(1)
    prepared = prepare(experiment, task)
    return prepared.federation, prepared.start


def aggregation_rows(share: float) -> Iterator[Row]:
    """What aggregation_kernels.py measures."""
    import aggregation_kernels as kernels

    torch.set_num_threads(1)
    matrix = torch.randn(100, max(1000, int(11.2e6 * share)), generator=torch.Generator().manual_seed(0))
    for pair in kernels.pairs(matrix):
        found = kernels.measured(pair, 3)
        what = f"{found['kernel']} / {found['against']}"
        yield Row("aggregation", what, found["ratios"], found["aim"] and at_most(found["aim"]), note=f"{found['extra_mb']:.0f} MB more")
