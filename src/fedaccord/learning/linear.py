"""The linear policy, its coefficients found by CMA-ES: episodes are played as they are, so nothing has to be differentiated."""

from __future__ import annotations

import time
from collections.abc import Callable

import cma
import numpy as np
import torch
from torch import Tensor

from fedaccord.aggregation.policies.features import RELATIVE
from fedaccord.aggregation.policies.residual import Residual
from fedaccord.learning.episode import Episode
from fedaccord.learning.scenes import Scene, Scenes

CLEAR = 0.003  # penalty on squared coefficients


def layers_from(coefficients: np.ndarray) -> dict[str, Tensor]:
    """One layer without a hidden one: f(x) = a x + b."""
    given = torch.from_numpy(np.asarray(coefficients, dtype=np.float64))
    return {"0.weight": given[None, :-1].clone(), "0.bias": given[-1:].clone()}


def fit(
    scenes: Scenes,
    seed: int,
    minutes: float,
    evaluations: int = 10**6,
    per_point: int = 6,
    told: Callable[[int, float, float], None] = lambda *_: None,
) -> dict[str, Tensor]:
    """The layers of the best mean found. Each generation meets scenes of its own, the same ones for all of its points."""
    begun, count = time.monotonic(), 0
    search = cma.CMAEvolutionStrategy(np.zeros(len(RELATIVE) + 1), 0.3, {"seed": seed + 1, "verbose": -9, "popsize": 12})
    generation = 0
    while (time.monotonic() - begun) / 60 < minutes and count < evaluations:
        points = search.ask()
        chosen = [scenes.draw(seed, generation * per_point + i) for i in range(per_point)]
        costs = [-np.mean([play(point, scene) for scene in chosen]) + CLEAR * float(np.square(point).sum()) for point in points]
        search.tell(points, costs)
        generation, count = generation + 1, count + len(points) * per_point
        told(count, -float(np.min(costs)), (time.monotonic() - begun) / 60)
    return layers_from(search.result.xfavorite)


def play(coefficients: np.ndarray, scene: Scene) -> float:
    """The mean reward of an episode."""
    episode, layers = Episode(scene, Residual(weights="untrained")), layers_from(coefficients)
    rewards = []
    while not episode.is_over:
        tilt = (episode.features @ layers["0.weight"].T + layers["0.bias"]).tanh()
        rewards.append(float(episode.step(tilt).rewards.mean()))
    return float(np.mean(rewards)) if rewards else 0.0
