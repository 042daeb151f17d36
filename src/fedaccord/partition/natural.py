"""Clients that exist already: natural ids, and index lists that the user gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from fedaccord.core.errors import PartitionError
from fedaccord.partition.partition import Attributes, Partition
from fedaccord.partition.ranges import Clients, check_fields, column
from fedaccord.partition.shards import Int64, Shards


@dataclass(frozen=True)
class NaturalIds:
    """One client per natural id (writer, patient, author), numbered in sorted order of the ids.

    Ids with fewer than `min_size` examples are left out. `clients` asks for fewer clients than ids: `surplus` "largest" keeps the ids
    with most examples (of equals the smaller id), "random" keeps a random choice, "merge" keeps everybody and gives each client several
    ids, dealt at random. What is left out belongs to nobody, and a note says how much. E311 where fewer ids remain than `clients`.
    """

    clients: Clients | None = None
    min_size: Annotated[int, Ge(1)] = 1
    surplus: Literal["largest", "random", "merge"] = "largest"

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_fields(self)
        values = column(self, attributes, "ids", "name the column that holds the client of each example, or choose another scheme")
        ids, id_of, counts = np.unique(values, return_inverse=True, return_counts=True)
        kept = np.flatnonzero(counts >= self.min_size)
        clients = kept.size if self.clients is None else self.clients
        if clients > kept.size or not kept.size:
            raise PartitionError(
                "E311",
                f"{self.clients or 'natural'} clients asked for, but {kept.size} of {ids.size} ids have {self.min_size} examples or more",
                "NaturalIds",
                "ask for fewer clients or a lower min_size",
            )
        if self.surplus not in SURPLUS:
            raise PartitionError("E205", f"no rule is called {self.surplus!r}", "NaturalIds.surplus", "choose one of " + ", ".join(SURPLUS))
        client_of_id = np.full(ids.size, -1, dtype=np.int64)
        chosen = np.sort(SURPLUS[self.surplus](kept, counts[kept], clients, rng))
        client_of_id[chosen] = np.arange(chosen.size) if chosen.size == clients else rng.permutation(np.arange(chosen.size) % clients)
        owner = client_of_id[id_of.reshape(-1)]
        left_out = int(np.count_nonzero(owner < 0))
        note = f"{ids.size - chosen.size} of {ids.size} ids are left out, with {left_out} of {owner.size} examples"
        return Partition(Shards.from_owner(owner, clients), notes=(note,) if left_out else ())


def _largest(kept: Int64, counts: Int64, clients: int, rng: np.random.Generator) -> Int64:
    return kept[np.argsort(-counts, kind="stable")[:clients]]


def _random(kept: Int64, counts: Int64, clients: int, rng: np.random.Generator) -> Int64:
    return rng.choice(kept, clients, replace=False)


def _all(kept: Int64, counts: Int64, clients: int, rng: np.random.Generator) -> Int64:
    return kept


SURPLUS = {"largest": _largest, "random": _random, "merge": _all}


@dataclass(frozen=True, eq=False)
class Explicit:
    """Given index lists, one a client; their order is kept. Examples that nobody holds are counted in a note.

    `duplicates` True allows an example in several places. E311 for an index outside the data, E314 for an example with two owners.
    """

    shards: Shards | Sequence[npt.ArrayLike]
    duplicates: bool = False

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        shards = self.shards if isinstance(self.shards, Shards) else Shards.of(self.shards)
        return given(shards, attributes.num_examples, self.duplicates, "Explicit")


def given(shards: Shards, num_examples: int, duplicates: bool, where: str) -> Partition:
    """A partition from shards that somebody else made, checked."""
    outside = np.flatnonzero((shards.indices < 0) | (shards.indices >= num_examples))
    if not len(shards):
        raise PartitionError("E311", "no client at all", where, "give at least one list of indices")
    if outside.size:
        place = int(outside[0])
        raise PartitionError(
            "E311", f"index {shards.indices[place]} is outside the {num_examples} examples", f"{where}, client {shards.owners()[place]}"
        )
    owned = np.bincount(shards.indices, minlength=num_examples)
    twice = np.flatnonzero(owned > 1)
    if twice.size and not duplicates:
        owners = shards.owners()[shards.indices == twice[0]]
        raise PartitionError(
            "E314",
            f"example {twice[0]} is held by clients {owners[0]} and {owners[1]}, and {twice.size - 1} more examples are held twice",
            where,
            "mend the lists, or set duplicates=True if it is meant",
        )
    nobody = int(np.count_nonzero(owned == 0))
    note = f"{nobody} of {num_examples} examples belong to nobody"
    return Partition(shards, notes=(note,) if nobody else (), duplicates=bool(twice.size))
