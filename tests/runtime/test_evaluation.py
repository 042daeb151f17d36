"""evaluation.py: never NaN, never a mean over nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.vector import FlatModel
from fedaccord.runtime import evaluation
from fedaccord.runtime.evaluation import BATCH, evaluate, evaluate_parts, measured


def accuracy(outputs: Tensor, y: Tensor) -> float:
    return float((outputs.argmax(1) == y).double().mean())


def undefined(outputs: Tensor, y: Tensor) -> None:
    return None


MODEL = FlatModel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)))


def test_what_is_not_defined_is_left_out_and_named() -> None:
    result = measured(torch.zeros(2, 2), torch.tensor([0, 1]), F.cross_entropy, {"accuracy": accuracy, "auc": undefined})
    assert result.metrics is not None and set(result.metrics) == {"loss", "accuracy"}
    assert result.reason == "not defined on these examples: auc"


def test_a_loss_of_infinity_is_left_out() -> None:
    result = measured(torch.tensor([[1e38, -1e38]]) * 10, torch.tensor([1]), F.cross_entropy, {})
    assert result.metrics is None and result.num_examples == 1 and "loss" in (result.reason or "")


def test_no_examples_give_no_metrics_and_a_reason() -> None:
    result = evaluate(
        MODEL, MODEL.initial_w, MODEL.initial_buffers, torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), F.cross_entropy, {}
    )
    assert result.metrics is None and result.reason == "no examples"


def test_evaluation_mode_moves_no_buffers_and_draws_no_dropout() -> None:
    x, y = torch.randn(BATCH + 7, 3), torch.randint(0, 2, (BATCH + 7,))
    before = {name: b.clone() for name, b in MODEL.initial_buffers.items()}
    one, two = (evaluate(MODEL, MODEL.initial_w, MODEL.initial_buffers, x, y, F.cross_entropy, {"accuracy": accuracy}) for _ in range(2))
    assert one == two and one.num_examples == BATCH + 7
    assert all(torch.equal(b, before[name]) for name, b in MODEL.initial_buffers.items())


def test_many_small_sets_in_one_pass_are_each_on_its_own() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(n, 3, generator=generator), torch.randint(0, 2, (n,), generator=generator)) for n in (4, 1, 600)]
    together = evaluate_parts(
        MODEL, MODEL.initial_w, MODEL.initial_buffers, [parts[0], None, *parts[1:]], F.cross_entropy, {"accuracy": accuracy}
    )
    assert together[1].metrics is None and together[1].reason == "no held-out examples"
    for mine, (x, y) in zip([together[0], *together[2:]], parts, strict=True):
        alone = evaluate(MODEL, MODEL.initial_w, MODEL.initial_buffers, x, y, F.cross_entropy, {"accuracy": accuracy})
        assert mine.metrics is not None and alone.metrics is not None and mine.metrics["accuracy"] == alone.metrics["accuracy"]
        assert abs(mine.metrics["loss"] - alone.metrics["loss"]) < 1e-5


def test_parts_are_copied_a_few_at_a_time_and_measured_as_if_together(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [3, 0, 5, 1, 0, 0, 4, 2]
    parts = [(torch.randn(n, 3, generator=generator), torch.randint(2, (n,), generator=generator)) if n else None for n in sizes]
    seen: list[int] = []
    together = evaluation.outputs_of

    def counted(model: FlatModel, w: Tensor, buffers: Any, x: Tensor) -> Tensor:
        seen.append(len(x))
        return together(model, w, buffers, x)

    monkeypatch.setattr(evaluation, "outputs_of", counted)
    found = []
    for most in (1000, 6, 1):
        monkeypatch.setattr(evaluation, "TOGETHER", most)
        given = iter(parts)  # parts need not lie in memory together
        found.append(evaluate_parts(MODEL, MODEL.initial_w, MODEL.initial_buffers, given, F.cross_entropy, {"accuracy": accuracy}))
    assert seen == [15, 8, 7, 3, 5, 1, 4, 2]
    for each in found[1:]:
        assert [one.num_examples for one in each] == sizes
        for one, whole in zip(each, found[0], strict=True):
            assert (one.metrics is None) == (whole.metrics is None) and one.reason == whole.reason
            assert one.metrics is None or one.metrics == pytest.approx(whole.metrics, rel=1e-6)
