"""One client that holds all data: federated averaging is centralised SGD."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedaccord as fa
from fedaccord.checks.trial import make_task, mlp, run_traced
from fedaccord.core.vector import load_into, vector_of

ROUNDS = 10


@dataclass(frozen=True)
class Recording(fa.Algorithm):
    """FedAvg that notes the local weights w_K of each round."""

    seen: list[Tensor] = field(default_factory=list, hash=False, compare=False)

    def upload(self, w: Tensor, sent: Any, local: Any, work: Any) -> Any:
        self.seen.append(w)
        return super().upload(w, sent, local, work)


def centralised(task: fa.Task, start: Tensor, batches: Any, lr: float, momentum: float = 0.0) -> Tensor:
    module = load_into(copy.deepcopy(task.build_model(3)), start, {}).train()
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum=momentum)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    return vector_of(module)


@pytest.fixture(scope="module", params=[0.0, 0.9], ids=["sgd", "momentum"])
def lone(request: pytest.FixtureRequest) -> Any:
    plan = fa.LocalPlan(lr=0.1, epochs=2, batch_size=7, optimizer=fa.Sgd(request.param))
    method, task = Recording(), make_task(mlp)
    partition = fa.Explicit([list(range(task.num_examples))])
    traced = run_traced(method, task, partition=partition, cohorts=[[0]] * ROUNDS, rounds=ROUNDS, local=plan)
    return traced, method.seen[1:], plan, task  # the first upload is the guard's template


def test_local_weights_of_each_round_are_centralised_sgds_to_the_bit(lone: Any) -> None:
    """From the same start, on the same batches."""
    traced, seen, plan, task = lone
    assert len(seen) == ROUNDS
    start = traced.prepared.start.server.w
    for t, (result, local) in enumerate(zip(traced.results, seen, strict=True), start=1):
        batches = traced.prepared.data.batches(0, t, plan)
        assert torch.equal(local, centralised(task, start, batches, plan.lr, plan.optimizer.momentum)), f"round {t}"
        start = result.state.server.w


def test_the_global_trajectory_is_centralised_sgds_to_a_millionth(lone: Any) -> None:
    """From its own end of the round before; momentum starts afresh in each round, as the local optimiser does."""
    traced, _, plan, task = lone
    start = w = traced.prepared.start.server.w
    for t, result in enumerate(traced.results, start=1):
        w = centralised(task, w, traced.prepared.data.batches(0, t, plan), plan.lr, plan.optimizer.momentum)
        assert float((result.state.server.w - w).norm()) <= 1e-6 * float((w - start).norm()), f"round {t}"


def test_the_batches_of_two_rounds_differ(lone: Any) -> None:
    traced, _, plan, _ = lone
    one, two = (torch.cat([y for _, y in traced.prepared.data.batches(0, t, plan)]) for t in (1, 2))
    assert not torch.equal(one, two) and torch.equal(one.sort().values, two.sort().values)
