"""Who is asked in a round."""

from __future__ import annotations

from fedaccord.sampling.favor import Favor
from fedaccord.sampling.learner import Experience, Learner, SamplerState
from fedaccord.sampling.samplers import (
    NOTHING,
    Coin,
    History,
    Sampler,
    Scripted,
    StabilityAware,
    Uniform,
    most_seen,
    remembered,
    seen,
)

SAMPLERS: dict[str, type] = {"uniform": Uniform, "coin": Coin, "scripted": Scripted, "stability_aware": StabilityAware, "favor": Favor}

__all__ = [
    "NOTHING",
    "SAMPLERS",
    "Coin",
    "Experience",
    "Favor",
    "History",
    "Learner",
    "Sampler",
    "SamplerState",
    "Scripted",
    "StabilityAware",
    "Uniform",
    "most_seen",
    "remembered",
    "seen",
]
