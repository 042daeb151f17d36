"""Clients whose inputs differ: noise levels, sites, sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge

from fedaccord.core.errors import PartitionError
from fedaccord.partition.draws import deal, deal_by_size, even_sizes
from fedaccord.partition.partition import Attributes, Partition
from fedaccord.partition.ranges import Clients, Count, check_clients, check_fields, column, groups_of
from fedaccord.partition.shards import Int64, Shards

SITE_REMEDY = "give the task's examples their `site`, or choose another scheme"


@dataclass(frozen=True)
class FeatureNoise:
    """A random even split; the inputs of client i carry Gaussian noise of standard deviation std * i / (N - 1) (NIID-Bench).

    `std` is in units of the inputs. The noise itself is added where the data are read: `Partition.noise` holds each client's level.
    """

    clients: Clients
    std: Annotated[float, Ge(0)]

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_clients(self, self.clients, attributes)
        sizes = even_sizes(attributes.num_examples, self.clients)
        noise = self.std * np.arange(self.clients) / max(self.clients - 1, 1)
        return Partition(Shards.from_owner(deal_by_size(sizes, rng), self.clients), noise=noise)


@dataclass(frozen=True)
class BySite:
    """Each site's examples go to its own `clients_per_site` clients, evenly and at random. Clients are numbered site by site, sites sorted.

    E311 where a site has fewer examples than clients.
    """

    clients_per_site: Clients = 1

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        check_fields(self)
        sites, members_of = groups_of(column(self, attributes, "site", SITE_REMEDY))
        clients = len(sites) * self.clients_per_site
        owner = np.empty(attributes.num_examples, dtype=np.int64)
        for number, (site, members) in enumerate(zip(sites, members_of, strict=True)):
            _check_site(site, members, self.clients_per_site, "BySite")
            own = number * self.clients_per_site + np.arange(self.clients_per_site)
            deal(members, own, even_sizes(members.size, own.size), owner, rng)
        return Partition(Shards.from_owner(owner, clients))


@dataclass(frozen=True)
class ByModality:
    """Some clients hold one source only, the rest are mixed: `single` says how many clients each site (by its name) has alone.

    Clients are numbered in the order of `single`, the mixed ones last. All clients get n/N examples (rounded down; the mixed share the
    rest) as long as each site leaves the mixed clients at least one example each; a site too small for that is shared evenly by its own
    and the mixed clients, and a note says so. Without mixed clients each site is shared evenly by its own. E205 for a site that the
    data lack, E311 where a site has no client that could hold it or fewer examples than clients.
    """

    single: Mapping[str, Count]
    mixed: Count = 0

    @property
    def clients(self) -> int:
        return sum(self.single.values()) + self.mixed

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        self._check_counts()
        check_clients(self, self.clients, attributes)
        names, members_of = groups_of(column(self, attributes, "site", SITE_REMEDY))
        sites = {str(name): members for name, members in zip(names, members_of, strict=True)}
        for name in self.single:
            if name not in sites:
                raise PartitionError(
                    "E205", f"no example comes from site {name!r}", "ByModality.single", "the sites are " + ", ".join(sites)
                )
        owner = np.full(attributes.num_examples, -1, dtype=np.int64)
        first, firsts = 0, {}
        for name, alone in self.single.items():
            firsts[name], first = first, first + alone
        notes, mixed = [], first + np.arange(self.mixed)
        for name, members in sites.items():
            alone = self.single.get(name, 0)
            if not alone and not self.mixed:
                raise PartitionError(
                    "E311", f"nobody may hold site {name!r}", "ByModality", "list it in `single`, or ask for mixed clients"
                )
            _check_site(name, members, alone + self.mixed, "ByModality")
            size = attributes.num_examples // self.clients
            if self.mixed and alone * size > members.size - self.mixed:
                size = members.size // (alone + self.mixed)
                notes.append(f"site {name!r} has too few examples for equal sizes: its {alone} own clients get {size} each")
            own = firsts.get(name, 0) + np.arange(alone)
            taken = alone * size if self.mixed else members.size
            shuffled = rng.permutation(members)
            deal(shuffled[:taken], own, even_sizes(taken, alone) if alone else own, owner, rng)
        if self.mixed:
            _deal_mixed([members[owner[members] < 0] for members in sites.values()], mixed, owner, rng)
        return Partition(Shards.from_owner(owner, self.clients), notes=tuple(notes))

    def _check_counts(self) -> None:
        for name, alone in self.single.items():
            if isinstance(alone, bool) or not isinstance(alone, int):
                raise PartitionError("E202", f"{alone!r} is not a number of clients", f"ByModality.single[{name!r}]", "give an integer")
            if alone < 0:
                raise PartitionError("E203", f"{alone} clients", f"ByModality.single[{name!r}]", "it must be at least 0")
        check_fields(self)
        if self.clients < 1:
            raise PartitionError("E203", "no client at all", "ByModality", "give clients in `single` or `mixed`")


def _deal_mixed(leftovers: list[Int64], mixed: Int64, owner: Int64, rng: np.random.Generator) -> None:
    """Deal what each site left like cards, one after the other: every mixed client gets of every site, sizes differ by at most one."""
    cards = np.concatenate([rng.permutation(leftover) for leftover in leftovers])
    owner[cards] = np.resize(rng.permutation(mixed), cards.size)


def _check_site(site: object, members: Int64, clients: int, where: str) -> None:
    if members.size < clients:
        raise PartitionError(
            "E311", f"site {str(site)!r} has {members.size} examples for {clients} clients", where, "give that site fewer clients"
        )
