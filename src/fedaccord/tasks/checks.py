"""From raw tensors to what a model takes, and the checks on the way: finite inputs, labels that are classes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord.core.errors import DataError
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.losses import overlap_and_cross_entropy, squared_error
from fedaccord.tasks.memory import refuse_if_too_large

CLASS_LOSSES: tuple[Any, ...] = (F.cross_entropy, F.nll_loss, F.multi_margin_loss)
NUMBER_LOSSES: tuple[Any, ...] = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    squared_error,
    overlap_and_cross_entropy,
)
_CLASS_MODULES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_NUMBER_MODULES = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)


def converted_inputs(x: Tensor, floating: torch.dtype, split: str) -> Tensor:
    """Inputs in the dtype that the model takes (the rule stands in `Task`), all finite. E303 names the first bad row."""
    if x.dtype in (torch.int32, torch.int64):
        return x.long()
    if x.dtype != floating:
        refuse_if_too_large(x.numel() * floating.itemsize, split)
    converted = x.to(floating) / 255 if x.dtype == torch.uint8 else x.to(floating)
    refuse_non_finite(converted, "inputs", split)
    return converted


def refuse_non_finite(values: Tensor, what: str, split: str) -> None:
    """E303 where `values` [n, ...] hold NaN or Inf, with their number and the first row."""
    if bool(torch.isfinite(values.sum())):  # one pass without a copy; an overflowing sum only costs the slow pass
        return
    rows_at_once = max(1, 2**22 // max(1, values[0].numel()))
    bad = [torch.nonzero(~torch.isfinite(part.reshape(len(part), -1))) for part in values.split(rows_at_once)]
    num_bad = sum(len(places) for places in bad)
    if num_bad == 0:
        return
    block = next(i for i, places in enumerate(bad) if len(places))
    row = block * rows_at_once + int(bad[block][0, 0])
    raise DataError(
        "E303",
        f"{num_bad} NaN or Inf in the {split} {what}, the first in row {row}",
        f"split '{split}', row {row}",
        "Drop or fill these rows",
    )


def wants_classes(y: Tensor, loss: Any, num_classes: int | None) -> bool:
    """Whether labels are classes: said by num_classes, else by a known loss, else by their dtype."""
    if num_classes is not None:
        return True
    if any(loss is known for known in NUMBER_LOSSES) or isinstance(loss, _NUMBER_MODULES):
        return False
    if _compares_classes(loss):
        return not (y.is_floating_point() and y.ndim > 1)  # [n, C] of floats are probabilities
    return not y.is_floating_point()


def _compares_classes(loss: Any) -> bool:
    return any(loss is known for known in CLASS_LOSSES) or isinstance(loss, _CLASS_MODULES)


def class_labels(splits: dict[str, Examples], num_classes: int | None, loss: Any) -> tuple[dict[str, Examples], int]:
    """Every split with int64 labels in 0..num_classes-1, and num_classes (inferred where None). E306 names split, row and value."""
    found = {split: _whole(rows.y, split, loss) for split, rows in splits.items()}
    known = max(int(y.max()) for y in found.values()) + 1 if num_classes is None else num_classes
    for split, y in found.items():
        _refuse_first(y < 0, y, f"below 0 (classes are numbered 0 to {max(known - 1, 0)})", split, "Number the classes from 0")
        _refuse_first(
            y >= known, y, f"above {known - 1}, the last of {known} classes", split, "Number the classes from 0, or raise num_classes"
        )
    return {split: dataclasses.replace(rows, y=found[split]) for split, rows in splits.items()}, known


def number_labels(splits: dict[str, Examples], floating: torch.dtype) -> dict[str, Examples]:
    """Every split with finite floating labels in the model's dtype."""
    converted = {split: dataclasses.replace(rows, y=rows.y.to(floating)) for split, rows in splits.items()}
    for split, rows in converted.items():
        refuse_non_finite(rows.y, "labels", split)
    return converted


def _whole(y: Tensor, split: str, loss: Any) -> Tensor:
    if y.ndim == 2 and y.shape[1] == 1 and _compares_classes(loss):
        raise DataError(
            "E306",
            f"the {split} labels have shape {list(y.shape)}",
            f"split '{split}', row 0",
            f"Give one label a row, shape [{len(y)}]: y.reshape(-1)",
        )
    if y.is_floating_point():
        refuse_non_finite(y, "labels", split)
        _refuse_first(
            y != y.round(), y, "not a whole number", split, "Give classes as integers; for numbers choose a loss such as F.mse_loss"
        )
    return y.long()


def _refuse_first(wrong: Tensor, y: Tensor, why: str, split: str, remedy: str) -> None:
    if not bool(wrong.any()):
        return
    place = torch.nonzero(wrong)[0]
    row = int(place[0])
    raise DataError(
        "E306",
        f"{int(wrong.sum())} {split} labels are {why}, the first is {y[tuple(place)].item():g} in row {row}",
        f"split '{split}', row {row}",
        remedy,
    )
