"""guard.py: what is refused, with which words; and that nothing is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from fedaccord.aggregation.guard import Guard
from fedaccord.core.errors import UploadError
from fedaccord.core.reports import ClientReport
from fedaccord.core.vector import Layout, buffers_of
from fedaccord.runtime.base import ClientUpload


class Upload(NamedTuple):
    delta: Tensor
    control_delta: Tensor


MODEL = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
D = Layout.of(MODEL).size
ZEROS = Upload(torch.zeros(D), torch.zeros(D))
REPORT = ClientReport(round=1, client=7, num_examples=5, steps=3, gradients=3)


@pytest.fixture()
def guard() -> Guard:
    return Guard(ZEROS, buffers_of(MODEL), Layout.of(MODEL), max_examples=100)


def refusal(guard: Guard, upload: Any = ZEROS, buffers: Any = None, report: ClientReport = REPORT) -> UploadError | None:
    answer = ClientUpload(7, upload, buffers_of(MODEL) if buffers is None else buffers, report)
    others = [ClientUpload(client, ZEROS, buffers_of(MODEL), replace(REPORT, client=client)) for client in (6, 8)]
    before, found, after = guard.refusals([others[0], answer, others[1]], 1)
    assert before is None and after is None
    return found


def test_an_honest_upload_passes_and_not_a_bit_of_it_is_changed(guard: Guard) -> None:
    upload = Upload(torch.randn(D), torch.full((D,), 3e38))
    before = [t.clone() for t in upload]
    assert refusal(guard, upload) is None
    assert all(torch.equal(a, b) for a, b in zip(upload, before, strict=True))


def test_nan_is_named_with_client_field_layer_and_number(guard: Guard) -> None:
    control = torch.zeros(D)
    control[[8, 12]] = float("nan")  # 0.weight 6, 0.bias 2, then 1.weight
    error = refusal(guard, ZEROS._replace(control_delta=control))
    assert error is not None and (error.code, error.reason) == ("E101", "non_finite")
    assert str(error).startswith("E101 2 non-finite numbers (NaN) in 'control_delta', first in '1.weight'. client 7.")


def test_nan_in_a_buffer_is_named_too(guard: Guard) -> None:
    error = refusal(guard, buffers=buffers_of(MODEL) | {"1.running_var": torch.tensor([1.0, float("inf")])})
    assert error is not None and "1 non-finite numbers (Inf) in '1.running_var'" in str(error)


@pytest.mark.parametrize("shape", [(1,), (D, 1), (D + 1,), ()])
def test_a_shape_that_would_broadcast_is_refused(guard: Guard, shape: tuple[int, ...]) -> None:
    error = refusal(guard, ZEROS._replace(delta=torch.zeros(shape)))
    assert error is not None and (error.code, error.reason) == ("E102", "wrong_shape")
    assert f"'delta' is {shape}, expected ({D},)" in str(error)


def test_a_counter_that_became_a_float_is_refused(guard: Guard) -> None:
    error = refusal(guard, buffers=buffers_of(MODEL) | {"1.num_batches_tracked": torch.tensor(1.0)})
    assert error is not None and error.code == "E103" and "expected torch.int64" in str(error)


def test_missing_and_unknown_fields_are_named(guard: Guard) -> None:
    missing = {name: b for name, b in buffers_of(MODEL).items() if name != "1.running_mean"}
    for buffers in (missing, buffers_of(MODEL) | {"9.running_mean": torch.zeros(1)}):
        error = refusal(guard, buffers=buffers)
        assert error is not None and error.code == "E104" and "running_mean" in str(error)
    error = refusal(guard, ZEROS._asdict())
    assert error is not None and "the upload is a dict, expected ['control_delta', 'delta']" in str(error)


@pytest.mark.parametrize(("count", "code"), [(0, "E105"), (-1, "E105"), (float("nan"), "E105"), (101, "E106"), (100, None), (0.5, None)])
def test_counts_must_be_positive_finite_and_within_the_task(guard: Guard, count: float, code: str | None) -> None:
    error = refusal(guard, report=ClientReport(1, 7, count, steps=3, gradients=3))
    assert (error.code if error else None) == code


def test_no_work_is_no_update(guard: Guard) -> None:
    error = refusal(guard, report=ClientReport(1, 7, 5, steps=0))
    assert error is not None and (error.code, error.reason) == ("E109", "no_steps")


def test_a_signal_that_was_not_measured_is_no_reason_to_refuse(guard: Guard) -> None:
    assert refusal(guard, report=ClientReport(1, 7, 5, steps=3, gradients=3, signals={"rho": None, "gamma": -0.2})) is None


def test_messages_stay_short_whatever_was_sent(guard: Guard) -> None:
    for count in ("x" * 10**6, 10**5000, [0] * 10**5, object()):
        error = refusal(guard, report=ClientReport(1, 7, count, steps=3, gradients=3))  # type: ignore[arg-type]
        assert error is not None and error.code == "E105" and len(str(error)) < 300
