"""Who is asked in a round. Cohorts come from the stream (seed, "cohort", round), so all methods of one seed see the same clients."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
from annotated_types import Gt, Le

from fedaccord.core.algorithm import NonNegative, PositiveCount, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import ClientReport
from fedaccord.core.rng import stream

History = Mapping[int, Mapping[str, float]]  # client -> the signals of its last accepted report that the sampler looks at
NOTHING: History = MappingProxyType({})


class Sampler(Protocol):
    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        """Client ids in ascending order; empty where nobody is asked. `round` is counted from 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """`size` clients, each set equally likely. The cost follows `size`, not the population."""

    size: PositiveCount = 10

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        if self.size > population:
            raise ConfigError("E203", f"a cohort of {self.size} out of {population} clients", "run.cohort", f"Ask for at most {population}")
        chosen = stream(seed, "cohort", round).choice(population, self.size, replace=False, shuffle=False)
        return tuple(sorted(int(client) for client in chosen))


@dataclass(frozen=True)
class Coin:
    """Each client independently with probability `rate`; an empty draw is repeated, up to 1,000 times."""

    rate: Share = 0.1

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        rng = stream(seed, "cohort", round)
        for _ in range(1000):
            size = int(rng.binomial(population, self.rate))
            if size:
                return tuple(sorted(int(client) for client in rng.choice(population, size, replace=False, shuffle=False)))
        return ()


@dataclass(frozen=True)
class Scripted:
    """The given client ids: entry t - 1 is the cohort of round t."""

    cohorts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, cohorts: Sequence[Sequence[int]]) -> Scripted:
        """From any nested sequence of whole numbers; TypeError for anything else."""
        return cls(tuple(tuple(operator.index(client) for client in cohort) for cohort in cohorts))

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        if round > len(self.cohorts):
            raise ConfigError(
                "E203",
                f"round {round} has no scripted cohort: the script ends at {len(self.cohorts)}",
                "cohort",
                "Lengthen the script or run fewer rounds",
            )
        cohort = self.cohorts[round - 1]
        if len(set(cohort)) < len(cohort):
            raise ConfigError("E203", f"the cohort of round {round} names a client twice", "cohort")
        strangers = [client for client in cohort if not 0 <= client < population]
        if strangers:
            raise ConfigError(
                "E203", f"the cohort of round {round} names client {strangers[0]}, the ids are 0 to {population - 1}", "cohort"
            )
        return tuple(int(client) for client in np.sort(np.asarray(cohort, dtype=np.int64)))


@dataclass(frozen=True)
class StabilityAware:
    """`size` clients, drawn without replacement; stable ones are likelier, and nobody is starved.

    Stable: instability tau below `max_tau` and consistency gamma above `min_gamma` in the client's last accepted report (`dynamic_sam`
    reports both); a client never seen counts as stable. Each other one is drawn as if it were `floor` of a client. The cost of a draw
    follows the clients seen so far, not the population.
    """

    size: PositiveCount = 10
    max_tau: NonNegative = 0.15  # radians
    min_gamma: float = 0.7
    floor: Annotated[float, Gt(0), Le(1)] = 0.2  # relative to a stable client's chance

    looks_at: ClassVar[tuple[str, ...]] = ("gamma", "tau")

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        if self.size > population:
            raise ConfigError("E203", f"a cohort of {self.size} out of {population} clients", "run.cohort", f"Ask for at most {population}")
        unstable = np.array(sorted(client for client, signals in history.items() if not self._is_stable(signals)), dtype=np.int64)
        rng, num_stable = stream(seed, "cohort", round), population - len(unstable)
        num_unstable = self._num_unstable(num_stable, len(unstable), rng)
        asked = unstable[rng.choice(len(unstable), num_unstable, replace=False, shuffle=False)]
        places = rng.choice(num_stable, self.size - num_unstable, replace=False, shuffle=False)
        # Before the stable client at place p stand p stable ones and those unstable ones whose id, less their own place, is at most p.
        others = places + np.searchsorted(unstable - np.arange(len(unstable)), places, side="right")
        return tuple(sorted(int(client) for client in [*asked, *others]))

    def _is_stable(self, signals: Mapping[str, float]) -> bool:
        return signals["tau"] < self.max_tau and signals["gamma"] > self.min_gamma

    def _num_unstable(self, num_stable: int, num_unstable: int, rng: np.random.Generator) -> int:
        """How many of the cohort are unstable where clients are drawn one after another, each time in proportion to their chances."""
        drawn = 0
        for place, lot in enumerate(rng.random(self.size)):
            unstable = self.floor * (num_unstable - drawn)
            drawn += bool(lot * (unstable + num_stable - (place - drawn)) < unstable)
        return drawn


def most_seen(sampler: Sampler, population: int, rounds: int) -> int:
    """How many different clients a run asks at most; of a coin, whose cohorts vary, how many it asks for in all on average."""
    if isinstance(sampler, Uniform | StabilityAware):
        return min(population, rounds * sampler.size)
    if isinstance(sampler, Coin):
        return min(population, math.ceil(rounds * sampler.rate * population))
    if isinstance(sampler, Scripted):
        return len({client for cohort in sampler.cohorts[:rounds] for client in cohort})
    return population


def seen(sampler: Sampler, history: History, reports: Iterable[ClientReport]) -> History:
    """The history after these accepted reports; the same one where the sampler looks at nothing."""
    wanted: tuple[str, ...] = getattr(sampler, "looks_at", ())
    told = {report.client: {name: value for name in wanted if (value := report.signals.get(name)) is not None} for report in reports}
    new = {client: signals for client, signals in told.items() if wanted and len(signals) == len(wanted)}
    return {**history, **new} if new else history


def remembered(sampler: Sampler, lines: Iterable[Mapping[str, Any]]) -> History:
    """The history that the lines of clients.jsonl leave."""
    accepted = (line for line in lines if line["kind"] == "train" and line["accepted"])
    reports = [ClientReport(line["round"], line["client"], line["num_examples"], signals=line["signals"]) for line in accepted]
    return seen(sampler, NOTHING, reports)
