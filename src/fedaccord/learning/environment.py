"""A Gymnasium environment that steps a real federation: one step is one round, one episode is one run of a scene drawn anew."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from fedaccord.aggregation.policies.residual import Residual
from fedaccord.learning.episode import Episode, Learned, width
from fedaccord.learning.scenes import Scenes

Array = np.ndarray[Any, np.dtype[Any]]


class FederationEnv(gymnasium.Env[Array, Array]):
    """Observation [most, F + 1]: a row for each client of the round, its features and a 1; zeros below. Action [most, A] in [-1, 1]: rows
    of clients count (Residual: the tilt; PerClient: weight and probability of acceptance, 0 is a half). Reward: the mean of the clients'.

    Each reset draws a scene from `scenes`; the same seed gives the same scenes in the same order.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, scenes: Scenes | None = None, policy: Learned | None = None, most: int = 200) -> None:
        self.scenes, self.policy = scenes or Scenes(cohorts=(5, most)), policy or Residual(weights="untrained")
        self._most, (features, actions) = most, width(self.policy)
        self.observation_space = spaces.Box(-10.0, 10.0, (most, features + 1), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (most, actions), np.float32)
        self._seed, self._number = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """A new scene. options: {"scene": a Scene} instead of a drawn one."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._number = seed, 0
        scene = (options or {}).get("scene") or self.scenes.draw(self._seed, self._number)
        self._number += 1
        self.episode = Episode(scene, self.policy)
        return self._observation(), {"scene": scene._asdict()}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One round."""
        given = torch.from_numpy(np.asarray(action, dtype=np.float64)[: len(self.episode.view.clients)]).clamp(-1, 1)
        done = self.episode.step(given if isinstance(self.policy, Residual) else (1 + given) / 2)
        return self._observation(), float(done.rewards.mean()), done.done, False, {"gain": done.gain, "round": done.result.report.round}

    def _observation(self) -> Array:
        found = np.zeros(self.observation_space.shape or (), dtype=np.float32)
        if not self.episode.is_over:
            rows = self.episode.features.numpy()
            found[: len(rows), :-1], found[: len(rows), -1] = rows, 1.0
        return found
