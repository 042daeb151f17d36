"""Samplers that learn: what they are told of a round, and what they remember."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from fedaccord.sampling.samplers import Sampler


class SamplerState(NamedTuple):
    """What a sampler that learns remembers: plain JSON data, and vectors by name. Both lie in every checkpoint."""

    facts: Mapping[str, Any] = MappingProxyType({})
    vectors: Mapping[str, Tensor] = MappingProxyType({})


class Experience(NamedTuple):
    """What a round was, for a sampler that learns from it."""

    round: int
    population: int
    cohort: tuple[int, ...]  # who was asked, whether or not the upload counted
    w: Tensor  # [d], the model that was sent
    deltas: Mapping[int, Tensor]  # of those whose upload counted, w_K - w [d]
    new_w: Tensor  # [d]
    validation: Mapping[str, float] | None  # metrics of the new model on the server's validation data


@runtime_checkable
class Learner(Sampler, Protocol):
    """A sampler whose cohorts, that of round 1 too, are `choose`'s; `draw` is asked when the run is built, before there is any state."""

    def choose(self, round: int, population: int, seed: int, state: SamplerState, kept_out: Collection[int] = ()) -> tuple[int, ...]:
        """Client ids in ascending order, none of those that are kept out."""
        ...

    def learned(self, state: SamplerState, seen: Experience, seed: int) -> SamplerState:
        """The state after a round. Whatever clients sent, it does not raise."""
        ...

    def scores(self, population: int, state: SamplerState) -> Mapping[str, Tensor]:
        """What it thinks of each client, name -> [N], for the records of who is asked next; empty where it has no opinion yet."""
        ...
