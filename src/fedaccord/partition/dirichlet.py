"""Dirichlet label skew, in the two published conventions. Results under one are not comparable with results under the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedaccord.core.errors import PartitionError
from fedaccord.partition.draws import ATTEMPTS, cut, deal, even_sizes, log_dirichlet, shares, top_up
from fedaccord.partition.partition import Attributes, Partition
from fedaccord.partition.ranges import Clients, Concentration, Count, check_clients, class_members
from fedaccord.partition.shards import Float64, Int64, Shards


@dataclass(frozen=True)
class DirichletPerClass:
    """Each class is spread over the clients by its own p ~ Dir(alpha) (NIID-Bench, Li et al. 2022, arXiv:2102.02079). Sizes differ.

    A client that already holds n/N examples takes no more of the following classes. The published code redraws everything until each
    client has at least 10 examples and may never end; here `min_size` (default 0: what falls, falls) gets 20 draws, then clients below
    it are topped up from the largest, and the partition's notes say so. With `min_size` 0, clients may be empty: `describe` names them.
    """

    alpha: Concentration
    clients: Clients
    min_size: Count = 0

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes, self.min_size)
        classes = class_members(self, attributes)
        for _ in range(ATTEMPTS):
            owner, sizes = _spread_classes(classes, self.alpha, self.clients, attributes.num_examples, rng)
            if sizes.min() >= self.min_size:
                return Partition(Shards.from_owner(owner, self.clients))
        owner, note = top_up(owner, self.clients, self.min_size, rng)
        return Partition(Shards.from_owner(owner, self.clients), notes=(note,))


def _spread_classes(classes: list[Int64], alpha: float, clients: int, num_examples: int, rng: np.random.Generator) -> tuple[Int64, Int64]:
    owner = np.empty(num_examples, dtype=np.int64)
    sizes = np.zeros(clients, dtype=np.int64)
    for members in classes:
        open_clients = sizes * clients < num_examples  # never empty: before the last class fewer than n examples are out
        counts = cut(shares(log_dirichlet(alpha, (clients,), rng), open_clients), members.size)
        deal(members, np.arange(clients), counts, owner, rng)
        sizes += counts
    return owner, sizes


@dataclass(frozen=True)
class DirichletPerClient:
    """Each client draws its examples' classes from its own q_i ~ Dir(alpha). Sizes are equal (they differ by at most one).

    `draw`: "partition" is a true partition as in FedDyn's code (Acar et al. 2021, arXiv:2111.04263): when a class has run out, clients
    go on with the classes that are left. "with_replacement" is FL-Simulator's: a class that has run out starts again from its first
    image, so some examples have several owners, some none, and class totals change (CIFAR-10, 100 clients, alpha 0.1: 8.5% of the
    images are lost).
    """

    alpha: Concentration
    clients: Clients
    draw: Literal["partition", "with_replacement"] = "partition"

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        if self.draw not in DRAWS:
            raise PartitionError("E205", f"no draw is called {self.draw!r}", "DirichletPerClient.draw", "choose one of " + ", ".join(DRAWS))
        classes = class_members(self, attributes)
        sizes = even_sizes(attributes.num_examples, self.clients)
        return DRAWS[self.draw](classes, log_dirichlet(self.alpha, (self.clients, len(classes)), rng), sizes, rng)


def _without_replacement(classes: list[Int64], logs: Float64, sizes: Int64, rng: np.random.Generator) -> Partition:
    """All clients ask at once; a class asked for more than it has serves a random part, the others ask again among what is left.

    FedDyn's code asks one by one and redraws on an empty class, which can hang; here each sweep empties a class or ends.
    """
    left = np.array([members.size for members in classes], dtype=np.int64)  # [C]
    granted = np.zeros(logs.shape, dtype=np.int64)  # [N, C]
    asking = np.arange(sizes.size)
    while asking.size:
        need = sizes[asking] - granted[asking].sum(axis=1)
        asked = rng.multinomial(need, shares(logs[asking], left > 0))
        for label in np.flatnonzero(asked.sum(axis=0) > left):
            asked[:, label] = rng.multivariate_hypergeometric(asked[:, label], left[label], method="marginals")
        granted[asking] += asked
        left -= asked.sum(axis=0)
        asking = asking[asked.sum(axis=1) < need]
    owner = np.empty(int(sizes.sum()), dtype=np.int64)
    for number, members in enumerate(classes):
        deal(members, np.arange(sizes.size), granted[:, number], owner, rng)
    return Partition(Shards.from_owner(owner, sizes.size))


def _with_replacement(classes: list[Int64], logs: Float64, sizes: Int64, rng: np.random.Generator) -> Partition:
    asked = rng.multinomial(sizes, shares(logs, np.ones(len(classes), dtype=bool)))  # [N, C]
    owners, indices = [], []
    for label, members in enumerate(classes):
        requests = rng.permutation(np.repeat(np.arange(sizes.size), asked[:, label]))  # in order of arrival
        owners.append(requests)
        indices.append(np.resize(rng.permutation(members), requests.size))  # the class, from its start again when it has run out
    shards = Shards.from_pairs(np.concatenate(owners), np.concatenate(indices), sizes.size)
    unseen = int(sizes.sum()) - np.unique(shards.indices).size
    note = f"drawn with replacement: {unseen} of {int(sizes.sum())} examples belong to nobody, as many places hold a second copy"
    return Partition(shards, notes=(note,) if unseen else (), duplicates=True)


DRAWS = {"partition": _without_replacement, "with_replacement": _with_replacement}
