"""The clients and their data, in one process: tensors once, and for each client the rows it owns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.local import LocalPlan
from fedaccord.core.rng import stream, streams
from fedaccord.partition import Shards


@dataclass(frozen=True, eq=False)
class Population:
    """Three disjoint shards a client: rows that train, rows for its own choices (`validation`), rows that only measure (`held_out`)."""

    x: Tensor  # [n, ...]
    y: Tensor  # [n, ...]
    train: Shards
    validation: Shards
    held_out: Shards
    seed: int

    def __len__(self) -> int:
        return len(self.train)

    def batches(self, client: int, round: int, plan: LocalPlan) -> Iterator[tuple[Tensor, Tensor]]:
        """The client's mini-batches of this round."""
        for rows in self.batch_rows(client, round, plan):
            yield self.examples_at(rows)

    def batch_rows(self, client: int, round: int, plan: LocalPlan) -> list[np.ndarray]:
        """The rows of each mini-batch, from the stream (seed, "batches", round, client)."""
        return plan.batches(self.train[client], stream(self.seed, "batches", round, client))

    def batch_rows_of_all(self, clients: Sequence[int], round: int, plans: Sequence[LocalPlan]) -> list[list[np.ndarray]]:
        """The same of many clients, each with its plan."""
        drawn = streams(self.seed, "batches", round, last=clients)
        return [plan.batches(self.train[client], rng) for client, plan, rng in zip(clients, plans, drawn, strict=True)]

    def examples(self, shards: Shards, client: int) -> tuple[Tensor, Tensor] | None:
        """All rows of one of the client's shards; None where it is empty."""
        rows = shards[client]
        return self.examples_at(rows) if len(rows) else None

    def examples_at(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """(x [..., *example], y [..., *label]) at these rows [...] of the data, contiguous whatever the layout of the data."""
        index = torch.from_numpy(rows.reshape(-1)).to(self.x.device)
        # Whole rows are copied; indexing with a tensor would go number by number, at two to four times the cost.
        x, y = self.x.index_select(0, index), self.y.index_select(0, index)
        return (x, y) if rows.ndim == 1 else (x.unflatten(0, rows.shape), y.unflatten(0, rows.shape))
