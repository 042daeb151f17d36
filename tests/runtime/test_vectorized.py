from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.checks.trial import (
    PLAN,
    FailsOnThree,
    Trace,
    double_mlp,
    examples,
    make_task,
    mlp,
    poisoned,
    prepare_trial,
    shards,
    traced,
    with_batch_norm_and_dropout,
)
from fedaccord.core.errors import ConfigError
from fedaccord.partition import Explicit
from fedaccord.runtime import block as block_file
from fedaccord.runtime.client import Clients
from fedaccord.runtime.options import RuntimeOptions
from fedaccord.runtime.padding import per_example_loss
from fedaccord.runtime.vectorized import Vectorized

VECTORIZED = RuntimeOptions("vectorized")


def trace_of(name: str, algorithm: fa.Algorithm | None = None, *, change: Any = None, loss: Any = F.cross_entropy, **options: Any) -> Trace:
    task = make_task(options.pop("model", double_mlp), x=examples()[0].double(), loss=loss)
    runtime = options.pop("runtime", RuntimeOptions(name))  # type: ignore[arg-type]
    prepared = prepare_trial(algorithm or fa.FedAvg(), task, runtime=runtime, **options)
    return traced(prepared, **({"change": change} if change else {}))


def assert_close(one: Trace, other: Trace) -> None:
    assert float((one.w - other.w).norm()) <= 1e-9 * float((one.w - one.server(0).w).norm())


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    assert_close(trace_of("sequential"), trace_of("vectorized", runtime=RuntimeOptions("vectorized", block=size)))


def test_blocks_follow_the_memory_that_the_weights_take(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    begun = block_file.Block.trained

    def watched(self: Any, assigned: Any) -> Any:
        seen.append(len(assigned))
        return begun(self, assigned)

    monkeypatch.setattr(block_file.Block, "trained", watched)
    monkeypatch.setattr("fedaccord.runtime.side_by_side.BLOCK_BYTES", 2 * 8 * 83 * 8)  # two clients of 83 weights, eight copies, float64
    trace_of("vectorized", cohorts=[range(7)], rounds=1)
    assert seen[-4:] == [2, 2, 2, 1]


def test_a_refused_client_keeps_its_old_state_and_moves_nothing() -> None:
    alone, together = (trace_of(name, fa.Scaffold(), change=poisoned(2, 2)) for name in ("sequential", "vectorized"))
    assert_close(alone, together)
    assert together.settled == alone.settled
    assert torch.equal(together.kept(2, 2).control, together.kept(1, 2).control)


def test_what_a_client_keeps_does_not_hold_its_block_in_memory() -> None:
    trace = trace_of("vectorized", fa.Scaffold())
    control = trace.kept(4, 2).control
    assert control.untyped_storage().nbytes() == control.nbytes


def test_clients_without_data_answer_so() -> None:
    rows = [list(range(10)), [], list(range(10, 13))]
    trace = trace_of("vectorized", partition=Explicit(rows), cohorts=[range(3)], rounds=1)
    assert [(each.client, each.code) for each in trace.results[0].clients] == [(0, None), (1, "E108"), (2, None)]


def mean_and_half(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y) * 1.5


def of_the_sum(outputs: Tensor, y: Tensor) -> Tensor:
    """No mean over examples."""
    return torch.logsumexp(F.cross_entropy(outputs, y, reduction="none"), 0)


def weighted(outputs: Tensor, y: Tensor) -> Tensor:
    """A mean, but one in which examples count differently."""
    return F.cross_entropy(outputs, y, weight=torch.tensor([1.0, 5.0, 0.5], dtype=outputs.dtype))


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), mean_and_half, of_the_sum, weighted])
def test_any_loss_trains_the_same(loss: Callable[[Tensor, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trace_of("sequential", loss=loss)
    monkeypatch.setattr(Clients, "train", None)
    assert_close(alone, trace_of("vectorized", loss=loss))


@pytest.mark.parametrize(
    ("loss", "is_mean"),
    [(F.cross_entropy, True), (nn.CrossEntropyLoss(), True), (mean_and_half, True), (of_the_sum, False), (weighted, False)],
)
def test_only_plain_means_are_padded(loss: Callable[[Tensor, Tensor], Tensor], is_mean: bool) -> None:
    clients = prepare_trial(fa.FedAvg(), make_task(mlp, loss=loss)).federation.runtime._clients  # type: ignore[attr-defined]
    x, y = examples()
    found = per_example_loss(clients.model, loss, x, y)
    assert (found is not None) == is_mean
    if found is not None:
        outputs = torch.randn(9, 3)
        assert found(outputs, y[30:39]).shape == (9,)
        assert float(found(outputs, y[30:39]).mean()) == pytest.approx(float(loss(outputs, y[30:39])), rel=1e-5)


class LooksAtTheBatch(nn.Module):
    """Each output depends on the other examples."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x - x.mean(0, keepdim=True))


def test_a_model_that_looks_at_the_whole_batch_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = prepare_trial(fa.FedAvg(), make_task(LooksAtTheBatch)).federation.runtime._clients  # type: ignore[attr-defined]
    assert per_example_loss(clients.model, F.cross_entropy, *examples()) is None

    def double() -> nn.Module:
        return LooksAtTheBatch().double()

    alone = trace_of("sequential", model=double)
    monkeypatch.setattr(Clients, "train", None)
    assert_close(alone, trace_of("vectorized", model=double))


@pytest.mark.parametrize(
    ("model", "plan", "says"),
    [
        (with_batch_norm_and_dropout, PLAN, "buffers that move"),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)), PLAN, "'1' draws random numbers"),
        (mlp, replace(PLAN, precision="bfloat16"), "bfloat16"),
        (mlp, replace(PLAN, micro_batch=2), "micro_batch"),
    ],
)
def test_what_does_not_vectorise_is_named(model: Any, plan: fa.LocalPlan, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        prepare_trial(fa.FedAvg(), make_task(model), runtime=VECTORIZED, local=plan)
    assert caught.value.code == "E208"
    assert "pool" in caught.value.remedy


class LooksAtValues(fa.FedAvg):
    def direction(self, grad: Any, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return (g if float(g.norm()) > 0 else w), local


def test_a_method_that_looks_at_values_is_named() -> None:
    with pytest.raises(ConfigError, match="cannot be vectorised"):
        prepare_trial(LooksAtValues(), runtime=VECTORIZED)


def test_debug_is_not_for_many_at_once() -> None:
    with pytest.raises(ConfigError, match="debug"):
        prepare_trial(fa.FedAvg(), runtime=RuntimeOptions("vectorized", debug=True))


def test_where_one_fails_the_others_still_train() -> None:
    sizes = [8, 3, 8, 4, 4, 4, 4]
    prepared = prepare_trial(fa.FedAvg(), make_task(FailsOnThree), partition=shards(sizes), cohorts=[[0, 2, 3]] + 3 * [[0, 1, 2]])
    runtime: Any = prepared.federation.runtime
    federation = replace(prepared.federation, runtime=Vectorized(runtime._clients, runtime._metrics, runtime._states))
    trace = traced(prepared._replace(federation=federation))
    assert [(each.client, each.code) for each in trace.results[1].clients] == [(0, None), (1, "E107"), (2, None)]


def test_pictures_and_group_norm_vectorise() -> None:
    from fedaccord.tasks.models import resnet18

    x = torch.randn(40, 1, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(40) % 3

    def model() -> nn.Module:
        return resnet18((1, 16, 16), 3, width=4).double()

    task = fa.Task(model=model, loss=F.cross_entropy, train=(x, y), test=(x, y), num_classes=3)
    traces = [
        traced(prepare_trial(fa.FedSAM(), task, partition=shards([12, 9, 5]), cohorts=[range(3)], rounds=1, runtime=RuntimeOptions(name)))
        for name in ("sequential", "vectorized")
    ]
    assert_close(*traces)
