"""What the laws share: a small task with very unequal clients, a run of it whose uploads can be tampered with, and its whole trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.state import to_arrays
from fedaccord.experiment import Experiment, Prepared, RunOptions, RuntimeOptions, prepare
from fedaccord.federation import RoundResult
from fedaccord.runtime.base import ClientUpload, Runtime

SIZES = (30, 22, 14, 9, 5, 2, 1)  # one-sample clients, one-class clients, 30:1
ROUNDS = 4
PLAN = fa.LocalPlan(lr=0.1, epochs=2, batch_size=4)
SCRIPT = ((0, 2, 3, 5), (1, 2, 4, 6), (0, 1, 2, 3), (2, 4, 5, 6))


def make_task(model: nn.Module | Callable[[], nn.Module]) -> fa.Task:
    generator = torch.Generator().manual_seed(5)
    num = sum(SIZES)
    x = torch.randn(num, 6, generator=generator)
    y = (x[:, :3] + 0.3 * torch.randn(num, 3, generator=generator)).argmax(1)
    order = torch.cat([torch.arange(30), 30 + y[30:].argsort()])  # the smaller clients see few classes
    return fa.Task(model=model, loss=F.cross_entropy, train=(x[order], y[order]), test=(x[:20], y[:20]), num_classes=3)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def with_batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4), nn.Flatten(), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


def shards() -> fa.Explicit:
    starts = [sum(SIZES[:i]) for i in range(len(SIZES))]
    return fa.Explicit([list(range(start, start + size)) for start, size in zip(starts, SIZES, strict=True)])


Change = Callable[[ClientUpload, int], ClientUpload]
Arrange = Callable[[Sequence[Any]], list[Any]]


class Tampering:
    """A runtime around a real one: `change` alters what a client sends, `arrange` the order in which clients train and answer."""

    def __init__(self, inner: Runtime, change: Change, arrange: Arrange) -> None:
        self.inner, self.change, self.arrange = inner, change, arrange
        self.uploads: list[dict[int, Any]] = []
        self.settled: list[set[int]] = []

    @property
    def population(self) -> int:
        return self.inner.population

    def train(
        self, algorithm: Any, sent: Any, buffers: Any, clients: Sequence[int], plan: Any, round: int, lr: float
    ) -> list[ClientUpload]:
        answers = self.inner.train(algorithm, sent, buffers, self.arrange(clients), plan, round, lr)
        self.uploads.append({answer.client: answer.upload for answer in answers})
        return self.arrange([self.change(answer, round) for answer in answers])

    def settle(self, accepted: Collection[int]) -> None:
        self.settled.append(set(accepted))
        self.inner.settle(accepted)

    def evaluate(self, w: Tensor, buffers: Any, clients: Sequence[int]) -> Any:
        return self.inner.evaluate(w, buffers, clients)

    def save(self, folder: Path) -> None:
        self.inner.save(folder)

    def committed(self, folder: Path) -> None:
        self.inner.committed(folder)

    def restore(self, folder: Path) -> None:
        self.inner.restore(folder)


class Trace(NamedTuple):
    """Everything that a run leaves, round by round."""

    results: list[RoundResult]
    kept: list[dict[int, Any]]  # after each round: what each client keeps, as arrays
    uploads: list[dict[int, Any]]  # of each round, before any tampering
    settled: list[set[int]]
    prepared: Prepared

    @property
    def w(self) -> Tensor:
        return self.results[-1].state.server.w

    def bits(self) -> list[Any]:
        """Server state, buffers, client state and reports of every round, without the clock."""
        return [
            (_plain(to_arrays((result.state.server, result.state.buffers))), {c: _plain(k) for c, k in kept.items()}, _timeless(result))
            for result, kept in zip(self.results, self.kept, strict=True)
        ]


def _plain(arrays: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: array.contiguous().numpy().tobytes() for name, array in arrays.items()}


def _timeless(result: RoundResult) -> tuple[Any, ...]:
    clients = tuple(dataclasses.replace(each, seconds=0.0) for each in result.clients)
    return repr((dataclasses.replace(result.report, seconds=0.0), clients, result.evaluations))  # type: ignore[return-value]


def run_traced(
    algorithm: fa.Algorithm,
    task: fa.Task | None = None,
    *,
    rounds: int = ROUNDS,
    cohorts: Sequence[Sequence[int]] | None = SCRIPT,
    seed: int = 3,
    local: fa.LocalPlan = PLAN,
    change: Change = lambda answer, round: answer,
    arrange: Arrange = list,
    runtime: RuntimeOptions | None = None,
    folder: Path | None = None,
    **sections: Any,
) -> Trace:
    """`rounds` rounds over seven clients of 30 to 1 examples, `cohorts` by script (None: four drawn at random)."""
    experiment = Experiment(
        partition=sections.pop("partition", shards()),
        algorithm=algorithm,
        local=local,
        runtime=runtime or RuntimeOptions(),
        run=RunOptions(
            rounds=rounds,
            seed=seed,
            cohort=fa.Uniform(4) if cohorts is None else fa.Scripted.of(cohorts),
            client_test=0.0,
            client_validation=sections.pop("client_validation", 0.0),
        ),
        **sections,
    )
    prepared = prepare(experiment, task or make_task(mlp), state_folder=folder)
    wrapped = Tampering(prepared.federation.runtime, change, arrange)
    federation = dataclasses.replace(prepared.federation, runtime=wrapped)
    states = prepared.federation.runtime._states  # type: ignore[attr-defined]  # read only: what the clients keep has no public door
    results, kept = [], []
    for result in federation.run(prepared.start):
        results.append(result)
        kept.append({c: to_arrays(s) for c in range(wrapped.population) if (s := states.load(c)) is not None})
    return Trace(results, kept, wrapped.uploads, wrapped.settled, prepared)


@pytest.fixture(scope="session")
def trace() -> Callable[..., Trace]:
    return run_traced


@pytest.fixture(scope="session")
def script() -> tuple[tuple[int, ...], ...]:
    """Who is asked in each round."""
    return SCRIPT


@pytest.fixture(scope="session")
def bn_task() -> fa.Task:
    """A model with batch norm and dropout."""
    return make_task(with_batch_norm_and_dropout)


@pytest.fixture(scope="session")
def mlp_task() -> fa.Task:
    return make_task(mlp)


@pytest.fixture(scope="session")
def poisoned() -> Callable[[int, int], Change]:
    """`poisoned(client, round)`: that client's update of that round holds a NaN."""

    def of(client: int, round: int) -> Change:
        def change(answer: ClientUpload, at: int) -> ClientUpload:
            if (answer.client, at) != (client, round):
                return answer
            delta = answer.upload.delta.clone()
            delta[3] = float("nan")
            return answer._replace(upload=answer.upload._replace(delta=delta))

        return change

    return of
