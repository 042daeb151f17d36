"""Pre-training from a seed to a file: the layers as safetensors, the learning curve, and what the card says."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.core.arrays import save_arrays
from fedaccord.learning.episode import Learned
from fedaccord.learning.learners import Training, train
from fedaccord.learning.linear import fit
from fedaccord.learning.scenes import Scenes
from fedaccord.learning.slots import Slots

Kind = Literal["residual", "linear", "per_client"]
Told = Callable[[int, float, float], None]


@dataclass(frozen=True)
class Pretraining:
    """All that fixes the result, but for the clock: trainings that end by `minutes` end where the machine has come to."""

    kind: Kind = "residual"
    training: Training = field(default_factory=Training)
    scenes: Scenes = field(default_factory=Scenes)


def untrained_policy(kind: Kind) -> Learned:
    return PerClient(weights="untrained") if kind == "per_client" else Residual(weights="untrained")


def pretrain(plan: Pretraining, out: Path, told: Told = lambda *_: None) -> dict[str, Any]:
    """Train, and write `out` (safetensors), beside it the curve (.csv); returns the card's figures."""
    curve: list[tuple[int, float, float]] = []

    def noted(episodes: int, gain: float, minutes: float) -> None:
        curve.append((episodes, gain, minutes))
        told(episodes, gain, minutes)

    if plan.kind == "linear":
        layers = fit(plan.scenes, plan.training.seed, plan.training.minutes, plan.training.episodes, told=noted)
        episodes = curve[-1][0] if curve else 0
    else:
        slots = Slots(untrained_policy(plan.kind), plan.scenes, plan.training.seed, discrete=plan.training.learner == "dqn")
        layers = train(slots, plan.training, noted)
        episodes = slots.episodes_done
    out.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(layers, out)
    with out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("episodes", "gain", "minutes"))
        writer.writerows((count, f"{gain:.6g}", f"{minutes:.3g}") for count, gain, minutes in curve)
    scenes = {name: value for name, value in asdict(plan.scenes).items() if value is not None}
    return {"kind": plan.kind, "episodes": episodes, "training": asdict(plan.training), "scenes": scenes}
