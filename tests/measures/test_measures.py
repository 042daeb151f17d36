from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.vector import FlatModel
from fedaccord.measures import Measures, PooledLoss, measure
from fedaccord.measures.measures import LISTS, NAMES

SMALL = Measures(probes=3, points_1d=5, points_2d=3)


def without_time(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "seconds"}


def test_a_record_has_every_measure_finite_and_is_json(network: PooledLoss) -> None:
    record = measure(SMALL, network, network.model.initial_w, 7)
    assert record["reasons"] == {}
    assert all(isinstance(record[name], float) for name in NAMES)
    assert (record["seed"], record["examples"], record["asked"], record["rho"]) == (7, 12, 1000, 0.1)
    assert record["seconds"] > 0
    assert record["eigenvalue"] == record["eigenvalues"][0] and len(record["eigenvalues"]) == 5
    assert record["eigenvalue_ratio"] == record["eigenvalues"][0] / record["eigenvalues"][4]
    assert record["slice"]["at"] == [-1.0, -0.5, 0.0, 0.5, 1.0] and record["grid"]["at"] == [-1.0, 0.0, 1.0]
    assert record["slice"]["loss"][2] == record["grid"]["loss"][1][1] == record["loss"]
    json.dumps(record, allow_nan=False)


def test_the_seed_fixes_every_number(network: PooledLoss) -> None:
    w = network.model.initial_w
    first = without_time(measure(SMALL, network, w, 0))
    assert first == without_time(measure(SMALL, network, w, 0))
    other = measure(SMALL, network, w, 1)
    assert all(first[name] != other[name] for name in ("trace", "random_rise", "slice", "grid"))
    assert other["eigenvalue"] == pytest.approx(first["eigenvalue"], rel=1e-3)


@pytest.mark.parametrize(("value", "reason"), [(float("nan"), "the weights are not finite"), (1e38, "the loss at the global model")])
def test_a_broken_model_has_no_measures_and_a_reason(network: PooledLoss, value: float, reason: str) -> None:
    record = measure(SMALL, network, torch.full_like(network.model.initial_w, value), 0)
    assert all(record[name] is None for name in (*NAMES, *LISTS))
    assert reason in record["reasons"]["all"]
    assert record.keys() == measure(SMALL, network, network.model.initial_w, 0).keys()
    json.dumps(record, allow_nan=False)


class Once(torch.autograd.Function):
    """x^2 with a first derivative and no second."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 * x


def test_a_loss_without_a_second_derivative_keeps_the_measures_that_need_none(network: PooledLoss) -> None:
    pooled = replace(network, loss=lambda outputs, y: (Once.apply(outputs) ** 2).mean())
    record = measure(SMALL, pooled, network.model.initial_w, 0)
    assert record["eigenvalue"] is None and record["trace"] is None
    assert record["reasons"].keys() == {"eigenvalues", "trace"} and "once_differentiable" in record["reasons"]["trace"]
    assert record["sam_gap"] > 0 and None not in record["slice"]["loss"]


def test_points_of_a_slice_without_a_finite_loss_are_null() -> None:
    def cliff(outputs: Tensor, y: Tensor) -> Tensor:
        return -torch.log(3 - outputs.norm())  # NaN beyond a norm of 3

    pooled = PooledLoss(FlatModel(nn.Linear(4, 4)), {}, cliff, torch.eye(4), torch.zeros(4))
    w = torch.ones(20) * 0.6  # outputs of norm 2.4 without biases, 4.8 with
    w[16:] = 0
    record = measure(replace(SMALL, points_1d=3, rho=100.0), pooled, w, 0)
    assert None in record["slice"]["loss"] and record["slice"]["loss"][1] is not None
    assert record["sam_gap"] is None and record["reasons"]["sam_gap"] == "it is not finite"
    json.dumps(record, allow_nan=False)


def test_a_model_without_filters_has_no_slices() -> None:
    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.by

    pooled = PooledLoss(FlatModel(Shift()), {}, F.mse_loss, torch.zeros(4, 3), torch.zeros(4, 3))
    record = measure(SMALL, pooled, pooled.model.initial_w, 0)
    assert record["slice"] is record["grid"] is None and "filter" in record["reasons"]["slice"]
    assert record["trace"] == pytest.approx(2.0) and record["eigenvalue"] == pytest.approx(2 / 3)  # L = |1 + w|^2/3
    assert record["eigenvalue_ratio"] is None and "fifth" in record["reasons"]["eigenvalue_ratio"]


def test_a_fifth_eigenvalue_that_is_not_positive_has_no_ratio(quadratic: Callable[..., PooledLoss]) -> None:
    pooled = quadratic(torch.diag(torch.tensor([5.0, 4.0, 3.0, 2.0, -1.0, -2.0], dtype=torch.float64)))
    record = measure(SMALL, pooled, torch.ones(6, dtype=torch.float64), 0)
    assert record["eigenvalues"] == pytest.approx([5, 4, 3, 2, -1])
    assert record["eigenvalue_ratio"] is None and "not positive" in record["reasons"]["eigenvalue_ratio"]
