"""A task: what is learned (model, loss, metrics) and from what (train, validation, test).

Train, validation and test are three things: clients learn from train, choices (early stopping, tuning, policies) use validation,
the test set is only ever reported.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.core.rng import layers_draw_from
from fedaccord.tasks.checks import class_labels, converted_inputs, number_labels, wants_classes
from fedaccord.tasks.examples import Examples, examples_of
from fedaccord.tasks.metrics import METRICS, Metric, accuracy
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tasks.splits import carve

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Task:
    """``Task(model=Net(), loss=F.cross_entropy, train=(x, y), test=(xt, yt))``.

    model: an `nn.Module`, whose present weights are where every seed starts (it is copied: training your object later changes nothing
        here), or a function without arguments that makes one, called once a seed so that the initial weights are drawn from the seed.
    loss: (outputs [B, ...], y [B, ...]) -> scalar, the mean over the batch.
    train, test: a pair (x, y) of arrays or tensors, `Examples` (which can carry client ids and sites), or a map-style Dataset.
    validation: the same, or a share of train to carve off (stratified by label, the same rows for every seed), or None.
    metrics: name -> function (outputs, y) -> float | None, or names from `METRICS`. Default: accuracy for classes, else none.
    num_classes: default: one more than the largest label of all splits; None for numbers and masks.

    Inputs: uint8 becomes float32 in [0, 1]; other integers of up to 16 bits float32; int32 and int64 stay integers (tokens); float64 stays
    float64 only where the model is float64, else float32. Labels: classes become int64, numbers the model's dtype.

    Raises E202, E203, E205 (use) and E302, E303, E305, E306, E307 (data), each with split, row, figure and remedy.
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Loss
    train: Examples
    test: Examples
    validation: Examples | None
    metrics: dict[str, Metric]
    num_classes: int | None
    class_names: tuple[str, ...] | None
    name: str

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        train: Any,
        test: Any,
        validation: Any = None,
        metrics: Mapping[str, Metric] | Sequence[str] | None = None,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "task",
    ) -> None:
        keep = lambda field, value: object.__setattr__(self, field, value)  # noqa: E731  (frozen from here on)
        keep("name", name)
        keep("loss", loss)
        keep("model", _checked_model(model))
        splits = {"train": examples_of(train, "train"), "test": examples_of(test, "test")}
        if isinstance(validation, int | float) and not isinstance(validation, bool):
            if validation:
                splits["train"], splits["validation"] = carve(splits["train"], validation, "validation")
        elif validation is not None:
            splits["validation"] = examples_of(validation, "validation")
        floating = self._floating_dtype(splits)
        splits = {split: _with(rows, x=converted_inputs(rows.x, floating, split)) for split, rows in splits.items()}
        if wants_classes(splits["train"].y, loss, num_classes):
            splits, num_classes = class_labels(splits, num_classes, loss)
        else:
            splits = number_labels(splits, floating)
        _check_shapes(splits)
        keep("train", splits["train"])
        keep("test", splits["test"])
        keep("validation", splits.get("validation"))
        keep("num_classes", num_classes)
        keep("class_names", _checked_names(class_names, num_classes))
        keep("metrics", _named_metrics(metrics, num_classes))

    def build_model(self, seed: int) -> nn.Module:
        """A new module with the initial weights of `seed`. The global random generators are left as they were."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model)
        with layers_draw_from(seed, "init"):
            module = self.model()
        if not isinstance(module, nn.Module):
            raise ConfigError("E202", f"the model factory returned a {type(module).__name__}", f"task '{self.name}'", "Return an nn.Module")
        return module

    def measure(self, outputs: Tensor, y: Tensor) -> dict[str, float | None]:
        """Every metric on these outputs; None where it is not defined or not finite."""
        values = {name: metric(outputs, y) for name, metric in self.metrics.items()}
        return {name: float(v) if v is not None and math.isfinite(v) else None for name, v in values.items()}

    def check(self) -> None:
        """Run the model, the loss and the metrics once on two training rows. E306 where they do not fit each other, with the shapes."""
        rows = self.train.take(np.arange(min(2, len(self.train))))
        module = self.build_model(0).eval()
        outputs: Any = None
        try:
            with torch.no_grad():
                outputs = module(rows.x)
                loss: Any = self.loss(outputs, rows.y)
                if not isinstance(outputs, Tensor):
                    what = f"the model returns a {type(outputs).__name__}"
                    raise DataError("E306", what, f"task '{self.name}'", "Return one tensor, e.g. from a small module around it")
                if not isinstance(loss, Tensor) or loss.numel() != 1:
                    what = f"has shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"is a {type(loss).__name__}"
                    raise DataError("E306", f"the loss {what}", f"task '{self.name}'", "Return the mean over the batch, a tensor []")
                self.measure(outputs, rows.y)
        except DataError:
            raise
        except Exception as error:  # of the user's model, loss or metrics
            given = f"inputs {list(rows.x.shape)} {rows.x.dtype}, labels {list(rows.y.shape)} {rows.y.dtype}"
            made = f", outputs {list(outputs.shape)}" if isinstance(outputs, Tensor) else ""
            what = f"model, loss, metrics and data do not fit: {type(error).__name__}: {error} ({given}{made})"
            raise DataError("E306", what, f"task '{self.name}'", "Change the model's sizes or the data") from error

    @property
    def num_examples(self) -> int:
        """Rows that clients share out."""
        return len(self.train)

    @property
    def in_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def labels(self) -> np.ndarray | None:
        """[n] class of each training row; None where a row has no single class."""
        return self.train.y.numpy() if self.num_classes is not None and self.train.y.ndim == 1 else None

    @property
    def ids(self) -> np.ndarray | None:
        """[n] natural client of each training row."""
        return self.train.ids

    @property
    def site(self) -> np.ndarray | None:
        """[n] site of each training row."""
        return self.train.site

    def data_hash(self) -> str:
        """SHA-256 over inputs, labels, ids and sites of all splits. Computed once."""
        return self._data_hash

    @cached_property
    def _data_hash(self) -> str:
        digest = hashlib.sha256()
        for split in ("train", "validation", "test"):
            rows = getattr(self, split)
            if rows is None:
                continue
            for part in (rows.x, rows.y):
                digest.update(f"{split} {part.dtype} {tuple(part.shape)}".encode())
                digest.update(memoryview(part.contiguous().reshape(-1).view(torch.uint8).numpy()))
            for part in (rows.ids, rows.site):
                digest.update(b"none" if part is None else "\x1f".join(map(str, part.tolist())).encode())
        return digest.hexdigest()

    def _floating_dtype(self, splits: dict[str, Examples]) -> torch.dtype:
        """The dtype of the model's weights; float32 without building a factory's model where no split could be float64."""
        no_double = all(torch.float64 not in (rows.x.dtype, rows.y.dtype) for rows in splits.values())
        if no_double and not isinstance(self.model, nn.Module):
            return torch.float32
        module = self.model if isinstance(self.model, nn.Module) else self.build_model(0)
        return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)

    def __repr__(self) -> str:
        sizes = f"{len(self.train)} train, {0 if self.validation is None else len(self.validation)} validation, {len(self.test)} test"
        classes = f", {self.num_classes} classes" if self.num_classes is not None else ""
        return f"Task('{self.name}', {sizes}, inputs {list(self.in_shape)}{classes}, metrics {', '.join(self.metrics) or 'none'})"


def _with(rows: Examples, x: Tensor) -> Examples:
    return dataclasses.replace(rows, x=x)


def _checked_model(model: Any) -> nn.Module | Callable[[], nn.Module]:
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        raise ConfigError(
            "E202", f"model is a {type(model).__name__}", "task", "Give an nn.Module or a function without arguments that makes one"
        )
    try:
        inspect.signature(model).bind()
    except TypeError as error:
        raise ConfigError(
            "E202",
            f"the model factory {getattr(model, '__name__', model)} cannot be called without arguments: {error}",
            "task",
            "Use functools.partial",
        ) from error
    except ValueError:  # a callable without a signature
        pass
    made: Callable[[], nn.Module] = model
    return made


def _named_metrics(metrics: Mapping[str, Metric] | Sequence[str] | None, num_classes: int | None) -> dict[str, Metric]:
    if metrics is None:
        return {} if num_classes is None else {"accuracy": accuracy}
    if isinstance(metrics, Mapping):
        return dict(metrics)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in names:
        if name not in METRICS:
            raise ConfigError("E205", f"unknown metric '{name}'", "task.metrics", did_you_mean(name, METRICS))
    return {name: METRICS[name] for name in names}


def _checked_names(class_names: Sequence[str] | None, num_classes: int | None) -> tuple[str, ...] | None:
    if class_names is None or num_classes is None:
        return None
    if len(class_names) < num_classes:
        raise DataError("E306", f"{len(class_names)} class names for {num_classes} classes", "task.class_names", "Name every class")
    return tuple(map(str, class_names))


def _check_shapes(splits: dict[str, Examples]) -> None:
    """E302 where a split's rows have another shape than the training rows."""
    train = splits["train"]
    for split, rows in splits.items():
        for what, ours, theirs in (("inputs", rows.x, train.x), ("labels", rows.y, train.y)):
            if ours.shape[1:] != theirs.shape[1:]:
                raise DataError(
                    "E302",
                    f"the {split} {what} have shape {list(ours.shape[1:])} a row, the train {what} {list(theirs.shape[1:])}",
                    f"split '{split}', row 0",
                    "Prepare all splits in the same way",
                )
