"""Tasks from the user's own files, by name in an experiment: ``[task] name = "npz"``, "parquet" or "csv", with the file's path."""

from __future__ import annotations

from typing import Any, Literal

import torch.nn.functional as F

from fedaccord.core.errors import DataError
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.loaders import from_csv, from_npz, from_parquet
from fedaccord.tasks.losses import overlap_and_cross_entropy, squared_error
from fedaccord.tasks.models import ModelName, NormName, model_factory
from fedaccord.tasks.scaling import channels_first, normalised
from fedaccord.tasks.splits import Splits
from fedaccord.tasks.tables import Target
from fedaccord.tasks.task import Loss, Task

PICTURE_MODELS = ("lenet", "resnet18", "unet")


def npz(
    path: str,
    x: str = "x_train",
    y: str = "y_train",
    x_test: str = "x_test",
    y_test: str = "y_test",
    ids: str | None = None,
    ids_test: str | None = None,
    site: str | None = None,
    site_test: str | None = None,
    test: float | str | None = None,
    validation: float = 0.1,
    model: ModelName = "mlp",
    hidden: tuple[int, ...] | None = None,
    width: int | None = None,
    norm: NormName | None = None,
    metrics: tuple[str, ...] | None = None,
) -> Task:
    """Arrays of an npz file (keywords as `from_npz`). Integer labels are classes, others numbers; model "unet" wants masks of 0 and 1.

    Pictures may have their channels first, last or, if grey, left out; inputs are shifted and scaled by the training rows' statistics.
    """
    splits = from_npz(path, x, y, x_test, y_test, ids, ids_test, site, site_test, test, validation)
    parts = [splits["train"], splits["test"], *([splits["validation"]] if splits["validation"] is not None else [])]
    if model in PICTURE_MODELS:
        parts = [channels_first(rows) for rows in parts]
    if model == "unet":
        parts = [_masks(rows, path) for rows in parts]
    train, test_rows, *validation_rows = normalised(*parts)
    ready: Splits = {"train": train, "test": test_rows, "validation": validation_rows[0] if validation_rows else None, "class_names": None}
    return _task(ready, "npz", model, metrics, hidden=hidden, width=width, norm=norm)


def parquet(
    path: str,
    label: str,
    features: tuple[str, ...] | None = None,
    client_id: str | None = None,
    site: str | None = None,
    test: float | str = 0.2,
    validation: float = 0.1,
    categorical: tuple[str, ...] = (),
    target: Target = "auto",
    model: Literal["softmax", "mlp"] = "mlp",
    hidden: tuple[int, ...] | None = None,
    metrics: tuple[str, ...] | None = None,
) -> Task:
    """Rows of a Parquet file (keywords as `from_parquet`)."""
    splits = from_parquet(path, label, features, client_id, site, test, validation, categorical, target)
    return _task(splits, "parquet", model, metrics, hidden=hidden)


def csv(
    path: str,
    label: str,
    features: tuple[str, ...] | None = None,
    client_id: str | None = None,
    site: str | None = None,
    test: float | str = 0.2,
    validation: float = 0.1,
    categorical: tuple[str, ...] = (),
    target: Target = "auto",
    model: Literal["softmax", "mlp"] = "mlp",
    hidden: tuple[int, ...] | None = None,
    metrics: tuple[str, ...] | None = None,
) -> Task:
    """Rows of a CSV file, `.gz` or not (keywords as `from_csv`)."""
    splits = from_csv(path, label, features, client_id, site, test, validation, categorical, target)
    return _task(splits, "csv", model, metrics, hidden=hidden)


def _task(splits: Splits, name: str, model: str, metrics: tuple[str, ...] | None, **options: Any) -> Task:
    """The task for these splits: classes with cross-entropy, numbers with the squared error, masks with Dice and cross-entropy."""
    train = splits["train"]
    in_shape = tuple(train.x.shape[1:])
    loss: Loss = F.cross_entropy
    default: tuple[str, ...] = ("accuracy", "balanced_accuracy", "auc")
    num_classes = None
    if model == "unet":
        loss, default, num_outputs = overlap_and_cross_entropy, ("dice",), 1
    elif train.y.is_floating_point():
        loss, default = squared_error, ("mean_absolute_error", "root_mean_squared_error", "r2")
        num_outputs = max(1, train.y[0].numel())
    else:
        num_outputs = num_classes = _num_classes(splits, name)
    make = model_factory(model, in_shape, num_outputs, **options)
    return Task(model=make, loss=loss, metrics=metrics or default, num_classes=num_classes, name=name, **splits)


def _num_classes(splits: Splits, name: str) -> int:
    parts = [rows for rows in (splits["train"], splits["test"], splits["validation"]) if rows is not None]
    num_classes = len(splits["class_names"] or ()) or max(int(rows.y.max()) for rows in parts) + 1
    if num_classes < 2:
        raise DataError("E306", f"the labels hold {num_classes} class", name, "Learning needs at least two")
    return num_classes


def _masks(rows: Examples, path: str) -> Examples:
    """Masks [n, h, w] or [n, 1, h, w] of 0 and 1 as float [n, 1, h, w]."""
    values = rows.y.unique()
    if rows.y.ndim not in (3, 4) or not set(values.tolist()) <= {0, 1}:
        raise DataError(
            "E306", f"the masks have shape {list(rows.y.shape)} and {len(values)} distinct values", path, "Give [n, h, w] of 0 and 1"
        )
    mask = rows.y.float()
    return Examples(rows.x, mask if mask.ndim == 4 else mask.unsqueeze(1), rows.ids, rows.site)
