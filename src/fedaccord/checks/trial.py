"""The federation that methods are tried on: seven very unequal clients, a run whose uploads can be tampered with, and its whole trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.checks.law import Breach
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.local import LocalPlan
from fedaccord.core.state import State, to_arrays
from fedaccord.experiment import Experiment, Prepared, RunOptions, prepare
from fedaccord.federation import RoundResult, RunState
from fedaccord.partition import Explicit, Partitioner
from fedaccord.runtime.base import ClientUpload, Runtime, RuntimeAround
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.sampling import Scripted, Uniform
from fedaccord.tasks import Task

SIZES = (30, 22, 14, 9, 5, 2, 1)  # examples: one-sample clients, one-class clients, 30:1
ROUNDS = 4
PLAN = LocalPlan(lr=0.1, epochs=2, batch_size=4)
SEQUENTIAL = RuntimeOptions("sequential")
SCRIPT = ((0, 2, 3, 5), (1, 2, 4, 6), (0, 1, 2, 3), (2, 4, 5, 6))  # who is asked in each round

Ledger = Callable[[State, State], tuple[Tensor, Tensor]]  # (server, kept) -> the server's vector, and the client's that it is the mean of
Change = Callable[[ClientUpload, int], ClientUpload]  # (answer, round) -> what arrives instead
Arrange = Callable[[Sequence[Any]], list[Any]]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def double_mlp() -> nn.Module:
    """The same in float64, where only a wrong formula differs."""
    return mlp().double()


def with_batch_norm_and_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), nn.BatchNorm1d(4), nn.Flatten(), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )


class FailsOnThree(nn.Module):
    """Raises where the batch holds three examples."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 3:
            raise ValueError("three at once")
        out: Tensor = self.last(x)
        return out


def examples() -> tuple[Tensor, Tensor]:
    """x [83, 6] and three classes y [83]; the smaller clients see few of them."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(sum(SIZES), 6, generator=generator)
    y = (x[:, :3] + 0.3 * torch.randn(sum(SIZES), 3, generator=generator)).argmax(1)
    order = torch.cat([torch.arange(30), 30 + y[30:].argsort()])
    return x[order], y[order]


def make_task(
    model: nn.Module | Callable[[], nn.Module], *, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy, x: Tensor | None = None
) -> Task:
    """The examples above, or others [83, 6] under the same labels."""
    own_x, y = examples()
    x = own_x if x is None else x
    return Task(model=model, loss=loss, train=(x, y), test=(own_x[:20].to(x.dtype), y[:20]), num_classes=3)


def shards(sizes: Sequence[int] = SIZES) -> Explicit:
    """The examples in their order, `sizes` of them to each client."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return Explicit([list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)])


class Tampering(RuntimeAround):
    """A runtime around a real one: `change` alters what a client sends, `arrange` the order in which clients train and answer."""

    def __init__(self, inner: Runtime, change: Change, arrange: Arrange) -> None:
        self.inner, self.change, self.arrange = inner, change, arrange
        self.uploads: list[dict[int, Any]] = []
        self.settled: list[set[int]] = []

    def train(
        self, algorithm: Algorithm, sent: State, buffers: Any, clients: Sequence[int], plan: LocalPlan, round: int, lr: float
    ) -> list[ClientUpload]:
        answers = self.inner.train(algorithm, sent, buffers, self.arrange(clients), plan, round, lr)
        self.uploads.append({answer.client: answer.upload for answer in answers})
        return self.arrange([self.change(answer, round) for answer in answers])

    def settle(self, accepted: Collection[int]) -> None:
        self.settled.append(set(accepted))
        self.inner.settle(accepted)


class Trace(NamedTuple):
    """Everything that a run leaves, round by round."""

    results: list[RoundResult]
    states: list[dict[int, State]]  # after each round: all that each client keeps, the method's own state first
    uploads: list[dict[int, Any]]  # of each round, before any tampering
    settled: list[set[int]]
    prepared: Prepared

    @property
    def w(self) -> Tensor:
        """The last global model [d]."""
        w: Tensor = self.results[-1].state.server.w
        return w

    def kept(self, round: int, client: int) -> State:
        """The method's own state of a client after a round (0: before the first)."""
        found = self.states[round - 1].get(client) if round else None
        return self.prepared.federation.algorithm.init_client(self.server(0).w) if found is None else found[0]

    def server(self, round: int) -> State:
        """The server's state after a round (0: before the first)."""
        return self.results[round - 1].state.server if round else self.prepared.start.server

    def bits(self) -> list[tuple[Any, Any, str]]:
        """Server state with buffers, clients' state, and reports without the clock, of every round."""
        return [
            (bits((result.state.server, result.state.buffers)), {c: bits(state) for c, state in states.items()}, _timeless(result))
            for result, states in zip(self.results, self.states, strict=True)
        ]


def bits(state: State) -> dict[str, bytes]:
    """A tree's leaves by path, byte by byte."""
    return {name: bits_of(leaf) for name, leaf in to_arrays(state).items()}


def bits_of(tensor: Tensor) -> bytes:
    """A tensor byte by byte: NaN equals itself, and -0 is not 0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _timeless(result: RoundResult) -> str:
    clients = tuple(replace(each, seconds=0.0) for each in result.clients)
    return repr((replace(result.report, seconds=0.0), clients, result.evaluations))


def untampered(answer: ClientUpload, round: int) -> ClientUpload:
    return answer


def prepare_trial(
    algorithm: Algorithm,
    task: Task | None = None,
    *,
    rounds: int = ROUNDS,
    cohorts: Sequence[Sequence[int]] | None = SCRIPT,
    seed: int = 3,
    local: LocalPlan = PLAN,
    partition: Partitioner | None = None,
    client_validation: float = 0.0,
    folder: Path | None = None,
    runtime: RuntimeOptions = SEQUENTIAL,
    **sections: Any,
) -> Prepared:
    """Seven clients of 30 to 1 examples, `cohorts` by script (None: four drawn at random); `sections` of the experiment as they are."""
    run = RunOptions(
        rounds=rounds,
        seed=seed,
        cohort=Uniform(4) if cohorts is None else Scripted.of(cohorts),
        client_test=0.0,
        client_validation=client_validation,
    )
    experiment = Experiment(partition=partition or shards(), algorithm=algorithm, local=local, runtime=runtime, run=run, **sections)
    return prepare(experiment, task or make_task(mlp), state_folder=folder)


def traced(prepared: Prepared, *, start: RunState | None = None, change: Change = untampered, arrange: Arrange = list) -> Trace:
    """Run to the end, from `start` (default: from before round 1)."""
    inner: Any = prepared.federation.runtime
    wrapped = Tampering(inner, change, arrange)
    results: list[RoundResult] = []
    states: list[dict[int, State]] = []
    for result in replace(prepared.federation, runtime=wrapped).run(start or prepared.start):
        results.append(result)
        states.append({c: state for c in range(wrapped.population) if (state := inner.client_state(c)) is not None})
    return Trace(results, states, wrapped.uploads, wrapped.settled, prepared)


def run_traced(
    algorithm: Algorithm, task: Task | None = None, *, change: Change = untampered, arrange: Arrange = list, **options: Any
) -> Trace:
    """`options` are those of `prepare_trial`."""
    return traced(prepare_trial(algorithm, task, **options), change=change, arrange=arrange)


def poisoned(client: int, round: int) -> Change:
    """That client's update of that round holds a NaN."""

    def change(answer: ClientUpload, at: int) -> ClientUpload:
        if (answer.client, at) != (client, round):
            return answer
        delta = answer.upload.delta.clone()
        delta[3] = float("nan")
        return answer._replace(upload=answer.upload._replace(delta=delta))

    return change


def require_all_accepted(trace: Trace) -> None:
    """In an honest run nobody is refused."""
    for result in trace.results:
        for refusal in result.report.refused:
            seen = f"an honest client was refused in round {result.report.round}: {refusal['message']}"
            raise Breach(seen, "Make the rules run on small models and small clients, and give finite numbers")


@dataclass(frozen=True)
class Trial:
    """A method under trial, and what its author says of it."""

    algorithm: Algorithm
    neutral: Algorithm | None = None
    ledger: Ledger | None = None

    @cached_property
    def straight(self) -> Trace:
        """The plain run, with batch norm and dropout."""
        trace = run_traced(self.algorithm, make_task(with_batch_norm_and_dropout))
        require_all_accepted(trace)
        return trace
