"""What a method costs beside FedAvg: for each gradient evaluation, and for a whole round. Uses sequential_against_lean.py."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from interleaving import Row, at_most
from sequential_against_lean import AIM_AGAINST_LEAN, AIM_PER_GRADIENT, WORK, against_fedavg, against_lean

import fedaccord as fa

PER_ROUND = {"scaffold": 1.15, "fedprox": 1.15, "feddyn": 1.15}
TWO_PASSES = 2.3


def lean_rows(repeats: int) -> Iterator[Row]:
    """Our sequential runtime against the hand-written loop, one thread, CPU time."""
    torch.set_num_threads(1)
    for work in WORK:
        found = against_lean(work, repeats)
        yield Row(f"lean {work}", "sequential / lean, CPU time", found["ratios"], at_most(AIM_AGAINST_LEAN))


def gradient_rows(repeats: int) -> Iterator[Row]:
    """Every method of the registry, one thread, CPU time."""
    torch.set_num_threads(1)
    for work in WORK:
        for method in fa.REGISTRY:
            if method == "fedavg":
                continue
            found = against_fedavg(work, method, repeats)
            passes = f"{found['passes']:.3g} gradient evaluations for each of FedAvg's"
            yield Row(f"method {work}", f"{method} / fedavg, a gradient", found["ratios"], at_most(AIM_PER_GRADIENT), note=passes)
            bound = PER_ROUND.get(method, TWO_PASSES if found["passes"] == 2 else None)
            yield Row(f"method {work}", f"{method} / fedavg, a round", found["rounds"], bound and at_most(bound))
