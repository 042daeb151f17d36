"""One split in memory: inputs, labels and, where the data have them, the natural client and the site of each row.

`examples_of` accepts what people have: a pair of arrays, `Examples`, or a map-style Dataset, which is read once into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks.memory import refuse_if_too_large


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Rows of one split. `x` and `y` have the same first dimension n; `ids` and `site` are None or hold one value a row.

    Tensors made from numpy arrays share their memory: do not change the array afterwards.
    """

    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    ids: np.ndarray | None = None  # [n] natural client: a person, a writer, a hospital
    site: np.ndarray | None = None  # [n] where the row was measured, for a partition by site

    @classmethod
    def of(cls, x: Any, y: Any, ids: Any = None, site: Any = None, split: str = "train") -> Examples:
        """From arrays, tensors, lists or pandas columns. `split` is the name that errors use.

        Raises E302 (lengths disagree), E305 (empty), E306 (labels are text), E307 (does not fit in memory), E202 (no array of numbers).
        """
        return cls(
            _tensor(x, "inputs", split),
            _tensor(y, "labels", split),
            None if ids is None else np.asarray(ids),
            None if site is None else np.asarray(site),
        ).checked(split)

    def checked(self, split: str) -> Examples:
        """Itself, or E305 (no row) or E302 (lengths disagree)."""
        lengths = {"inputs": len(self.x), "labels": len(self.y)}
        lengths |= {name: len(rows) for name, rows in (("ids", self.ids), ("site", self.site)) if rows is not None}
        if len(set(lengths.values())) > 1:
            figures = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise DataError(
                "E302", f"the {split} set has {figures}", f"split '{split}', row {min(lengths.values())}", "Give one of each a row"
            )
        if len(self.x) == 0:
            raise DataError("E305", f"the {split} set has 0 rows", f"split '{split}'", "Give at least one example")
        return self

    def take(self, rows: np.ndarray) -> Examples:
        """The rows with these positions, in this order."""
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return Examples(
            self.x[index], self.y[index], None if self.ids is None else self.ids[rows], None if self.site is None else self.site[rows]
        )

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        extra = "".join(f", {name}" for name, rows in (("ids", self.ids), ("site", self.site)) if rows is not None)
        return f"Examples({len(self)} rows, x {list(self.x.shape[1:])} {self.x.dtype}, y {list(self.y.shape[1:])} {self.y.dtype}{extra})"


def examples_of(data: Any, split: str) -> Examples:
    """`data` as Examples: a pair (x, y), Examples, a TensorDataset, or any map-style Dataset of (x, y) items.

    A Dataset is read once, in order; random transforms inside it are therefore drawn once and stay. Its size is checked before it is read.
    Raises E202 for anything else, E302, E305, E306 and E307 as `Examples.of`.
    """
    if isinstance(data, Examples):
        return Examples.of(data.x, data.y, data.ids, data.site, split)
    if isinstance(data, torch.utils.data.TensorDataset) and len(data.tensors) == 2:
        x, y = data.tensors
        return Examples.of(x, y, split=split)
    if _is_pair(data):
        x, y = data
        return Examples.of(x, y, split=split)
    if hasattr(data, "column_names"):
        raise ConfigError(
            "E202",
            f"the {split} set is a {type(data).__name__} with columns {_listed(data.column_names)}",
            f"split '{split}'",
            "Say which columns are meant: fa.from_hugging_face(dataset, input=..., label=...)",
        )
    iterable_only = isinstance(data, torch.utils.data.IterableDataset | torch.utils.data.DataLoader)
    if iterable_only or isinstance(data, tuple) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ConfigError(
            "E202",
            f"the {split} set is a {type(data).__name__}",
            f"split '{split}'",
            "Give a pair (x, y), Examples, or a map-style Dataset (with len() and [i]) of (x, y) items",
        )
    return _materialised(data, split)


def _is_pair(data: Any) -> bool:
    """A tuple of two, or a list of two arrays (a list of two (x, y) items is a tiny Dataset)."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    return isinstance(data, tuple) or all(isinstance(part, Tensor | np.ndarray) for part in data)


def _materialised(dataset: Any, split: str) -> Examples:
    num_rows = len(dataset)
    if num_rows == 0:
        raise DataError("E305", f"the {split} set has 0 rows", f"split '{split}'", "Give at least one example")
    first_x, first_y = _item(dataset, 0, split)
    x_dtype = torch.float32 if first_x.dtype == torch.uint8 else first_x.dtype
    refuse_if_too_large(num_rows * (first_x.numel() * x_dtype.itemsize + first_y.numel() * first_y.dtype.itemsize), split)
    x = torch.empty((num_rows, *first_x.shape), dtype=x_dtype)
    y = torch.empty((num_rows, *first_y.shape), dtype=first_y.dtype)
    for row in range(num_rows):
        item_x, item_y = _item(dataset, row, split) if row else (first_x, first_y)
        if item_x.shape != first_x.shape or item_y.shape != first_y.shape:
            here, first = ([list(part.shape) for part in pair] for pair in ((item_x, item_y), (first_x, first_y)))
            raise DataError(
                "E302",
                f"row {row} has inputs {here[0]} and label {here[1]}, row 0 has {first[0]} and {first[1]}",
                f"split '{split}', row {row}",
                "Resize or pad the items to one shape",
            )
        x[row] = item_x.to(x_dtype) / 255 if item_x.dtype == torch.uint8 else item_x
        y[row] = item_y
    return Examples(x, y).checked(split)


def _item(dataset: Any, row: int, split: str) -> tuple[Tensor, Tensor]:
    item = dataset[row]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise ConfigError(
            "E202",
            f"item {row} is a {type(item).__name__}, not a pair (x, y)",
            f"split '{split}', row {row}",
            "Let the Dataset return (x, y)",
        )
    x, y = item
    return _tensor(picture_array(x), "inputs", split), _tensor(y, "labels", split)


def picture_array(value: Any) -> Any:
    """A PIL picture as a uint8 array [channels, height, width]; anything else as it is."""
    if not hasattr(value, "getbands"):
        return value
    pixels = np.asarray(value)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _tensor(values: Any, what: str, split: str) -> Tensor:
    """A CPU tensor; shares memory with a numpy array where torch can."""
    if isinstance(values, Tensor):
        return values.detach().cpu().contiguous()
    array = _array(values, what, split)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:  # torch computes little with uint16, uint32, uint64
        array = array.astype(np.int32 if array.dtype.itemsize == 2 else np.int64)
    in_place = array.flags.c_contiguous and array.flags.writeable and array.dtype.isnative and not isinstance(array, np.memmap)
    if not in_place:
        refuse_if_too_large(array.nbytes, split)
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)


def _array(values: Any, what: str, split: str) -> np.ndarray:
    """A numpy array of numbers. Objects that are numbers after all are unpacked; text, dates and ragged rows are refused."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.array(array.tolist())
    except ValueError as error:
        raise ConfigError(
            "E202", f"the {what} are rows of different shapes ({error})", f"split '{split}'", "Resize or pad them to one shape"
        ) from error
    if array.dtype.kind in "biuf":
        return array
    first = str(array.reshape(-1)[0])[:40] if array.size else ""
    if what == "labels":
        raise DataError(
            "E306",
            f"the labels have dtype {array.dtype}, the first is {first!r}",
            f"split '{split}', row 0",
            "Number the classes: names, y = np.unique(y, return_inverse=True)",
        )
    raise ConfigError("E202", f"the {what} have dtype {array.dtype}, the first is {first!r}", f"split '{split}', row 0", "Give numbers")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names if isinstance(names, Sequence) else list(names)))
