"""Local training in float16: what an overflowing step takes back, and what it must not count as."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.rng import stream
from fedaccord.experiment import Experiment, RunOptions, prepare
from fedaccord.sampling import Uniform


class Steep(nn.Module):
    """Outputs w x, times 10 in float32, with a layer of batch norm or an own weight beside it where asked for."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(1, 1, bias=False), norm or nn.Identity()
        nn.init.constant_(self.linear.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return 10.0 * self.norm(self.linear(x).float())


def steep_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs * (1 + y)).mean()


def task(module: nn.Module, x: Tensor | None = None) -> fa.Task:
    x = torch.ones(4, 1) if x is None else x
    y = torch.tensor([0.0, 0.5, 1.0, 2.0])
    return fa.Task(model=module, loss=steep_loss, train=(x, y), test=(x, y))


def plan(epochs: int, precision: Any = "float16", **options: Any) -> fa.LocalPlan:
    return fa.LocalPlan(lr=0.01, epochs=epochs, batch_size="full", precision=precision, **options)


def one_client(task: fa.Task, method: fa.Algorithm, local: fa.LocalPlan, rounds: int = 1, **options: Any) -> fa.Run:
    return fa.run(task, method, partition=fa.IID(clients=1), cohort=1, rounds=rounds, client_test=0.0, local=local, **options)


@pytest.mark.parametrize("method", [fa.Scaffold(), fa.FedNova(), fa.FedCM(alpha=0.5)], ids=lambda each: type(each).__name__)
def test_only_steps_that_counted_are_work(method: fa.Algorithm) -> None:
    """The gradient is 18.75: scaled by 2^16 it is no float16 number (at most 65504) before the scale has halved five times."""
    momentum = fa.Sgd(momentum=0.5)
    half = one_client(task(Steep()), method, plan(10, optimizer=momentum))
    full = one_client(task(Steep()), method, plan(10 - 5, "float32", optimizer=momentum))
    assert half.record.rounds[0]["accepted"] == [0]
    for ours, theirs in zip(half.final.server, full.final.server, strict=True):
        assert float(ours) == pytest.approx(float(theirs), rel=1e-3)


def test_a_client_none_of_whose_steps_counts_is_refused() -> None:
    """Its loss is NaN: in float32 the guard sees it in the upload, in float16 every step is taken back and nothing would have moved."""
    x, y = torch.ones(4, 1), -torch.ones(4)
    data = fa.Task(model=Steep(), loss=lambda outputs, y: outputs.mean() * y.min().sqrt(), train=(x, y), test=(x, y))
    for precision in ("float32", "float16"):
        run = one_client(data, fa.FedAvg(), plan(3, precision))
        assert [each["reason"] for each in run.record.rounds[0]["refused"]] == ["non_finite"], precision


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedBN()], ids=["shared", "own"])
def test_an_overflow_is_taken_back_from_batch_norm_too(method: fa.Algorithm) -> None:
    """Two steps; the examples of the second overflow float16 in the forward pass: what batch norm holds is what the first step made it."""
    module = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    nn.init.constant_(module[0].weight, 1.0)
    x = torch.tensor([[1.0], [3.0], [1e6], [1e6]])
    data = fa.Task(model=module, loss=steep_loss, train=(x, torch.zeros(4)), test=(x, torch.zeros(4)))
    run = RunOptions(seed=first_two_first(), cohort=Uniform(1), client_test=0.0)
    local = fa.LocalPlan(lr=0.01, epochs=1, batch_size=2, precision="float16")
    prepared = prepare(Experiment(fa.IID(clients=1), method, local, run=run), data)
    result = prepared.federation.round(prepared.start)
    assert result.report.accepted == (0,)
    state: Any = prepared.federation.runtime
    held = result.state.buffers if isinstance(method, fa.FedAvg) else state.client_state(0).buffers
    assert float(held["1.running_mean"]) == pytest.approx(0.1 * 2.0, rel=1e-3) and int(held["1.num_batches_tracked"]) == 1
    if isinstance(method, fa.FedBN):  # the loss is the mean of g x_hat + b: its gradient is 0 in g and 1 in b
        assert (float(held["1.weight"]), float(held["1.bias"])) == pytest.approx((1.0, -0.01), abs=1e-4)


def first_two_first() -> int:
    """A seed of which the first mini-batch is of examples 0 and 1."""
    plan = fa.LocalPlan(epochs=1, batch_size=2)
    return next(seed for seed in range(99) if set(plan.batches(np.arange(4), stream(seed, "batches", 1, 0))[0].tolist()) == {0, 1})


def test_dynamic_sams_reference_is_the_first_gradient_that_counted() -> None:
    """All gradients point the same way, so the last one agrees with the reference, whichever step that came from."""
    run = one_client(task(Steep()), fa.DynamicSAM(warmup_rounds=0), plan(10))
    assert float(run.clients["signals_gamma"].iloc[0]) == pytest.approx(1.0, abs=1e-3)


def test_what_a_method_looks_at_beforehand_does_not_overflow() -> None:
    """Two reference batches and a probe, both of gradients that overflow at the first scale: the signals are numbers."""
    x = torch.ones(40, 1)
    data = fa.Task(model=Steep(), loss=steep_loss, train=(x, torch.zeros(40)), test=(x, torch.zeros(40)))
    method = fa.DynamicSAM(reference_batches=2, calibration_rounds=2)
    local = fa.LocalPlan(lr=0.001, epochs=3, batch_size=5, precision="float16")
    run = one_client(data, method, local, rounds=4, client_validation=0.25)
    signals = run.clients.filter(like="signals_")
    assert signals.notna().all(axis=None) and (run.clients["signals_sigma_probe"] > 0).all() and run.clients["accepted"].all()
