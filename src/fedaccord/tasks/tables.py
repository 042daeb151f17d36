"""From a table (pandas) to numbers: which columns are inputs, categories, missing values, scale. Everything is learned on training rows.

A number: missing values become the median of the training rows, and a column `<name> missing` (0 or 1) is added where training rows miss
it; then (x - mean) / std. A category (text, or named in `categorical`): one column a value seen in the training rows, `missing` being a
value like another; a value seen only elsewhere is all zeros. Validation and test rows influence none of this.

Honest limit: the statistics are those of all clients' training rows together. A federation that may not pool them has to agree on
them first.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tasks.splits import Splits, carved_rows

MAX_CATEGORIES = 100
MAX_CLASSES = 1000
Target = Literal["auto", "class", "number"]


def from_table(
    table: Any,
    label: str,
    features: tuple[str, ...] | None = None,
    client_id: str | None = None,
    site: str | None = None,
    test: float | str = 0.2,
    validation: float = 0.0,
    categorical: tuple[str, ...] = (),
    target: Target = "auto",
    source: str = "table",
) -> Splits:
    """Splits of a pandas DataFrame, ready for ``Task(model=..., loss=..., **splits)``.

    label: column to predict. `target` "class" numbers its sorted values (their names become `class_names`); "number" keeps it, as [n, 1];
        "auto" means number for floats that are not all whole, else class.
    features: input columns; default all that are not label, client_id, site or test.
    client_id, site: columns with the natural client and the site of each row; not inputs.
    test: share of rows, or a column that says it: true/false, 0/1, or the words train, validation, test.
    validation: share of the training rows to carve off before any statistic is taken.
    Raises E304 (no such column), E305, E303 (Inf, missing label or client), E306 (label), E308 (a column that cannot be an input).
    """
    for name in (label, *(features or ()), *(c for c in (client_id, site) if c), *categorical, *([test] if isinstance(test, str) else [])):
        if name not in table.columns:
            raise DataError("E304", f"no column '{name}'", source, did_you_mean(name, table.columns))
    if len(table) == 0:
        raise DataError("E305", "the table has 0 rows", source, "Give at least one example")
    spent = {label, client_id, site, test}
    inputs = [str(c) for c in table.columns if c not in spent] if features is None else list(features)
    if not inputs or label in inputs:
        raise ConfigError("E203", "the label is among the inputs" if inputs else "no input column is left", source, "Choose features")
    y, class_names = _labels(table[label], target, source)
    ids, site_of_row = (None if name is None else _owners(table[name], source) for name in (client_id, site))
    rows = _split_rows(table, test, validation, y if class_names is not None else None, source)
    columns = [_learned(table[name], rows["train"], name in categorical, source) for name in inputs]
    x = np.concatenate(columns, axis=1)

    def part(name: str) -> Examples:
        at = rows[name]
        return Examples.of(x[at], y[at], None if ids is None else ids[at], None if site_of_row is None else site_of_row[at], name)

    return {
        "train": part("train"),
        "test": part("test"),
        "validation": part("validation") if len(rows["validation"]) else None,
        "class_names": class_names,
    }


def _learned(column: Any, train: np.ndarray, categorical: bool, source: str) -> np.ndarray:
    """[n, width] float32: what one column becomes."""
    import pandas as pd

    if categorical or column.dtype == object or pd.api.types.is_string_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return _categories(column, train, source)
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_complex_dtype(column):
        raise DataError(
            "E308", f"column '{column.name}' has dtype {column.dtype}", source, "Turn it into numbers or text, or leave it out of features"
        )
    return _number(column.to_numpy(dtype=np.float64, na_value=np.nan), train, str(column.name), source)


def _categories(column: Any, train: np.ndarray, source: str) -> np.ndarray:
    values = column.astype(object).where(column.notna(), "missing").astype(str).to_numpy(dtype=object)
    known = sorted(set(values[train]))
    if len(known) > MAX_CATEGORIES:
        raise DataError(
            "E308",
            f"column '{column.name}' has {len(known)} distinct values in the training rows, at most {MAX_CATEGORIES} make categories",
            source,
            "Leave it out of features, or turn it into numbers",
        )
    return np.stack([values == name for name in known], axis=1).astype(np.float32)


def _number(values: np.ndarray, train: np.ndarray, name: str, source: str) -> np.ndarray:
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise DataError("E303", f"{int(np.isinf(values).sum())} Inf in column '{name}'", f"{source}, row {row}", "Drop or fill these rows")
    missing = np.isnan(values)
    if missing[train].all():
        raise DataError("E308", f"column '{name}' is missing in all {len(train)} training rows", source, "Leave it out of features")
    filled = np.where(missing, np.nanmedian(values[train]), values)
    std = filled[train].std()
    parts = [(filled - filled[train].mean()) / (std if std > 0 else 1.0)]
    if missing[train].any():
        parts.append(missing.astype(np.float64))
    return np.stack(parts, axis=1).astype(np.float32)


def _labels(column: Any, target: Target, source: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """(classes int64 [n], their names) or (numbers float32 [n, 1], None)."""
    import pandas as pd

    _refuse_missing(column, source)
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if target == "number" and not numeric:
        raise DataError("E306", f"label '{column.name}' has dtype {column.dtype}, not numbers", source, "Choose target = 'class'")
    values = column.to_numpy(dtype=np.float64 if numeric else object)
    is_number = target == "number" or (target == "auto" and numeric and bool((values != np.round(values)).any()))
    if is_number:
        return values.astype(np.float32)[:, None], None
    distinct = sorted(set(values.tolist()))
    if len(distinct) > MAX_CLASSES:
        raise DataError(
            "E306", f"label '{column.name}' has {len(distinct)} distinct values", source, "For a quantity choose target = 'number'"
        )
    number_of = {value: number for number, value in enumerate(distinct)}
    names = tuple(f"{value:g}" if numeric else str(value) for value in distinct)
    return np.array([number_of[value] for value in values.tolist()], dtype=np.int64), names


def _owners(column: Any, source: str) -> np.ndarray:
    _refuse_missing(column, source)
    values = column.to_numpy()
    return np.asarray(values if values.dtype.kind in "iu" else values.astype(str))


def _refuse_missing(column: Any, source: str) -> None:
    missing = column.isna().to_numpy(dtype=bool)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise DataError(
            "E303", f"{int(missing.sum())} missing values in column '{column.name}'", f"{source}, row {row}", "Drop or fill these rows"
        )


def _split_rows(table: Any, test: float | str, validation: float, labels: np.ndarray | None, source: str) -> dict[str, np.ndarray]:
    everything = np.arange(len(table))
    if isinstance(test, str):
        words = _split_words(table[test], source)
        rows = {name: np.flatnonzero(words == name) for name in ("train", "validation", "test")}
        for name in ("train", "test"):
            if len(rows[name]) == 0:
                raise DataError("E305", f"column '{test}' marks 0 rows as {name}", source, "Mark at least one")
    else:
        at = carved_rows(len(table), labels, test, "test")
        rows = {"train": np.setdiff1d(everything, at), "validation": everything[:0], "test": at}
    if validation:
        if len(rows["validation"]):
            raise ConfigError("E208", f"column '{test}' names validation rows and a share is asked as well", source, "Choose one of them")
        train = rows["train"]
        at = carved_rows(len(train), None if labels is None else labels[train], validation, "validation")
        rows |= {"validation": train[at], "train": np.delete(train, at)}
    return rows


def _split_words(column: Any, source: str) -> np.ndarray:
    _refuse_missing(column, source)
    word_of = {"true": "test", "1": "test", "1.0": "test", "false": "train", "0": "train", "0.0": "train"}
    words = np.array([word_of.get(str(value).lower(), str(value).lower()) for value in column.tolist()], dtype=object)
    for row, word in enumerate(words):
        if word not in ("train", "validation", "test"):
            raise DataError(
                "E306",
                f"column '{column.name}' says '{word}'",
                f"{source}, row {row}",
                "Use true/false, 0/1, or the words train, validation, test",
            )
    return words
