"""How a round grows with the cohort and with the model, beside the floor; and what memory a large method with state on disk takes."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from contestants import Floor, Ours
from interleaving import Row, at_most, taking_turns
from torch import nn
from workloads import MODELS, Workload, made

COHORTS = (10, 30, 100, 300, 1000)
WIDTHS = {10**3: 13, 10**4: 127, 10**5: 1266, 10**6: 12658, 10**7: 126582}  # parameters -> hidden units of 68-h-10
LINEAR = 1.15  # exponent of the growth between two neighbours; above 1 by what a measurement on a busy machine is off
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "growth.png"


def growth_rows(blocks: int, share: float) -> Iterator[Row]:
    """Time per round of auto and of the floor; the exponent of each step, 1 being linear."""
    cohorts = sorted({max(2, int(size * share)) for size in COHORTS})
    works = [made(f"cohort {size}", "mlp", np.full(size, 100), 50) for size in cohorts]
    yield from _series("cohort", cohorts, works, blocks)
    for width in WIDTHS.values():
        MODELS[f"width {width}"] = (lambda width=width: nn.Sequential(nn.Linear(68, width), nn.ReLU(), nn.Linear(width, 10)), (68,), 10)
    sizes = [size for size in WIDTHS if share == 1 or size <= 10**6]
    works = [made(f"size {size}", f"width {WIDTHS[size]}", np.full(10, 100), 50) for size in sizes]
    yield from _series("model size", sizes, works, blocks)


def _series(axis: str, points: Sequence[int], works: Sequence[Workload], blocks: int) -> Iterator[Row]:
    times: list[list[float]] = []
    for point, work in zip(points, works, strict=True):
        ours, floor = Ours(work, "auto"), Floor(work)
        try:
            seconds = taking_turns([ours, floor], blocks)
        finally:
            ours.close()
            floor.close()
        times.append(seconds["auto"])
        yield Row("growth", f"{axis} {point}, auto", seconds["auto"], unit="s", note=ours.chosen)
        yield Row("growth", f"{axis} {point}, floor", seconds["floor"], unit="s")
    for (before, first), (after, second) in pairwise(zip(points, times, strict=True)):
        exponents = [math.log(b / a) / math.log(after / before) for a, b in zip(first, second, strict=True)]
        yield Row("growth", f"{axis} {before} to {after}, exponent", exponents, at_most(LINEAR), unit="")


MEMORY = """
import sys, tempfile, pathlib
sys.path.insert(0, {here!r})
import memory
import numpy as np, torch
import torch.nn.functional as F
import fedaccord as fa
from fedaccord.tasks.models import model_factory
clients, width = {clients}, {width}
x, y = torch.randn(2 * clients, 3, 8, 8), torch.arange(2 * clients) % 10
model = model_factory("resnet18", (3, 8, 8), 10, width=width)
task = fa.Task(model=model, loss=F.cross_entropy, train=(x, y), test=(x[:2], y[:2]), num_classes=10)
order = [list(range(start, min(start + 10, clients))) for start in range(0, clients, 10)]
with tempfile.TemporaryDirectory() as folder:
    run = fa.run(task, fa.FedSMOO(), partition=fa.IID(clients=clients), cohort=order, rounds=len(order), client_test=0.0,
                 local=fa.LocalPlan(lr=0.01, epochs=1, batch_size=2), evaluate_every=10**6, keep_weights=False,
                 runtime=fa.RuntimeOptions("sequential", state="disk"),
                 folder=pathlib.Path(folder) / "run")
    assert run.rounds.accepted.map(len).sum() == clients
print(memory.peak_megabytes() / 1000)
"""


def memory_rows(share: float) -> Iterator[Row]:
    """FedSMOO's duals of a ResNet-18 (11.2 million parameters), every client trained once, ten a round: peak resident memory."""
    for clients in (10, 30, 100):
        program = MEMORY.format(here=str(HERE), clients=clients, width=64 if share == 1 else 8)
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        what, aim = f"FedSMOO, ResNet-18, {clients} clients", at_most(3.0) if clients == 100 else None
        if done.returncode:
            yield Row("memory", what, aim=aim, note=(done.stderr.strip().splitlines() or ["ended"])[-1][:150])
        else:
            yield Row("memory", what, [float(done.stdout)], aim, unit="GB", note=f"{time.perf_counter() - started:.0f} s")


def draw(results: Path, page: Path = PAGE) -> None:
    """The growth of the rows in runtimes.csv, for docs/performance.md: cohort, model size, registered clients."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with results.open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["median"] and line["unit"] == "s"]
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    shown = (
        (axes[0], "clients a round", {"fedaccord": ("cohort ", ", auto"), "floor": ("cohort ", ", floor")}),
        (axes[1], "parameters", {"fedaccord": ("model size ", ", auto"), "floor": ("model size ", ", floor")}),
        (
            axes[2],
            "registered clients",
            {"fedaccord": ("a round, ", " registered"), "Flower": ("Flower: empty round, ", " registered")},
        ),
    )
    for axis, label, curves in shown:
        for name, (start, end) in curves.items():
            found = [line for line in lines if line["what"].startswith(start) and line["what"].endswith(end)]
            points = sorted((int(line["what"][len(start) : -len(end)]), float(line["median"])) for line in found)
            if points:
                axis.loglog(*zip(*points, strict=True), marker="o", label=name)
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
        if axis.has_data():
            axis.legend()
    axes[0].set_ylabel("seconds a round")
    figure.savefig(page, dpi=110)
    pyplot.close(figure)
