"""Ten thousand malformed uploads through every screen and every policy: a finite model, no aborted round, and a reason for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.aggregation.policies import POLICIES
from fedaccord.aggregation.screens import SCREENS
from fedaccord.checks.trial import Tampering, mlp
from fedaccord.checks.trial import examples as trial_examples
from fedaccord.core.errors import REASONS
from fedaccord.experiment import Aggregation, Experiment, RunOptions, prepare
from fedaccord.partition import IID
from fedaccord.runtime.base import ClientUpload
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.sampling import Uniform
from fedaccord.tasks import Task

ROUNDS, CLIENTS = 66, 12
PIPELINES: dict[str, Aggregation] = {f"screen {name}": Aggregation(screen=kind()) for name, kind in SCREENS.items()}
PIPELINES |= {
    f"policy {name}": Aggregation(kind(weights="untrained") if "weights" in kind.__dataclass_fields__ else kind())
    for name, kind in POLICIES.items()
}
Fault = Callable[[ClientUpload, np.random.Generator], ClientUpload]


def number_in(value: float) -> Fault:
    def change(answer: ClientUpload, rng: np.random.Generator) -> ClientUpload:
        delta = answer.upload.delta.clone()
        delta[rng.integers(len(delta), size=rng.integers(1, 5))] = value
        return answer._replace(upload=answer.upload._replace(delta=delta))

    return change


def delta_as(make: Callable[[torch.Tensor], Any]) -> Fault:
    return lambda answer, rng: answer._replace(upload=answer.upload._replace(delta=make(answer.upload.delta)))


def report_with(**values: Any) -> Fault:
    return lambda answer, rng: answer._replace(report=replace(answer.report, **values))


MALFORMED: tuple[Fault, ...] = (
    number_in(math.nan),
    number_in(math.inf),
    number_in(-math.inf),
    delta_as(lambda d: d[:1]),
    delta_as(lambda d: d[:, None]),
    delta_as(lambda d: d.double()),
    delta_as(lambda d: d.to(torch.int32)),
    delta_as(lambda d: d.tolist()),
    delta_as(lambda d: None),
    lambda answer, rng: answer._replace(upload={"delta": answer.upload.delta}),
    lambda answer, rng: answer._replace(upload=()),
    lambda answer, rng: answer._replace(buffers={"odd": torch.zeros(1)}),
    *(report_with(num_examples=value) for value in (0, -80, math.nan, math.inf, 1e12, "many", None, 10**400)),
    *(report_with(steps=value) for value in (0, -1, "two")),
    *(report_with(signals=value) for value in ({"rho": math.nan}, [1], {"rho": "x"})),
    report_with(round=1000),
    report_with(gradients=0),
    report_with(update_norm=1e9),
)
LEGAL: tuple[Fault, ...] = (  # odd, and well-formed: whatever becomes of them, the model stays finite
    delta_as(torch.zeros_like),
    delta_as(lambda d: d * 1e30),
    delta_as(lambda d: d * 1e-42),
    delta_as(lambda d: -d),
    delta_as(lambda d: torch.full_like(d, 1e38)),
    report_with(loss=math.nan, epoch_losses=(math.inf, None, "x")),
    report_with(epoch_losses=None),
    report_with(latency="soon"),
)


@pytest.mark.parametrize("name", PIPELINES)
def test_no_pipeline_lets_a_malformed_upload_through_or_ends_a_round(name: str) -> None:
    x, y = trial_examples()
    task = Task(
        model=mlp, loss=torch.nn.functional.cross_entropy, train=(x, y), test=(x[:20], y[:20]), validation=(x[50:], y[50:]), num_classes=3
    )
    aggregation = replace(PIPELINES[name], quarantine=fa.Quarantine(refusals=10**6))
    options = RunOptions(rounds=ROUNDS, cohort=Uniform(CLIENTS), client_test=0.0, evaluate_every=ROUNDS, keep_weights=False)
    local = fa.LocalPlan(lr=0.05, epochs=2, batch_size=4)
    prepared = prepare(
        Experiment(IID(CLIENTS), fa.FedAvg(), local, aggregation=aggregation, runtime=RuntimeOptions("sequential"), run=options), task
    )
    rng, told = np.random.default_rng(len(name)), dict[tuple[int, int], str]()

    def change(answer: ClientUpload, round: int) -> ClientUpload:
        lot = rng.random()
        if lot < 0.6:
            told[round, answer.client] = "malformed"
            return MALFORMED[int(rng.integers(len(MALFORMED)))](answer, rng)
        return LEGAL[int(rng.integers(len(LEGAL)))](answer, rng) if lot < 0.75 else answer

    runtime = Tampering(prepared.federation.runtime, change, list)
    state, malformed = prepared.start, 0
    for result in replace(prepared.federation, runtime=runtime).run(state):
        assert bool(result.state.server.w.isfinite().all())
        reasons = {refusal["client"]: refusal["reason"] for refusal in result.report.refused}
        assert set(reasons.values()) <= set(REASONS)
        asked_for = {client for round, client in told if round == result.report.round}
        assert asked_for <= reasons.keys() and not asked_for & set(result.report.accepted)
        malformed += len(asked_for)
        state = result.state
    assert state.round == ROUNDS and malformed > 420  # of 792 uploads; 22 pipelines see over 10,000
