from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference

from fedaccord.core.errors import DataError
from fedaccord.tasks.losses import overlap_and_cross_entropy, squared_error
from fedaccord.tasks.metrics import (
    METRICS,
    accuracy,
    auc,
    balanced_accuracy,
    dice,
    macro_f1,
    mean_absolute_error,
    r2,
    root_mean_squared_error,
)


def logits(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    return torch.randn(n, classes, generator=generator) + F.one_hot(y, classes), y


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_class_metrics_agree_with_scikit_learn(classes: int) -> None:
    outputs, y = logits(101, classes)
    predicted = outputs.argmax(1).numpy()
    assert accuracy(outputs, y) == pytest.approx(reference.accuracy_score(y, predicted))
    assert balanced_accuracy(outputs, y) == pytest.approx(reference.balanced_accuracy_score(y, predicted))
    assert macro_f1(outputs, y) == pytest.approx(reference.f1_score(y, predicted, average="macro"))
    probabilities = outputs.double().softmax(1).numpy()
    expected = reference.roc_auc_score(y, probabilities[:, 1] if classes == 2 else probabilities, multi_class="ovr")
    assert auc(outputs, y) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_one_logit_a_row_answers_a_yes_or_no_question(shape: tuple[int, ...]) -> None:
    two, y = logits(50, 2)
    one = (two[:, 1] - two[:, 0]).reshape(shape)
    for labels in (y, y.float()):
        assert accuracy(one, labels) == accuracy(two, y)
        assert balanced_accuracy(one, labels) == balanced_accuracy(two, y)
        assert auc(one, labels) == auc(two, y)


def test_auc_of_one_class_is_none_without_a_warning() -> None:
    outputs, _ = logits(10, 2)
    assert auc(outputs, torch.zeros(10, dtype=torch.int64)) is None
    outputs, y = logits(10, 5)
    assert auc(outputs, y.clamp(max=3)) is None


def test_balanced_accuracy_leaves_missing_classes_out_of_the_mean() -> None:
    outputs = F.one_hot(torch.tensor([0, 0, 0, 4]), 5).float()
    assert balanced_accuracy(outputs, torch.tensor([0, 0, 2, 4])) == pytest.approx(2 / 3)


def test_macro_f1_by_hand_where_a_class_is_never_predicted() -> None:
    outputs = F.one_hot(torch.tensor([0, 0, 0, 1]), 3).float()
    assert macro_f1(outputs, torch.tensor([0, 0, 1, 1])) == pytest.approx((0.8 + 2 / 3) / 2)  # class 2 is nowhere: left out
    assert macro_f1(outputs, torch.tensor([0, 0, 2, 1])) == pytest.approx((0.8 + 1.0 + 0.0) / 3)  # in y, never predicted: 0


def test_accuracy_counts_pixels_of_dense_labels() -> None:
    outputs, y = torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
    outputs[:, 0] = 1
    y[0, :2] = 2
    assert accuracy(outputs, y) == pytest.approx(1 - 8 / 32)


def test_dice_is_the_mean_over_images_that_say_something() -> None:
    mask, outputs = torch.zeros(3, 1, 4, 4), -torch.ones(3, 1, 4, 4)
    mask[0, 0, 0] = 1  # 4 pixels
    outputs[0, 0, :2] = 1  # 8 predicted, 4 of them right: 2 * 4 / 12
    mask[1, 0, 0, 0] = 1  # missed: 0; the third image is empty in both and is left out
    assert dice(outputs, mask) == pytest.approx((8 / 12 + 0) / 2)
    assert dice(outputs[2:], mask[2:]) is None
    two = torch.cat([torch.zeros_like(outputs), outputs], dim=1)
    assert dice(two, mask[:, 0].long()) == pytest.approx(dice(outputs, mask))


def test_number_metrics_agree_with_scikit_learn_and_never_broadcast() -> None:
    rng = np.random.default_rng(0)
    y, outputs = rng.normal(size=40), rng.normal(size=40)
    for shape in ((40,), (40, 1)):
        given = (torch.tensor(outputs).reshape(shape), torch.tensor(y))
        assert mean_absolute_error(*given) == pytest.approx(reference.mean_absolute_error(y, outputs))
        assert root_mean_squared_error(*given) == pytest.approx(reference.root_mean_squared_error(y, outputs))
        assert r2(*given) == pytest.approx(reference.r2_score(y, outputs))
    several = (torch.tensor(outputs).reshape(20, 2), torch.tensor(y).reshape(20, 2))
    assert r2(*several) == pytest.approx(reference.r2_score(several[1], several[0]))


def test_r2_of_a_constant_or_a_single_row_is_none() -> None:
    assert r2(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])) is None
    assert r2(torch.tensor([1.0]), torch.tensor([3.0])) is None


@pytest.mark.parametrize("name", sorted(METRICS))
@pytest.mark.parametrize("case", ["empty", "nan", "inf", "one"])
def test_no_metric_ever_gives_nan(name: str, case: str) -> None:
    n = {"empty": 0, "one": 1}.get(case, 4)
    shape = (n,) if name in ("mean_absolute_error", "root_mean_squared_error", "r2") else (n, 1, 2, 2) if name == "dice" else (n, 2)
    outputs = torch.full(shape, {"nan": math.nan, "inf": math.inf}.get(case, 0.5))
    y = torch.arange(n).float() if len(shape) == 1 else torch.ones(shape) if name == "dice" else torch.arange(n) % 2
    value = METRICS[name](outputs, y)
    assert value is None or math.isfinite(value)
    if case in ("empty", "nan"):
        assert value is None


def test_predictions_that_do_not_match_the_labels_are_refused_with_both_shapes() -> None:
    with pytest.raises(DataError, match=r"E306 the model predicts \[3, 2\], the labels are \[3\]"):
        mean_absolute_error(torch.zeros(3, 2), torch.zeros(3))


def test_our_squared_error_does_not_broadcast() -> None:
    outputs, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 4.0])
    assert squared_error(outputs, y).item() == pytest.approx(2.0)


def test_the_segmentation_loss_is_finite_with_gradient_on_empty_masks_and_small_on_a_perfect_answer() -> None:
    mask = torch.zeros(2, 1, 4, 4)
    outputs = torch.zeros(2, 1, 4, 4, requires_grad=True)
    loss = overlap_and_cross_entropy(outputs, mask)
    loss.backward()
    assert outputs.grad is not None and bool(torch.isfinite(outputs.grad).all()) and bool((outputs.grad > 0).all())
    mask[:, :, 1] = 1
    assert overlap_and_cross_entropy((2 * mask - 1) * 20, mask).item() < 1e-4
    assert overlap_and_cross_entropy((1 - 2 * mask) * 20, mask).item() > 20
