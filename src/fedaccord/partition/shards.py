"""Who owns which example, in two arrays, however many clients there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shards:
    """Compressed rows: client i owns `indices[offsets[i]:offsets[i + 1]]`, in O(examples + clients) memory.

    The schemes of this package give every client its indices in ascending order; shards that a user gives keep the user's order.
    Mini-batches are shuffled later, so the order carries no meaning for training.
    """

    indices: Int64  # [n] rows of the training data
    offsets: Int64  # [N + 1] starts at 0, ends at n, never falls

    @classmethod
    def of(cls, rows: Sequence[npt.ArrayLike]) -> Shards:
        """From one list of indices a client; the order inside a client is kept."""
        arrays = [np.asarray(row, dtype=np.int64).reshape(-1) for row in rows]
        sizes = np.array([array.size for array in arrays], dtype=np.int64)
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, np.int64), offsets_of(sizes))

    @classmethod
    def from_owner(cls, owner: Int64, clients: int) -> Shards:
        """From the owner of each example, `owner` [n] in [-1, clients); -1 is nobody. Indices ascend inside a client."""
        order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
        nobody = int(np.count_nonzero(owner < 0))
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        return cls(order[nobody:], offsets_of(sizes))

    @classmethod
    def from_pairs(cls, owner: Int64, indices: Int64, clients: int) -> Shards:
        """From pairs (client, example), where an example may have several owners. Indices ascend inside a client."""
        order = np.lexsort((indices, owner))
        return cls(indices[order], offsets_of(np.bincount(owner, minlength=clients)))

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, client: int) -> Int64:
        if client < 0 or client >= len(self):  # numpy's negative indices would answer with somebody else's rows
            raise IndexError(f"client {client} of {len(self)}")
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Int64]:
        return (self[client] for client in range(len(self)))

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Shards):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.indices, other.indices)

    __hash__ = None  # type: ignore[assignment]

    @property
    def sizes(self) -> Int64:
        """Examples of each client, [N]."""
        return np.diff(self.offsets)

    def owners(self) -> Int64:
        """The client of each entry of `indices`, [n]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.sizes)

    def between(self, first: int, last: int) -> Shards:
        """The clients from `first` to before `last`, without a copy of what they own."""
        offsets = self.offsets[first : last + 1]
        return Shards(self.indices[offsets[0] : offsets[-1]], offsets - offsets[0])

    def where(self, mask: npt.NDArray[np.bool_]) -> Shards:
        """The entries of `indices` that `mask` [n] keeps, in the same order, with the same clients."""
        sizes = np.bincount(self.owners()[mask], minlength=len(self))
        return Shards(self.indices[mask], offsets_of(sizes))


def offsets_of(sizes: npt.NDArray[np.integer[Any]]) -> Int64:
    """Sizes [N] to offsets [N + 1]."""
    offsets = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
