"""Five hundred clients, ten a round, each once: what tests/test_field_reports.py looks at. No test: a program.

    python tests/ever_joined.py METHOD FOLDER

Prints by how many bytes its resident memory grew from the tenth round to the last, and where the state of the clients lay.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa
from fedaccord.tasks import memory


class Resident:
    """Resident memory after each round, in bytes."""

    def __init__(self) -> None:
        self.after: dict[int, int] = {}

    def emit(self, event: Any) -> None:
        if event.kind == "round_finished":
            self.after[event.data["round"]] = psutil.Process().memory_info().rss


def main(method: str, folder: str) -> None:
    memory.available_memory = lambda: 10**9  # two duals of 121,330 weights for each of 500 clients are half of it: too much
    x, y = torch.randn(500, 1000), torch.arange(500) % 10
    net = nn.Sequential(nn.Linear(1000, 120), nn.ReLU(), nn.Linear(120, 10))
    resident = Resident()
    run = fa.run(
        fa.Task(net, F.cross_entropy, (x, y), (x[:10], y[:10]), num_classes=10),
        getattr(fa, method)(),
        partition=fa.IID(clients=500),
        cohort=[list(range(start, start + 10)) for start in range(0, 500, 10)],
        rounds=50,
        local=fa.LocalPlan(lr=0.01, epochs=1, batch_size=1),
        client_test=0.0,
        evaluate_every=100,
        keep_weights=False,
        folder=Path(folder),
        telemetry=[resident],
    )
    assert run.rounds.accepted.map(len).sum() == 500
    print(resident.after[50] - resident.after[10], run.record.experiment["runtime"]["state"])


if __name__ == "__main__":
    main(*sys.argv[1:])
