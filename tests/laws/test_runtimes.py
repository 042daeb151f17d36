"""The same weights on every runtime: every method, ragged clients, 15 rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import (
    PLAN,
    Trace,
    double_mlp,
    examples,
    make_task,
    mlp,
    poisoned,
    prepare_trial,
    require_all_accepted,
    traced,
    with_batch_norm_and_dropout,
)
from fedaccord.core.algorithm import Algorithm
from fedaccord.runtime.client import Clients
from fedaccord.runtime.crew import Crew
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.pool import Pool
from fedaccord.runtime.vectorized import Vectorized

ROUNDS = 15
CLIPPED = replace(PLAN, clip_norm=1.0)


def run(algorithm: Algorithm, name: str, dtype: torch.dtype, **options: Any) -> Trace:
    x, _ = examples()
    task = make_task(double_mlp if dtype == torch.float64 else mlp, x=x.to(dtype))
    options = {"rounds": ROUNDS, "cohorts": None, "client_validation": 0.2, "local": CLIPPED, **options}
    prepared = prepare_trial(algorithm, task, runtime=RuntimeOptions(name), **options)  # type: ignore[arg-type]
    assert prepared.experiment.runtime.name == name
    trace = traced(prepared)
    require_all_accepted(trace)
    return trace


def distance(one: Trace, other: Trace) -> float:
    """|w - w'| after the last round, as a share of the way that the weights went."""
    return float((one.w - other.w).norm() / (one.w - one.server(0).w).norm())


def counts(trace: Trace) -> list[Any]:
    return [[(each.client, each.steps, each.gradients, each.num_examples, each.bytes_up) for each in r.clients] for r in trace.results]


@pytest.mark.parametrize("method", REGISTRY)
def test_vectorised_clients_train_as_one_after_another_do(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    double = run(REGISTRY[method](), "sequential", torch.float64)
    single = run(REGISTRY[method](), "sequential", torch.float32)
    monkeypatch.setattr(Clients, "train", _never)
    together = run(REGISTRY[method](), "vectorized", torch.float64)
    assert distance(double, together) <= 1e-9
    assert counts(together) == counts(double)
    for mine, theirs in zip(together.results, double.results, strict=True):
        for one, other in zip(mine.clients, theirs.clients, strict=True):
            assert one.loss == pytest.approx(other.loss, rel=1e-9)
            assert one.epoch_losses == pytest.approx(other.epoch_losses, rel=1e-9)
            assert {name for name, value in one.signals.items() if value is None} == {n for n, v in other.signals.items() if v is None}
            assert _known(one.signals) == pytest.approx(_known(other.signals), rel=1e-6, abs=1e-9)
    assert distance(single, run(REGISTRY[method](), "vectorized", torch.float32)) <= 1e-5


def _known(signals: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in signals.items() if value is not None}


def _never(*_: object) -> None:
    raise AssertionError("a client was trained alone")


def test_a_run_with_another_learning_rate_is_far_from_it() -> None:
    straight = run(fa.FedSMOO(), "sequential", torch.float64)
    changed = run(fa.FedSMOO(), "vectorized", torch.float64, local=replace(CLIPPED, lr=PLAN.lr * 1.001))
    assert distance(straight, changed) > 1e-5


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, optimizer=fa.Sgd(momentum=0.9, nesterov=True), keep_moments=True),
        replace(PLAN, optimizer=fa.Adam(), lr=0.01, keep_moments=True),
        replace(PLAN, optimizer=fa.AdamW(), lr=0.01, weight_decay=0.1),
        replace(PLAN, clip_norm=0.5, clip_scope="data_gradient"),
        replace(PLAN, clip_norm=0.5, clip_scope="reference"),
        replace(PLAN, batch_size="full"),
        replace(PLAN, drop_last=True, schedule=fa.Cosine()),
    ],
    ids=["momentum", "adam", "adamw", "data gradient", "reference", "full", "drop last"],
)
@pytest.mark.parametrize("method", ["scaffold", "dynamic_sam"])
def test_every_plan_trains_the_same_side_by_side(method: str, plan: fa.LocalPlan) -> None:
    alone, together = (run(REGISTRY[method](), name, torch.float64, local=plan, rounds=5) for name in ("sequential", "vectorized"))
    assert distance(alone, together) <= 1e-9


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Two workers for all methods: each takes seconds to import torch."""
    crew = Crew(2)
    yield crew
    crew.close()


@pytest.mark.parametrize("method", REGISTRY)
def test_a_pool_gives_the_bits_of_one_after_another(method: str, crew: Crew) -> None:
    """With batch norm and dropout, ragged clients, recorded steps, refusals and what clients keep."""
    task = make_task(with_batch_norm_and_dropout)
    options: dict[str, Any] = {"rounds": ROUNDS, "cohorts": None, "client_validation": 0.2, "local": CLIPPED}
    alone = traced(prepare_trial(REGISTRY[method](), task, **options), change=poisoned(2, 3))
    prepared = prepare_trial(REGISTRY[method](), task, **options)
    own: Any = prepared.federation.runtime
    pool = Pool(own._clients, own._metrics, own._states, crew=crew)
    spread = traced(prepared._replace(federation=replace(prepared.federation, runtime=pool)), change=poisoned(2, 3))
    assert spread.bits() == alone.bits()
    assert spread.settled == alone.settled


@pytest.mark.parametrize("method", REGISTRY)
def test_blocks_in_workers_give_the_bits_of_the_same_blocks_here(method: str, crew: Crew) -> None:
    """With ragged clients, refusals, moments and what clients keep; which worker trains a block, and when, is chance."""
    plan = replace(CLIPPED, optimizer=fa.Sgd(momentum=0.9), keep_moments=True)
    options: dict[str, Any] = {"rounds": 4, "cohorts": None, "client_validation": 0.2, "local": plan}
    options["runtime"] = RuntimeOptions("vectorized", workers=1, block=3)
    here = traced(prepare_trial(REGISTRY[method](), **options), change=poisoned(2, 3))
    prepared = prepare_trial(REGISTRY[method](), **options)
    own: Any = prepared.federation.runtime
    spread = Vectorized(own._clients, own._metrics, own._states, own._side_by_side._per_example, block=3, crew=crew)
    there = traced(prepared._replace(federation=replace(prepared.federation, runtime=spread)), change=poisoned(2, 3))
    assert there.bits() == here.bits() and there.settled == here.settled


@pytest.mark.parametrize("method", REGISTRY)
def test_recorded_steps_give_the_bits_of_autograd(method: str) -> None:
    options: dict[str, Any] = {"rounds": ROUNDS, "cohorts": None, "client_validation": 0.2, "local": CLIPPED}
    eager, recorded = (
        prepare_trial(REGISTRY[method](), runtime=RuntimeOptions("sequential", step=step), **options)  # type: ignore[arg-type]
        for step in ("eager", "captured")
    )
    assert [each.experiment.runtime.step for each in (eager, recorded)] == ["eager", "captured"]
    assert traced(eager).bits() == traced(recorded).bits()
    clients: Any = recorded.federation.runtime
    assert (clients._clients._captured.num_programs > 0) == REGISTRY[method]().objective_is_loss
