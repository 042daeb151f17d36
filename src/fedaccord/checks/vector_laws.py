"""The law that lets one definition run for many clients at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedaccord.checks.law import Breach
from fedaccord.checks.trial import PLAN, Trace, Trial, double_mlp, examples, make_task, require_all_accepted, run_traced, shards
from fedaccord.checks.watched import Watched
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.batch import BoundBatch, FunctionalGrad
from fedaccord.core.state import from_arrays, to_arrays
from fedaccord.core.vector import FlatModel

CLIENTS, ROUNDS = 4, 6
TOLERANCE = 1e-6  # relative; the numbers are float64, so that only a wrong formula comes near it
REMEDY = "Write torch.where instead of if, and keep tensors: no .item(), no float(tensor), no numpy"


def vectorisability(trial: Trial) -> None:
    """Under torch.func.vmap over clients, the rules give what each client's real training gave; likewise `update` over rounds."""
    spy = _Spy()
    watched: Any = Watched(trial.algorithm, spy)
    x, _ = examples()
    task = make_task(double_mlp, x=x.double())
    everyone = [range(CLIENTS)] * ROUNDS
    trace = run_traced(watched, task, rounds=ROUNDS, cohorts=everyone, partition=shards([10] * CLIENTS), client_validation=0.2)
    require_all_accepted(trace)
    model = FlatModel(task.build_model(3))
    model.train(True)
    for round in range(1, ROUNDS + 1):
        for clients in _groups(trace, spy, round):
            _hold_clients(trial.algorithm, model, trace, spy, round, clients)
    _hold_server(trial.algorithm, trace, spy)


def _groups(trace: Trace, spy: _Spy, round: int) -> list[list[int]]:
    """Clients that take as many steps and are told the same plain numbers: those go through one vmap."""
    starts = spy.first_argument("begin", ROUNDS * CLIENTS)[(round - 1) * CLIENTS :]
    groups: dict[Any, list[int]] = {}
    for client, start in zip(range(CLIENTS), starts, strict=False):
        told = tuple(value for value in start if isinstance(value, int | float))
        groups.setdefault((trace.results[round - 1].clients[client].steps, told), []).append(client)
    return list(groups.values())


class _Spy:
    """Keeps the arguments of each call, by rule."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Mapping[str, Any]]] = {}

    def __call__(self, name: str, rule: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        self.calls.setdefault(name, []).append(given)
        return rule(**given)

    def first_argument(self, rule: str, last: int) -> list[Any]:
        """Of each of the last so many calls: those before were made while the run was put together."""
        return [next(iter(given.values())) for given in self.calls[rule][-last:]]


class _LastRule:
    """Remembers which rule was called last, for the message."""

    name = ""

    def __call__(self, name: str, rule: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        self.name = name
        return rule(**given)


def _hold_clients(algorithm: Algorithm, model: FlatModel, trace: Trace, spy: _Spy, round: int, clients: list[int]) -> None:
    """Clients of as many steps, all at once, against what the run has kept of them."""
    data, task_loss = trace.prepared.data, torch.nn.functional.cross_entropy
    sent = algorithm.broadcast(trace.server(round - 1))
    like = trace.kept(round - 1, clients[0])
    places = [(round - 1) * CLIENTS + client for client in clients]
    starts = spy.first_argument("begin", ROUNDS * CLIENTS)
    works = [list(given.values())[-1] for given in spy.calls["upload"][-ROUNDS * CLIENTS :]]
    steps = trace.results[round - 1].clients[clients[0]].steps
    plan = replace(PLAN, epochs=steps // PLAN.steps_per_epoch(len(data.train[clients[0]])))
    kept = _stacked([to_arrays(trace.kept(round - 1, client)) for client in clients])
    batches = [_stacked_pairs(step) for step in zip(*(data.batches(client, round, plan) for client in clients), strict=True)]
    held_out = [example for client in clients if (example := data.examples(data.validation, client)) is not None]
    random = torch.stack([starts[place].random_direction() for place in places])
    last = _LastRule()
    watched: Any = Watched(algorithm, last)

    def client(kept_arrays: dict[str, Tensor], batches: list[Any], held_out: Any, random: Tensor) -> Any:
        kept = from_arrays(like, kept_arrays)

        def grad(example: tuple[Tensor, Tensor], local: Any, step: int = 0) -> FunctionalGrad:
            return FunctionalGrad(watched.objective(BoundBatch(model, task_loss, {}, *example), sent, local), step)

        reference = [grad(example, kept) for example in batches[1 : algorithm.num_reference_batches]]
        start = starts[places[0]]._replace(reference=reference, validation=grad(held_out, kept), random_direction=lambda: random)
        local, w = watched.begin(start, sent, kept), sent.w
        for step, example in enumerate(batches):
            direction, local = watched.direction(grad(example, local, step), w, sent, local)
            w = w - start.lr * direction
        upload, kept = watched.upload(w, sent, local, works[places[0]])
        return to_arrays(upload), to_arrays(kept), watched.signals(kept)

    together = _vmapped(client, (kept, batches, _stacked_pairs(held_out), random), last)
    for i, one in enumerate(clients):
        reported = trace.results[round - 1].clients[one].signals
        signals = {name: torch.tensor(math.nan if value is None else value) for name, value in reported.items()}
        alone = (to_arrays(trace.uploads[round - 1][one]), to_arrays(trace.kept(round, one)), signals)
        for what, mine, theirs in zip(("the upload's", "what is kept of", "the signal"), together, alone, strict=True):
            for name, expected in theirs.items():
                _require_close(mine[name][i], expected, f"{what} {name!r} of client {one} in round {round}")


def _hold_server(algorithm: Algorithm, trace: Trace, spy: _Spy) -> None:
    """`update`, for the servers of all rounds at once."""
    calls = [list(given.values()) for given in spy.calls["update"][-ROUNDS:]]
    servers, cohorts = [call[0] for call in calls], [call[1] for call in calls]
    last = _LastRule()
    watched: Any = Watched(algorithm, last)

    def update(server: dict[str, Tensor], weighted: dict[str, Tensor], uniform: dict[str, Tensor]) -> dict[str, Tensor]:
        sums = {"weighted": from_arrays(cohorts[0].weighted, weighted), "uniform": from_arrays(cohorts[0].uniform, uniform)}
        return to_arrays(watched.update(from_arrays(servers[0], server), cohorts[0]._replace(**sums)))

    parts = (servers, [cohort.weighted for cohort in cohorts], [cohort.uniform for cohort in cohorts])
    together = _vmapped(update, tuple(_stacked([to_arrays(each) for each in part]) for part in parts), last)
    for i, (server, cohort) in enumerate(zip(servers, cohorts, strict=True)):
        for field, expected in to_arrays(algorithm.update(server, cohort)).items():
            _require_close(together[field][i], expected, f"the server's {field!r} of round {i + 1}")


def _vmapped(function: Callable[..., Any], arguments: tuple[Any, ...], last: _LastRule) -> Any:
    try:
        return torch.func.vmap(function)(*arguments)
    except Exception as problem:
        first = str(problem).split(". ")[0].split("\n")[0]
        raise Breach(f"{last.name} cannot run for many clients at once: {type(problem).__name__}: {first}", REMEDY) from problem


def _require_close(mine: Tensor, theirs: Tensor, what: str) -> None:
    mine, theirs = mine.double(), theirs.double()
    is_unmeasured = mine.isnan() & theirs.isnan()  # a signal may be no number; state that is none breaks the law "finite"
    mine, theirs = mine.where(~is_unmeasured, 0.0), theirs.where(~is_unmeasured, 0.0)
    difference, size = float((mine - theirs).norm()), float(theirs.norm())
    if not difference <= TOLERANCE * size + 1e-12:
        raise Breach(f"{what} differs by {difference:.1e} (of {size:.1e}) between many clients at once and one by one", REMEDY)


def _stacked(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _stacked_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in pairs]), torch.stack([y for _, y in pairs])
