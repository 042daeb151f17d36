"""Whatever comes back, the model stays finite, the run goes on, and each refusal has its reason."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedaccord as fa
from fedaccord.algorithms import REGISTRY
from fedaccord.checks.trial import prepare_trial
from fedaccord.core.errors import CODES, REASONS
from fedaccord.core.local import upload_template
from fedaccord.core.reports import ClientReport
from fedaccord.core.state import map_state, to_arrays
from fedaccord.core.vector import FlatModel
from fedaccord.runs import lines_of
from fedaccord.runtime.base import ClientUpload

CASES = 300  # a method: 2,100 over the seven


class Other(NamedTuple):
    delta: Any


NUMBERS = [
    0,
    -1,
    -80.0,
    0.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e12,
    1e38,
    1e308,
    10**400,
    True,
    False,
    "5",
    None,
    [3],
    np.int64(4),
    torch.tensor(2),
]
VALUES = [float("nan"), float("inf"), -float("inf"), 1e38, 3.4e38, -3e38, 1e-45, -80.0]


def fill(value: float, everywhere: bool) -> Any:
    def change(t: Tensor) -> Tensor:
        t = t.clone()
        if everywhere:
            return torch.full_like(t, value)
        t.view(-1)[t.numel() // 2] = value
        return t

    return change


SHAPES = {
    "one number": lambda t: t.reshape(-1)[:1],
    "one too many": lambda t: torch.cat([t.reshape(-1), t.new_zeros(1)]),
    "a column": lambda t: t.reshape(-1, 1),
    "empty": lambda t: t.reshape(-1)[:0],
    "a scalar": lambda t: t.sum(),
    "sparse": lambda t: t.to_sparse() if t.ndim else t.reshape(1),
    "double": lambda t: t.double(),
    "half": lambda t: t.half(),
    "integers": lambda t: t.to(torch.int32),
    "complex": lambda t: t.to(torch.complex64),
    "numpy": lambda t: t.numpy(),
    "list": lambda t: t.tolist(),
    "none": lambda t: None,
    "text": lambda t: "weights",
}
REPORTS = ["num_examples", "steps", "gradients", "loss", "bytes_up", "seconds", "epoch_losses", "signals"]

tamperings = st.one_of(
    st.just(("honest",)),
    st.tuples(st.just("value"), st.integers(0, 5), st.sampled_from(VALUES), st.booleans()),
    st.tuples(st.just("shape"), st.integers(0, 5), st.sampled_from(sorted(SHAPES))),
    st.tuples(st.just("whole"), st.sampled_from([None, (), {}, "x", 3.0, Other(1.0), [1, 2]])),
    st.tuples(st.just("report"), st.sampled_from(REPORTS), st.sampled_from(NUMBERS)),
    st.tuples(st.just("signal"), st.sampled_from(["lambda_raw", "x"]), st.sampled_from(NUMBERS)),
    st.tuples(st.just("buffers"), st.sampled_from([None, {}, [], "x", {"1.running_mean": torch.zeros(4)}])),
    st.tuples(st.just("buffer"), st.integers(0, 2), st.sampled_from(sorted(SHAPES))),
    st.tuples(st.just("buffer value"), st.integers(0, 1), st.sampled_from(VALUES), st.booleans()),
)


def tampered(answer: ClientUpload, how: Sequence[Any]) -> ClientUpload:
    kind, *what = how
    upload, buffers, report = answer.upload, answer.buffers, answer.report
    if kind in ("value", "shape"):
        name = upload._fields[what[0] % len(upload._fields)]
        change = fill(*what[1:]) if kind == "value" else SHAPES[what[1]]
        return answer._replace(upload=upload._replace(**{name: change(getattr(upload, name))}))
    if kind == "whole":
        return answer._replace(upload=what[0])
    if kind == "report":
        return answer._replace(report=dataclasses.replace(report, **{what[0]: what[1]}))
    if kind == "signal":
        return answer._replace(report=dataclasses.replace(report, signals={**report.signals, what[0]: what[1]}))
    if kind == "buffers":
        return answer._replace(buffers=what[0])
    if kind in ("buffer", "buffer value") and buffers:
        name = list(buffers)[what[0]]
        change = fill(*what[1:]) if kind == "buffer value" else SHAPES[what[1]]
        return answer._replace(buffers=buffers | {name: change(buffers[name])})
    return answer


def _sent(algorithm: Any, model: Any) -> Any:
    return model.initial_buffers if algorithm.local_parts == "none" else {}


class Scripted:
    """A runtime of three clients that trains nothing: round 1 is tampered with, round 2 is honest."""

    population = 5

    def __init__(self, algorithm: Any, model: FlatModel, how: Sequence[Sequence[Any]]) -> None:
        self.template, self.buffers, self.how = upload_template(algorithm, model.initial_w, model.layout), _sent(algorithm, model), how

    def train(
        self, algorithm: Any, sent: Any, buffers: Any, clients: Sequence[int], plan: Any, round: int, lr: float
    ) -> list[ClientUpload]:
        generator = torch.Generator().manual_seed(round)
        answers = []
        for client in clients:
            upload = map_state(lambda leaf: 0.01 * torch.randn(leaf.shape, generator=generator), self.template)
            answers.append(ClientUpload(client, upload, self.buffers, ClientReport(round, client, 10, steps=2, gradients=2, loss=1.0)))
        return [tampered(answer, how) for answer, how in zip(answers, self.how, strict=False)] if round == 1 else answers

    def settle(self, accepted: Any) -> None:
        pass

    def evaluate(self, w: Any, buffers: Any, clients: Any) -> list[Any]:
        return []

    expect = save = committed = restore = settle


@pytest.fixture(scope="module")
def prepared() -> dict[str, Any]:
    """Each method's federation, the guard with it, for a small model with batch norm."""
    model = lambda: torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))  # noqa: E731
    x, y = torch.linspace(-1, 1, 120).reshape(20, 6), torch.arange(20) % 3
    task = fa.Task(model=model, loss=torch.nn.functional.cross_entropy, train=(x, y), test=(x, y))
    options: dict[str, Any] = {"partition": fa.IID(clients=5), "rounds": 1, "cohorts": [[]]}
    return {name: prepare_trial(REGISTRY[name](), task, **options) for name in REGISTRY}


@pytest.mark.parametrize("name", REGISTRY)
@settings(max_examples=CASES)
@given(how=st.tuples(tamperings, tamperings, tamperings))
def test_the_model_stays_finite_the_run_goes_on_and_each_refusal_has_a_reason(prepared: Any, name: str, how: Any) -> None:
    federation = dataclasses.replace(
        prepared[name].federation,
        runtime=Scripted(REGISTRY[name](), prepared[name].model, how),
        rounds=9,
        evaluate_every=9,  # measuring would take most of the time
        sampler=fa.Scripted.of([[0, 1, 2]] * 3),
    )
    start = prepared[name].start
    first = federation.round(start)
    second = federation.round(first.state)
    for result in (first, second):
        assert all(bool(torch.isfinite(leaf).all()) for leaf in to_arrays((result.state.server, result.state.buffers)).values())
        lines = lines_of(result.report, result.clients, result.evaluations)
        assert json.loads(json.dumps(lines, allow_nan=False)), "the records are plain JSON"
        refused = {each["client"]: each for each in result.report.refused}
        for client in result.clients:
            if not client.accepted:
                assert client.client in refused or result.report.reason, "a reason for each"
        for each in refused.values():
            assert each["reason"] in REASONS and each["code"] in CODES and len(each["message"]) < 500
    if not first.report.accepted:
        assert first.report.model_kept and torch.equal(first.state.server.w, start.server.w)
    if all(kind[0] == "honest" for kind in how):
        assert first.report.accepted == (0, 1, 2)
    assert second.report.accepted == (0, 1, 2) or second.report.reason == "the aggregate is not finite"


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_in_any_field_are_refused_by_name(prepared: Any, name: str, value: float) -> None:
    fields = upload_template(REGISTRY[name](), prepared[name].model.initial_w, prepared[name].model.layout)._fields
    for i, field in enumerate(fields):
        federation = dataclasses.replace(
            prepared[name].federation,
            runtime=Scripted(REGISTRY[name](), prepared[name].model, [("honest",), ("value", i, value, False), ("honest",)]),
            rounds=3,
            sampler=fa.Scripted.of([[0, 1, 2]]),
        )
        report = federation.round(prepared[name].start).report
        assert report.accepted == (0, 2) and report.refused[0]["client"] == 1
        assert report.refused[0]["code"] == "E101" and field in report.refused[0]["message"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (("shape", 0, "one number"), "wrong_shape"),
        (("shape", 0, "double"), "wrong_dtype"),
        (("shape", 0, "list"), "wrong_dtype"),
        (("whole", {}), "wrong_fields"),
        (("buffers", {}), "wrong_fields"),
        (("buffers", None), "wrong_fields"),
        (("report", "num_examples", 0), "bad_count"),
        (("report", "num_examples", -3), "bad_count"),
        (("report", "num_examples", float("nan")), "bad_count"),
        (("report", "num_examples", True), "bad_count"),
        (("report", "num_examples", "5"), "bad_count"),
        (("report", "num_examples", 10**400), "bad_count"),
        (("report", "num_examples", 1e12), "count_too_large"),
        (("report", "num_examples", 21), "count_too_large"),
        (("report", "steps", 0), "no_steps"),
        (("report", "steps", 1.5), "no_steps"),
        (("signal", "x", float("inf")), "non_finite"),
        (("report", "signals", None), "wrong_fields"),
    ],
    ids=str,
)
def test_each_kind_of_nonsense_has_its_reason(prepared: Any, how: Any, reason: str) -> None:
    federation = dataclasses.replace(
        prepared["fedavg"].federation,
        runtime=Scripted(REGISTRY["fedavg"](), prepared["fedavg"].model, [("honest",), how, ("honest",)]),
        rounds=3,
        sampler=fa.Scripted.of([[0, 1, 2]]),
    )
    report = federation.round(prepared["fedavg"].start).report
    assert [(each["client"], each["reason"]) for each in report.refused] == [(1, reason)] and report.accepted == (0, 2)
