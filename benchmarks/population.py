"""What a round costs against how many clients are registered, 100 asked in each: seconds a round and peak memory.

    python benchmarks/population.py [--registered 100 1000 10000 100000 1000000] [--rounds 20] [--write]

Softmax regression on 30 features; each client holds two examples of one pool, whose size does not depend on who holds it, so that all
populations do the same work on the same data. Every population is a run of its own process, with records and checkpoints on disk, and
they take turns round by round; the printed ratio is the median over rounds of a round's own processor time to the reference's, the one
of 1,000 clients where that is among them. The last round, which also measures clients on their held-out examples, stands apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa
from fedaccord.partition import Attributes, Partition, Shards
from fedaccord.telemetry import Event

RESULTS = Path(__file__).parent / "results" / "population.csv"
FEATURES, CLASSES, COHORT, EXAMPLES = 30, 2, 100, 2
AIM_TIME, AIM_MEMORY = 1.10, 200.0  # of the reference's; MB above the reference's


@dataclass(frozen=True)
class AFewEach:
    """Client i holds the examples from i * EXAMPLES on; what comes after the last client belongs to nobody."""

    clients: int

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        return Partition(Shards(np.arange(self.clients * EXAMPLES), np.arange(self.clients + 1) * EXAMPLES))


class Turns:
    """Lets a run go on round by round, as the other side asks, and says what each cost."""

    def __init__(self, other: Connection) -> None:
        self._other = other

    def emit(self, event: Event) -> None:
        if event.kind == "round_finished":
            self._other.send(time.process_time() - self._start)
        if event.kind in ("run_started", "round_finished"):
            if event.kind == "run_started":
                self._other.send("ready")
            self._other.recv()
            self._start = time.process_time()


def softmax() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def run_in_turns(task: fa.Task, clients: int, rounds: int, method: str, other: Connection) -> None:
    torch.set_num_threads(1)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        fa.run(
            task,
            fa.REGISTRY[method](),
            partition=AFewEach(clients),
            cohort=COHORT,
            rounds=rounds,
            local=fa.LocalPlan(lr=0.1, epochs=5, batch_size=20),
            client_test=0.5,
            evaluate_every=rounds,
            folder=Path(folder) / "run",
            telemetry=[Turns(other)],
        )
        lines = sum(1 for _ in (Path(folder) / "run" / "clients.jsonl").open())
        bytes_on_disk = sum(file.stat().st_blocks * 512 for file in Path(folder).rglob("*") if file.is_file())
    other.send({"peak_mb": _peak(), "client_lines": lines, "disk_mb": bytes_on_disk / 1e6, "all_seconds": time.process_time() - started})


def _peak() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def measured(populations: list[int], rounds: int, method: str) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(max(populations) * EXAMPLES, FEATURES, generator=generator)
    y = (x[:, 0] + 0.5 * torch.randn(len(x), generator=generator) > 0).long()
    task = fa.Task(model=softmax, loss=F.cross_entropy, train=(x, y), test=(x[:1000], y[:1000]))
    task.data_hash()
    context = multiprocessing.get_context("fork")  # one pool of examples for all
    pipes = []
    for clients in populations:
        here, there = context.Pipe()
        context.Process(target=run_in_turns, args=(task, clients, rounds, method, there), daemon=True).start()
        assert here.recv() == "ready"
        pipes.append(here)
    seconds: list[list[float]] = [[] for _ in populations]
    for _ in range(rounds):
        for pipe, own in zip(pipes, seconds, strict=True):
            pipe.send("go")
            own.append(pipe.recv())
    rows = []
    for clients, pipe, own in zip(populations, pipes, seconds, strict=True):
        pipe.send("go")
        rows.append({"registered": clients, "rounds": own, **pipe.recv()})
    return rows


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their ratios to the reference; the first round warms up, the last one measures clients."""
    reference = next((row for row in rows if row["registered"] == 1000), rows[0])
    table = []
    for row in rows:
        ratios = [own / theirs for own, theirs in zip(row["rounds"][1:-1], reference["rounds"][1:-1], strict=True)]
        table.append(
            {
                "registered": row["registered"],
                "seconds_a_round": round(statistics.median(row["rounds"][1:-1]), 5),
                "ratio": round(statistics.median(ratios), 4),
                "last_round_seconds": round(row["rounds"][-1], 4),
                "peak_mb": round(row["peak_mb"], 1),
                "peak_mb_above_reference": round(row["peak_mb"] - reference["peak_mb"], 1),
                "disk_mb": round(row["disk_mb"], 2),
                "client_lines": row["client_lines"],
                "all_seconds": round(row["all_seconds"], 2),
            }
        )
    return table


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--registered", type=int, nargs="+", default=[10**k for k in range(2, 7)])
    arguments.add_argument("--rounds", type=int, default=20)
    arguments.add_argument("--method", default="fedavg", choices=sorted(fa.REGISTRY))
    arguments.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    table = compared(measured(asked.registered, asked.rounds, asked.method))
    print(f"aims: a round <= {AIM_TIME}x, memory <= {AIM_MEMORY:.0f} MB above the reference")
    for row in table:
        print(json.dumps(row))
    if asked.write:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, [*table[0], "method", "cohort", "torch"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(row | {"method": asked.method, "cohort": COHORT, "torch": torch.__version__} for row in table)


if __name__ == "__main__":
    main()
