"""Laws about what a method's numbers mean; its author says which numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.algorithms import FedAvg
from fedaccord.checks.law import Breach
from fedaccord.checks.trial import ROUNDS, SIZES, Trial, bits, examples, poisoned, run_traced
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.local import LocalPlan
from fedaccord.core.optimizer import Adam, Sgd
from fedaccord.core.vector import Buffers
from fedaccord.partition import IID
from fedaccord.tasks import Task

TOLERANCE = 1e-5  # relative, of a sum of a few float32 vectors; with a wrong sum the gap is above 1e-2

PLANS = {
    "plain SGD": LocalPlan(lr=0.1, epochs=2, batch_size=4),
    "momentum, decay and clip": LocalPlan(lr=0.1, epochs=2, batch_size=4, optimizer=Sgd(0.9), weight_decay=0.01, clip_norm=0.5),
    "Adam": LocalPlan(lr=0.01, epochs=2, batch_size=4, optimizer=Adam()),
}


def neutral(trial: Trial) -> None:
    """With its parameters at neutral, the method is FedAvg in every round to the bit, statistics of batch norm included."""
    assert trial.neutral is not None
    for name in PLANS:
        _require_fedavg(_models(trial.neutral, PLANS[name]), _fedavgs(name), f"with {name}")
    _require_fedavg(_models_with_batch_norm(trial.neutral), _fedavgs_with_batch_norm(), "with batch norm")
    if trial.algorithm != trial.neutral and _bits(_models(trial.algorithm, PLANS["plain SGD"])) == _bits(_fedavgs("plain SGD")):
        raise Breach(f"{trial.algorithm} is FedAvg as well", "Give check_algorithm settings that change something beside the neutral ones")


Models = list[tuple[Tensor, Buffers]]  # after each round


def _models(algorithm: Algorithm, plan: LocalPlan) -> Models:
    return [(result.state.server.w, result.state.buffers) for result in run_traced(algorithm, local=plan).results]


def _models_with_batch_norm(algorithm: Algorithm) -> Models:
    """Without dropout, whose draws count passes; a batch of one example has no statistics."""
    x, y = examples()
    task = Task(model=_with_batch_norm, loss=F.cross_entropy, train=(x, y), test=(x, y))
    trace = run_traced(algorithm, task, partition=IID(clients=7), local=LocalPlan(epochs=2, batch_size=4, drop_last=True))
    return [(result.state.server.w, result.state.buffers) for result in trace.results]


def _with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


@cache
def _fedavgs(plan: str) -> Models:
    return _models(FedAvg(), PLANS[plan])


@cache
def _fedavgs_with_batch_norm() -> Models:
    return _models_with_batch_norm(FedAvg())


def _bits(models: Models) -> list[Any]:
    return [bits(each) for each in models]


def _require_fedavg(mine: Models, theirs: Models, when: str) -> None:
    for round, ((w, buffers), (fedavgs_w, fedavgs_buffers)) in enumerate(zip(mine, theirs, strict=True), start=1):
        if not torch.equal(w, fedavgs_w):
            gap = float((w - fedavgs_w).norm())
            raise Breach(f"{when}, the model of round {round} is {gap:.1e} away from FedAvg's", "At neutral, every term must be exactly 0")
        moved = [name for name in buffers if not torch.equal(buffers[name], fedavgs_buffers[name])]
        if moved:
            seen = f"{when}, the buffer {moved[0]!r} of round {round} is not FedAvg's"
            raise Breach(seen, "Take the first gradient of a step at w itself: the pass that moves batch-norm statistics")


def ledger(trial: Trial) -> None:
    """What the server keeps about its clients is the mean over ALL of them: absent, small and refused ones count as they should."""
    assert trial.ledger is not None
    trace = run_traced(trial.algorithm, change=poisoned(2, 2))
    largest = 0.0
    for round in range(1, ROUNDS + 1):
        rows = [trial.ledger(trace.server(round), trace.kept(round, client)) for client in range(len(SIZES))]
        mean = torch.stack([theirs for _, theirs in rows]).mean(0)
        gap, size = float((rows[0][0] - mean).norm()), float(mean.norm())
        largest = max(largest, size)
        if not gap <= TOLERANCE * size:
            seen = (
                f"after round {round} the server's vector is {gap:.1e} away from the mean over all clients of theirs, which is {size:.1e}"
            )
            remedy = "Move it by cohort.size / cohort.population times cohort.uniform, and not by cohort.weighted, which only moves models"
            raise Breach(seen, remedy)
    if largest == 0:
        raise Breach(
            "both sides of the ledger stayed at zero, so that nothing was seen", "Give check_algorithm settings in which they move"
        )
