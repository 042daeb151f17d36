"""Clients that hold alike examples, equally many or not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedaccord.partition.draws import ATTEMPTS, cut, deal_by_size, even_sizes, log_dirichlet, shares, top_up
from fedaccord.partition.partition import Attributes, Partition
from fedaccord.partition.ranges import Clients, Concentration, Count, Share, check_clients
from fedaccord.partition.shards import Shards


@dataclass(frozen=True)
class IID:
    """A random split into parts that differ by at most one example."""

    clients: Clients

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        sizes = even_sizes(attributes.num_examples, self.clients)
        return Partition(Shards.from_owner(deal_by_size(sizes, rng), self.clients))


@dataclass(frozen=True)
class QuantityDirichlet:
    """Sizes ~ Dir(alpha), contents at random (NIID-Bench's quantity skew).

    The published code redraws until each client has 10 examples; `min_size` (default 0) gets 20 draws, then a repair that the notes name.
    """

    alpha: Concentration
    clients: Clients
    min_size: Count = 0

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes, self.min_size)
        everybody = np.ones(self.clients, dtype=bool)
        for _ in range(ATTEMPTS):
            sizes = cut(shares(log_dirichlet(self.alpha, (self.clients,), rng), everybody), attributes.num_examples)
            if sizes.min() >= self.min_size:
                return Partition(Shards.from_owner(deal_by_size(sizes, rng), self.clients))
        owner, note = top_up(deal_by_size(sizes, rng), self.clients, self.min_size, rng)
        return Partition(Shards.from_owner(owner, self.clients), notes=(note,))


@dataclass(frozen=True)
class FewHoldMost:
    """A `share_of_clients`, drawn at random, holds `share_of_data` of the examples; the others hold a handful each, at least one.

    Inside each of the two groups sizes differ by at most one; contents are at random. A single client holds everything.
    """

    clients: Clients
    share_of_clients: Share = 0.2
    share_of_data: Share = 0.8

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        num_examples = attributes.num_examples
        if self.clients == 1:
            return Partition(Shards.from_owner(np.zeros(num_examples, dtype=np.int64), 1))
        few = int(np.clip(round(self.share_of_clients * self.clients), 1, self.clients - 1))
        asked = round(self.share_of_data * num_examples)
        most = int(np.clip(asked, few, num_examples - (self.clients - few)))
        sizes = np.concatenate([even_sizes(most, few), even_sizes(num_examples - most, self.clients - few)])
        rng.shuffle(sizes)
        notes = () if most == asked else (f"{few} clients hold {most} examples instead of {asked}, so that each client has at least one",)
        return Partition(Shards.from_owner(deal_by_size(sizes, rng), self.clients), notes=notes)
