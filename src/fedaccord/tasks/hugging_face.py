"""A Hugging Face `datasets` object to splits. The library itself is not imported: the object that you loaded knows how to read itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks.examples import Examples, picture_array
from fedaccord.tasks.memory import refuse_if_too_large
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tasks.splits import Splits, carve


def from_hugging_face(
    dataset: Any,
    input: str | tuple[str, ...],
    label: str,
    client_id: str | None = None,
    site: str | None = None,
    test: float = 0.2,
    validation: float = 0.0,
) -> Splits:
    """Splits of a `Dataset`, or of a `DatasetDict` with "train" and, where it has them, "validation" and "test".

    input: a column of pictures (PIL; they become [channels, height, width]) or arrays, or several columns of numbers, side by side.
    label: a column of classes (`ClassLabel`: its names are kept; text: numbered in sorted order) or numbers.
    client_id, site: columns with the natural client and site of each row.
    test, validation: shares to carve off where the object does not have the split.
    Raises E304 (no such column or split), E305, E302, E307, E202 (a streamed data set), E306.
    """
    parts = dict(dataset) if isinstance(dataset, dict) else {"train": dataset}
    if "train" not in parts:
        raise DataError(
            "E304", "no split 'train'", "Hugging Face data set", f"It has {', '.join(parts)}: rename one, or pass that split alone"
        )
    parts = {split: rows for split, rows in parts.items() if split in ("train", "validation", "test")}
    for split, rows in parts.items():
        _check(rows, [*_inputs(input), label, *(c for c in (client_id, site) if c)], split)
    class_names = _class_names(parts, label)
    read = {split: _examples(rows, split, input, label, class_names, client_id, site) for split, rows in parts.items()}
    train = read["train"]
    if "test" not in read:
        train, read["test"] = carve(train, test, "test")
    if "validation" not in read and validation:
        train, read["validation"] = carve(train, validation, "validation")
    return {"train": train, "test": read["test"], "validation": read.get("validation"), "class_names": class_names}


def _inputs(input: str | tuple[str, ...]) -> list[str]:
    return [input] if isinstance(input, str) else list(input)


def _check(rows: Any, columns: list[str], split: str) -> None:
    if not hasattr(rows, "column_names") or not hasattr(rows, "__len__"):
        raise ConfigError(
            "E202",
            f"the {split} set is a {type(rows).__name__}",
            f"split '{split}'",
            "Load it without streaming: every client draws rows by position",
        )
    for name in columns:
        if name not in rows.column_names:
            raise DataError("E304", f"no column '{name}'", f"split '{split}'", did_you_mean(name, rows.column_names))
    if len(rows) == 0:
        raise DataError("E305", f"the {split} set has 0 rows", f"split '{split}'", "Give at least one example")


def _class_names(parts: dict[str, Any], label: str) -> tuple[str, ...] | None:
    """Names of `ClassLabel`, or the sorted distinct texts of all splits; None where labels are numbers."""
    names = getattr(parts["train"].features[label], "names", None)
    if names is not None:
        return tuple(names)
    if not isinstance(parts["train"][0][label], str):
        return None
    return tuple(sorted({str(value) for rows in parts.values() for value in rows[label]}))


def _examples(
    rows: Any,
    split: str,
    input: str | tuple[str, ...],
    label: str,
    class_names: tuple[str, ...] | None,
    client_id: str | None,
    site: str | None,
) -> Examples:
    rows = rows.with_format(None)
    labels = rows[label][:]
    if class_names is not None and isinstance(labels[0], str):
        number_of = {name: number for number, name in enumerate(class_names)}
        labels = [number_of[value] for value in labels]
    ids, sites = (None if name is None else np.asarray(rows[name][:]) for name in (client_id, site))
    if isinstance(input, str):
        x = _column(rows.select_columns([input]), input, split)
    else:
        x = torch.stack([torch.as_tensor(np.asarray(rows[name][:], dtype=np.float32)) for name in input], dim=1)
    return Examples.of(x, np.asarray(labels), ids, sites, split)


def _column(rows: Any, name: str, split: str) -> torch.Tensor:
    """[n, ...] the column decoded row by row, after the first row has told how much memory all need."""
    dtype = _declared_dtype(rows.features[name])

    def item(row: int) -> np.ndarray:
        return np.asarray(picture_array(rows[row][name]), dtype=dtype)

    first = item(0)
    if first.dtype.kind not in "biuf":
        raise ConfigError(
            "E202", f"column '{name}' holds {type(rows[0][name]).__name__}", f"split '{split}', row 0", "Turn it into numbers first"
        )
    refuse_if_too_large(len(rows) * first.nbytes, split)
    values = np.empty((len(rows), *first.shape), dtype=first.dtype)
    for row in range(len(rows)):
        value = item(row)
        if value.shape != first.shape:
            raise DataError(
                "E302",
                f"row {row} of '{name}' has shape {list(value.shape)}, row 0 has {list(first.shape)}",
                f"split '{split}', row {row}",
                "Resize or pad the items to one shape",
            )
        values[row] = value
    return torch.from_numpy(values)


def _declared_dtype(feature: Any) -> np.dtype | None:
    """The dtype of the numbers in a column, which its Python lists no longer show; None for pictures and text."""
    while getattr(feature, "feature", None) is not None:
        feature = feature.feature
    try:
        dtype = np.dtype(getattr(feature, "dtype", None) or "O")
    except TypeError:
        return None
    return dtype if dtype.kind in "biuf" else None
