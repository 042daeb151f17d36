"""Clients that hold few classes each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedaccord.core.errors import PartitionError
from fedaccord.partition.draws import deal, even_sizes
from fedaccord.partition.partition import Attributes, Partition
from fedaccord.partition.ranges import Clients, check_clients, class_members
from fedaccord.partition.shards import Shards


@dataclass(frozen=True)
class LabelShards:
    """Examples sorted by label, cut into clients * shards_per_client shards, dealt at random (McMahan et al. 2017, arXiv:1602.05629).

    Shards differ by at most one example. E311 where there are more shards than examples.
    """

    clients: Clients
    shards_per_client: Annotated[int, Ge(1)] = 2

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        num_shards, num_examples = self.clients * self.shards_per_client, attributes.num_examples
        if num_shards > num_examples:
            raise PartitionError(
                "E311",
                f"{self.clients} clients with {self.shards_per_client} shards each need {num_shards} examples, there are {num_examples}",
                "LabelShards",
                f"take at most {num_examples // self.shards_per_client} clients or fewer shards_per_client",
            )
        by_label = np.concatenate([rng.permutation(members) for members in class_members(self, attributes)])
        owner_of_shard = rng.permutation(np.repeat(np.arange(self.clients), self.shards_per_client))
        owner = np.empty(num_examples, dtype=np.int64)
        owner[by_label] = np.repeat(owner_of_shard, even_sizes(num_examples, num_shards))
        return Partition(Shards.from_owner(owner, self.clients))


@dataclass(frozen=True)
class PathologicalLabels:
    """Client i holds label i mod C and labels_per_client - 1 others at random; holders share a label evenly (NIID-Bench's "#label-k").

    With fewer clients than labels the published code leaves labels to nobody; here the random ones are drawn from the unheld labels
    first. A label with fewer examples than holders leaves some of them without it. E311 where the clients together cannot hold all
    labels.
    """

    clients: Clients
    labels_per_client: Annotated[int, Ge(1)] = 2

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        classes = class_members(self, attributes)
        holds = self._holders(len(classes), rng)
        owner = np.empty(attributes.num_examples, dtype=np.int64)
        for label, members in enumerate(classes):
            holders = rng.permutation(np.flatnonzero(holds[:, label]))  # shuffled, or the first client would get every odd example
            deal(members, holders, even_sizes(members.size, holders.size), owner, rng)
        return Partition(Shards.from_owner(owner, self.clients))

    def _holders(self, num_labels: int, rng: np.random.Generator) -> np.ndarray:
        """Who holds which label, bool [N, C], `labels_per_client` in each row, at least one in each column."""
        clients, wanted = self.clients, self.labels_per_client
        if wanted > num_labels:
            raise PartitionError(
                "E311",
                f"{wanted} labels for each client, but the data have {num_labels}",
                "PathologicalLabels",
                f"ask for at most {num_labels}",
            )
        if clients * wanted < num_labels:
            raise PartitionError(
                "E311",
                f"{clients} clients with {wanted} labels each hold at most {clients * wanted} of the {num_labels} labels",
                "PathologicalLabels",
                f"take at least {-(-num_labels // wanted)} clients or {-(-num_labels // clients)} labels_per_client",
            )
        holds = np.zeros((clients, num_labels), dtype=bool)
        holds[np.arange(clients), np.arange(clients) % num_labels] = True
        unheld = rng.permutation(np.arange(clients, num_labels))
        holds[np.resize(rng.permutation(clients), unheld.size), unheld] = True
        lots = rng.random(holds.shape)
        lots[holds] = -1.0  # what is held already comes first
        chosen = np.argpartition(lots, wanted - 1, axis=1)[:, :wanted]
        holds[np.arange(clients)[:, None], chosen] = True
        return holds
