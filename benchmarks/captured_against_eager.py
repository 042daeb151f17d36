"""The captured loss and gradient of one mini-batch against eager autograd, on one thread.

    python benchmarks/captured_against_eager.py [--pairs 21] [--keep-memory] [--out benchmarks/results/captured_against_eager.json]

Pairs take turns; a figure is the median of the pairs' ratios of this process's own time, with the quartiles beside it. `--keep-memory`
tells glibc's malloc to hand nothing back to the system between steps: else what a step frees early costs page faults in the next.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.core.captured import Captured
from fedaccord.core.vector import FlatModel
from fedaccord.tasks.models import model_factory

PICTURE = (3, 32, 32)
WORK: dict[str, tuple[str, tuple[int, ...], int, int]] = {  # model, one input, batch size, steps a turn
    "MLP 784-200-10, batch 50": ("mlp", (784,), 50, 60),
    "MLP 784-200-10, batch 20": ("mlp", (784,), 20, 60),
    "softmax 784-10, batch 50": ("softmax", (784,), 50, 150),
    "softmax 784-10, batch 20": ("softmax", (784,), 20, 150),
    "LeNet 32x32x3, batch 50": ("lenet", PICTURE, 50, 5),
    "LeNet 32x32x3, batch 20": ("lenet", PICTURE, 20, 8),
    "LeNet 32x32x3, batch 50, channels last": ("lenet", PICTURE, 50, 5),
    "LeNet 32x32x3, batch 20, channels last": ("lenet", PICTURE, 20, 8),
}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


def seconds_a_step(step: Callable[[Tensor, Tensor, Tensor], object], given: tuple[Tensor, Tensor, Tensor], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        kept = step(*given)  # noqa: F841  as a client does: the last gradient lives while the next is computed
    return (time.process_time() - start) / steps


def measured(name: str, pairs: int) -> dict[str, Any]:
    model_name, shape, size, steps = WORK[name]
    torch.manual_seed(0)
    model = FlatModel(model_factory(model_name, shape, 10)())
    x, y = torch.randn(size, *shape), torch.randint(10, (size,))
    if name.endswith("channels last"):
        x = x.to(memory_format=torch.channels_last)
    captured, given = Captured(model, F.cross_entropy, capture_at=1), (model.initial_w, x, y)
    captured(*given)
    assert captured.num_programs == 1, captured.reasons
    same_bits = all(map(torch.equal, captured(*given), captured.eager(*given)))
    turns = [(seconds_a_step(captured.eager, given, steps), seconds_a_step(captured, given, steps)) for _ in range(pairs + 1)][1:]
    ratios = [eager / ours for eager, ours in turns]
    return {
        "work": name,
        "ratio": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2],
        "eager_us": 1e6 * statistics.median(eager for eager, _ in turns),
        "captured_us": 1e6 * statistics.median(ours for _, ours in turns),
        "capture_seconds": captured.seconds,
        "same_bits": same_bits,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=21)
    arguments.add_argument("--keep-memory", action="store_true")
    arguments.add_argument("--out", type=Path)
    asked = arguments.parse_args()
    torch.set_num_threads(1)
    if asked.keep_memory:
        for threshold in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            assert ctypes.CDLL(None).mallopt(threshold, 1 << 30), "this C library has no mallopt"
    rows = []
    for name in WORK:
        rows.append(row := measured(name, asked.pairs))
        low, high = row["quartiles"]
        print(
            f"{name:40} {row['ratio']:.2f}x [{low:.2f}, {high:.2f}]  eager {row['eager_us']:.0f} us, captured {row['captured_us']:.0f} us  "
            f"capturing {row['capture_seconds']:.3f} s  {'same bits' if row['same_bits'] else 'OTHER BITS'}",
            flush=True,
        )
    if asked.out:
        settings = {"torch": torch.__version__, "threads": 1, "pairs": asked.pairs, "keep_memory": asked.keep_memory}
        asked.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
