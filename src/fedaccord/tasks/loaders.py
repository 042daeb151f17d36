"""Data files to splits: npz, Parquet, CSV. Every loader returns the keywords of `Task` that are data, so ``Task(..., **from_npz(path))``.

Nothing is ever unpickled: an npz with Python objects is refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks.examples import Examples
from fedaccord.tasks.memory import refuse_if_too_large
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tasks.splits import Splits, carve
from fedaccord.tasks.tables import Target, from_table


def from_npz(
    path: str | Path,
    x: str = "x_train",
    y: str = "y_train",
    x_test: str | None = "x_test",
    y_test: str | None = "y_test",
    ids: str | None = None,
    ids_test: str | None = None,
    site: str | None = None,
    site_test: str | None = None,
    test: float | str | None = None,
    validation: float = 0.0,
) -> Splits:
    """Splits of the arrays named `x`, `y`, ... in an npz file.

    The test rows are `x_test` and `y_test`, or, where `test` is given, a share of the rows of `x` or those that the array of true and
    false called `test` marks. `ids` and `site` name arrays with the natural client and the site of each row.
    Raises E301 (missing, unreadable, Python objects inside), E304 (no such array), E302, E305, E307.
    """
    with _opened(path) as arrays:
        where = str(path)
        read = lambda name: _array(arrays, name, where)  # noqa: E731
        everything = Examples.of(read(x), read(y), ids and read(ids), site and read(site))
        if test is None:
            if x_test is None or y_test is None:
                raise ConfigError("E204", "no test set is named", where, "Give x_test and y_test, or test = a share or an array's name")
            train = everything
            held_out = Examples.of(read(x_test), read(y_test), ids_test and read(ids_test), site_test and read(site_test), "test")
        elif isinstance(test, str):
            marks = read(test)
            if marks.shape != (len(everything),) or not np.isin(marks, (0, 1)).all():
                raise DataError("E302", f"'{test}' is not one true or false a row of '{x}'", where, f"Give {len(everything)} of them")
            train, held_out = (
                everything.take(np.flatnonzero(marks.astype(bool) == side)).checked(n) for side, n in ((False, "train"), (True, "test"))
            )
        else:
            train, held_out = carve(everything, test, "test")
    validation_rows = None
    if validation:
        train, validation_rows = carve(train, validation, "validation")
    return {"train": train, "test": held_out, "validation": validation_rows, "class_names": None}


def from_parquet(
    path: str | Path,
    label: str,
    features: tuple[str, ...] | None = None,
    client_id: str | None = None,
    site: str | None = None,
    test: float | str = 0.2,
    validation: float = 0.0,
    categorical: tuple[str, ...] = (),
    target: Target = "auto",
) -> Splits:
    """Splits of a Parquet file; the rest as `from_table`. Raises E301 (missing or unreadable) and what `from_table` raises."""
    import pandas as pd

    table = _read(path, lambda: pd.read_parquet(path, engine="pyarrow"))
    return from_table(table, label, features, client_id, site, test, validation, categorical, target, str(path))


def from_csv(
    path: str | Path,
    label: str,
    features: tuple[str, ...] | None = None,
    client_id: str | None = None,
    site: str | None = None,
    test: float | str = 0.2,
    validation: float = 0.0,
    categorical: tuple[str, ...] = (),
    target: Target = "auto",
) -> Splits:
    """Splits of a CSV file with a header line, `.gz` or not; the rest as `from_table`. Raises E301 and what `from_table` raises."""
    import pandas as pd

    table = _read(path, lambda: pd.read_csv(path, low_memory=False))
    return from_table(table, label, features, client_id, site, test, validation, categorical, target, str(path))


def _read(path: str | Path, reader: Callable[[], Any]) -> Any:
    path = Path(path)
    if not path.is_file():
        folder = path.parent
        near = did_you_mean(path.name, [p.name for p in folder.iterdir()]) if folder.is_dir() else f"There is no folder '{folder}'"
        raise DataError("E301", f"there is no file '{path}'", str(path), near)
    try:
        return reader()
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        pickled = "allow_pickle" in str(error)
        what = "it holds Python objects, which are never unpickled" if pickled else f"{type(error).__name__}: {str(error)[:200]}"
        remedy = "Save plain arrays of numbers or text" if pickled else "Write the file again, and check its format"
        raise DataError("E301", f"'{path.name}' cannot be read: {what}", str(path), remedy) from error


@contextmanager
def _opened(path: str | Path) -> Iterator[Mapping[str, np.ndarray]]:
    # opened here and not by numpy, which leaves a damaged file open
    with _read(path, lambda: open(path, "rb")) as file:
        arrays = _read(path, lambda: np.load(file, allow_pickle=False))
        if isinstance(arrays, np.ndarray):
            remedy = "Save inputs and labels in one npz: np.savez(path, x_train=..., y_train=...)"
            raise DataError("E301", f"'{Path(path).name}' holds a single array", str(path), remedy)
        with arrays:
            yield arrays


def _array(arrays: Mapping[str, np.ndarray], name: str, where: str) -> np.ndarray:
    if name not in arrays:
        raise DataError("E304", f"no array '{name}'", where, did_you_mean(name, arrays))
    archive = getattr(arrays, "zip", None)
    if archive is not None:
        refuse_if_too_large(archive.getinfo(f"{name}.npy").file_size, name)
    array: np.ndarray = _read(where, lambda: arrays[name])
    return array
