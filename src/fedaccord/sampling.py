"""Who is asked in a round. Cohorts come from the stream (seed, "cohort", round), so all methods of one seed see the same clients."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedaccord.core.algorithm import PositiveCount, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream


class Sampler(Protocol):
    def draw(self, round: int, population: int, seed: int) -> tuple[int, ...]:
        """Client ids in ascending order; empty where nobody is asked. `round` is counted from 1."""
        ...


@dataclass(frozen=True)
class Uniform:
    """`size` clients, each set equally likely. The cost follows `size`, not the population."""

    size: PositiveCount = 10

    def draw(self, round: int, population: int, seed: int) -> tuple[int, ...]:
        if self.size > population:
            raise ConfigError("E203", f"a cohort of {self.size} out of {population} clients", "run.cohort", f"Ask for at most {population}")
        chosen = stream(seed, "cohort", round).choice(population, self.size, replace=False, shuffle=False)
        return tuple(sorted(int(client) for client in chosen))


@dataclass(frozen=True)
class Coin:
    """Each client independently with probability `rate`; an empty draw is repeated, up to 1,000 times."""

    rate: Share = 0.1

    def draw(self, round: int, population: int, seed: int) -> tuple[int, ...]:
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

    def draw(self, round: int, population: int, seed: int) -> tuple[int, ...]:
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


SAMPLERS: dict[str, type] = {"uniform": Uniform, "coin": Coin, "scripted": Scripted}
