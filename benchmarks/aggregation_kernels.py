"""The kernels of aggregation against what one product, one Gram matrix or torch's own median cost on the same vectors.

    python benchmarks/aggregation_kernels.py [--size 1e6] [--clients 100] [--repeats 7] [--write]

One thread. A kernel and what it is held against take turns; the printed figures are medians of the ratios of neighbours in time. Extra
memory is the peak of the process during one call above what it held before, less the result. --size 11.2e6 is a ResNet-18 and takes 4.5 GB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaccord.aggregation.geometry import geometry
from fedaccord.aggregation.robust import BLOCK, coordinate_median, gram, krum_scores, trimmed_mean
from fedaccord.aggregation.sums import weighted_sum, weighted_sums
from fedaccord.core.state import num_bytes
from fedaccord.runtime.allocator import keep_freed_blocks

RESULTS = Path(__file__).parent / "results" / "aggregation_kernels.json"
EXTRA_MEMORY = 100.0  # MB, at most


class Pair(NamedTuple):
    kernel: str
    against: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    aim: float | None = None  # the largest ratio; None: for information


def blocks(rows: list[Tensor]) -> Iterator[Tensor]:
    """Copies of a few coordinates of all rows [C, ...], as the kernels look at them."""
    width = BLOCK // len(rows)
    return (torch.stack([row[start : start + width] for row in rows]) for start in range(0, len(rows[0]), width))


def blocked_gram(rows: list[Tensor], centre: Tensor) -> Tensor:
    total, start = torch.zeros(len(rows), len(rows)), 0
    for block in blocks(rows):
        block -= centre[start : start + block.shape[1]]
        total, start = total + block @ block.T, start + block.shape[1]
    return total


def blocked(rows: list[Tensor], rule: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([rule(block.T.contiguous()) for block in blocks(rows)])


def pairs(matrix: Tensor) -> list[Pair]:
    rows, count = list(matrix), len(matrix)
    shares = torch.rand(count, generator=torch.Generator().manual_seed(1))
    weights, equal = (shares / shares.sum()).tolist(), [1 / count] * count
    mean, start = weighted_sum(rows, weights), torch.zeros_like(rows[0])
    one_product = torch.tensor(weights)
    product = Pair("", "one weights @ matrix", lambda: None, lambda: one_product @ matrix)
    return [
        product._replace(kernel="weighted_sum", ours=lambda: weighted_sum(rows, weights), aim=2.5),
        product._replace(kernel="weighted_sums, two", ours=lambda: weighted_sums(rows, weights, equal)),
        product._replace(kernel="geometry", ours=lambda: geometry(rows, mean, start, mean)),
        Pair("gram", "matrix @ matrix.T, uncopied", lambda: gram(rows, rows[0]), lambda: matrix @ matrix.T),
        Pair("krum_scores", "its Gram product", lambda: krum_scores(rows, count // 5), lambda: blocked_gram(rows, rows[0]), 1.3),
        Pair(
            "coordinate_median",
            "torch's median, same blocks",
            lambda: coordinate_median(rows),
            lambda: blocked(rows, lambda block: block.median(dim=1).values),
            1.3,
        ),
        Pair(
            "trimmed_mean",
            "torch's sort, same blocks",
            lambda: trimmed_mean(rows, 0.1),
            lambda: blocked(rows, lambda block: block.sort(dim=1).values[:, count // 10 : -(count // 10)].mean(dim=1)),
        ),
    ]


def seconds(call: Callable[[], Any]) -> float:
    """Of this process's own time: with one thread that is what the work costs, whoever else is on the machine."""
    start = time.process_time()
    call()
    return time.process_time() - start


def extra_memory(call: Callable[[], Any]) -> float:
    """MB at the peak of one call above what the process held before and what the result holds."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    result = call()
    held = num_bytes(result) if isinstance(result, Tensor | tuple) and not hasattr(result, "_fields") else 0
    return _status("VmHWM") - before - held / 1e6


def _status(name: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e6


def measured(pair: Pair, repeats: int) -> dict[str, Any]:
    memory = extra_memory(pair.ours)
    times = [(seconds(pair.ours), seconds(pair.theirs)) for _ in range(repeats + 1)][1:]  # the first pair warms up
    ratios = [ours / theirs for ours, theirs in times]
    return {
        "kernel": pair.kernel,
        "against": pair.against,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "aim": pair.aim,
        "seconds": statistics.median(ours for ours, _ in times),
        "extra_mb": memory,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--size", type=float, default=1e6, help="numbers of one vector")
    arguments.add_argument("--clients", type=int, default=100)
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    keep_freed_blocks()
    matrix = torch.randn(asked.clients, int(asked.size), generator=torch.Generator().manual_seed(0))
    print(f"{asked.clients} vectors of {asked.size:g} float32; extra memory: aim <= {EXTRA_MEMORY:.0f} MB")
    rows = []
    for pair in pairs(matrix):
        rows.append(row := measured(pair, asked.repeats))
        aim = "" if pair.aim is None else f"  aim <= {pair.aim}x"
        low, high = min(row["ratios"]), max(row["ratios"])
        spread = f"{row['ratio']:5.2f}x of {pair.against} ({low:.2f} to {high:.2f}){aim}"
        print(f"{pair.kernel:18} {row['seconds']:8.3f} s  {row['extra_mb']:6.1f} MB  {spread}", flush=True)
    if asked.write:
        found = {"torch": torch.__version__, "threads": 1, "clients": asked.clients, "size": int(asked.size), "rows": rows}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
