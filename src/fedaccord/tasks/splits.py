"""Carve a share of rows off a split: stratified by label, the same rows every time, whatever the run's seed.

The split belongs to the task, not to the run: seeds that are compared must be judged on the same rows.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.core.rng import stream
from fedaccord.tasks.examples import Examples


class Splits(TypedDict):
    """What every loader returns: keywords of `Task`, as in ``Task(model=..., loss=..., **from_npz("data.npz"))``."""

    train: Examples
    test: Examples
    validation: Examples | None
    class_names: tuple[str, ...] | None


def carve(examples: Examples, share: float, name: str) -> tuple[Examples, Examples]:
    """(the rest, the carved `share`). Rows keep their order in both. Stratified where `y` holds one class a row.

    `name` names the random stream and the carved split in errors: the same name and data give the same rows.
    """
    labels = class_of_rows(examples)
    rows = carved_rows(len(examples), labels, share, name)
    rest = np.setdiff1d(np.arange(len(examples)), rows)
    return examples.take(rest), examples.take(rows)


def carved_rows(num_examples: int, labels: np.ndarray | None, share: float, name: str) -> np.ndarray:
    """Positions, ascending, of the `share` of rows to carve: round(share n) of them, each class in proportion (largest remainders).

    Every class keeps at least one row in the rest, so a class with one row is never carved.
    Raises E203 (share outside (0, 1)) and E305 (nothing would be carved, or nothing left).
    """
    if not 0 < share < 1:
        raise ConfigError("E203", f"a share of {share} of the rows", f"split '{name}'", "Give a number above 0 and below 1")
    rng = stream(0, "split", name)
    total = round(share * num_examples)
    if labels is None:
        rows = rng.permutation(num_examples)[: min(total, num_examples - 1)]
    else:
        _, class_index, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        exact = share * sizes
        take = np.floor(exact).astype(np.int64)
        order = np.argsort(-(exact - take), kind="stable")
        take[order[: total - int(take.sum())]] += 1
        take = np.minimum(take, sizes - 1)
        parts = [rng.permutation(np.flatnonzero(class_index == c))[: take[c]] for c in range(len(sizes))]
        rows = np.concatenate(parts)
    if len(rows) == 0:
        raise DataError(
            "E305", f"a share of {share} of {num_examples} rows is 0 rows", f"split '{name}'", "Give a larger share or more examples"
        )
    return np.sort(rows)


def class_of_rows(examples: Examples) -> np.ndarray | None:
    """[n] the class of each row, or None where `y` is real-valued or has several values a row."""
    if examples.y.ndim != 1 or examples.y.is_floating_point():
        return None
    return examples.y.numpy()
