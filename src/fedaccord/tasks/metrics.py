"""Metrics: (outputs, y) -> float, or None where the metric is not defined on these examples. Never NaN.

Rules for all: no example gives None; outputs that hold NaN give None. Class logits are [B, C] (or [B, C, H, W]) with y [B] (or [B, H, W]);
logits of a yes-or-no question have y's own number of elements, and yes means above 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedaccord.core.errors import DataError

Metric = Callable[[Tensor, Tensor], float | None]


def accuracy(outputs: Tensor, y: Tensor) -> float | None:
    """Share of rows (or pixels) whose largest logit is the label."""
    if _undefined(outputs, y):
        return None
    predicted, labels = _predicted(outputs, y)
    return float((predicted == labels).double().mean())


def balanced_accuracy(outputs: Tensor, y: Tensor) -> float | None:
    """Mean over the classes present in y of the share recognised (recall). A missing class is left out of the mean."""
    if _undefined(outputs, y):
        return None
    predicted, labels = _predicted(outputs, y)
    present, index = labels.unique(return_inverse=True)
    right = torch.zeros(len(present), dtype=torch.float64).index_add_(0, index, (predicted == labels).double())
    return float((right / torch.bincount(index)).mean())


def macro_f1(outputs: Tensor, y: Tensor) -> float | None:
    """Mean over classes of F1 = 2 TP / (2 TP + FP + FN), through scikit-learn; classes neither in y nor predicted are left out."""
    if _undefined(outputs, y):
        return None
    from sklearn.metrics import f1_score

    predicted, labels = _predicted(outputs, y)
    return float(f1_score(labels.numpy(), predicted.numpy(), average="macro"))


def auc(outputs: Tensor, y: Tensor) -> float | None:
    """Area under the ROC curve: of two classes, or the mean of one-vs-rest over more. None where a class of the model has no example in y.

    Ranks by the logits' difference (two classes) or the softmax (more), through scikit-learn.
    """
    if _undefined(outputs, y) or not bool(outputs.isfinite().all()):
        return None  # infinite logits have no ranks among themselves
    from sklearn.metrics import roc_auc_score

    outputs, labels = outputs.detach().double(), y.reshape(-1).long().numpy()
    if outputs.numel() == y.numel():
        outputs = torch.stack([torch.zeros(y.numel(), dtype=torch.float64), outputs.reshape(-1)], dim=1)
    num_classes = outputs.shape[1]
    if set(labels.tolist()) != set(range(num_classes)):
        return None
    if num_classes == 2:
        return _finite(roc_auc_score(labels, (outputs[:, 1] - outputs[:, 0]).numpy()))
    return _finite(roc_auc_score(labels, outputs.softmax(1).numpy(), multi_class="ovr", labels=list(range(num_classes))))


def dice(outputs: Tensor, y: Tensor) -> float | None:
    """Binary segmentation: 2 |prediction and mask| / (|prediction| + |mask|), mean over images.

    An image where both are empty says nothing and is left out; None where all are.
    """
    if _undefined(outputs, y):
        return None
    predicted, mask = _predicted(outputs, y)
    predicted, mask = predicted.reshape(len(y), -1).double(), mask.reshape(len(y), -1).double()
    size = predicted.sum(1) + mask.sum(1)
    if not bool((size > 0).any()):
        return None
    return float((2 * (predicted * mask).sum(1)[size > 0] / size[size > 0]).mean())


def mean_absolute_error(outputs: Tensor, y: Tensor) -> float | None:
    """In the units of y."""
    return None if _undefined(outputs, y) else _finite(_residual(outputs, y).abs().mean())


def root_mean_squared_error(outputs: Tensor, y: Tensor) -> float | None:
    """In the units of y."""
    return None if _undefined(outputs, y) else _finite(_residual(outputs, y).square().mean().sqrt())


def r2(outputs: Tensor, y: Tensor) -> float | None:
    """1 - residual / variance, mean over the columns of y. None for fewer than two rows or a constant column."""
    if _undefined(outputs, y) or len(y) < 2:
        return None
    targets = y.double().reshape(len(y), -1)
    spread = (targets - targets.mean(0)).square().sum(0)
    if bool((spread == 0).any()):
        return None
    return _finite((1 - _residual(outputs, y).reshape(len(y), -1).square().sum(0) / spread).mean())


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "macro_f1": macro_f1,
    "auc": auc,
    "dice": dice,
    "mean_absolute_error": mean_absolute_error,
    "root_mean_squared_error": root_mean_squared_error,
    "r2": r2,
}


def _undefined(outputs: Tensor, y: Tensor) -> bool:
    return y.numel() == 0 or bool(outputs.isnan().any())


def _finite(value: Tensor | float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _predicted(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(predicted classes, labels), both flat [elements of y] int64."""
    if outputs.numel() == y.numel():
        return (outputs.reshape(-1) > 0).long(), y.reshape(-1).long()
    predicted = outputs.argmax(dim=1)
    _same_size(predicted, y)
    return predicted.reshape(-1), y.reshape(-1).long()


def _residual(outputs: Tensor, y: Tensor) -> Tensor:
    _same_size(outputs, y)
    return outputs.detach().double().reshape(y.shape) - y.double()  # reshaped, or [B, 1] - [B] would broadcast to [B, B]


def _same_size(predicted: Tensor, y: Tensor) -> None:
    if predicted.numel() != y.numel():
        raise DataError(
            "E306",
            f"the model predicts {list(predicted.shape)}, the labels are {list(y.shape)}",
            "metric",
            "Let the model give one prediction a label",
        )
