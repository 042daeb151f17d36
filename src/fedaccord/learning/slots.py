"""Several episodes as one vectorised environment of Stable-Baselines3: a slot is a client's place in a cohort.

A policy of ours is one small network for all clients, so each client's decision is a sample of its own, with a reward of its own; features
that pool over the cohort stand among its features. A slot is not always the same client, and rewards are paired within a round, so learners
use no discount: what a decision does to later rounds is not credited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policies.reward import SourceReward
from fedaccord.learning.episode import DenseReward, Episode, Learned, width
from fedaccord.learning.scenes import Scenes

Array = np.ndarray[Any, np.dtype[Any]]
COHORTS = (5, 5, 8, 14, 24, 40)  # one episode at a time of each size; 96 slots
BOUND = 3.0  # of the raw actions, before sigmoid or tanh
LEVELS = 10  # of weight, where a learner knows only discrete ones


class Slots(VecEnv):
    """One slot for each place of each cohort; those without a client this round see zeros and earn nothing.

    discrete: ten levels of weight, everybody accepted, as the source weighs DQN against PPO.
    """

    def __init__(
        self,
        policy: Learned,
        scenes: Scenes,
        seed: int,
        cohorts: Sequence[int] = COHORTS,
        discrete: bool = False,
        reward: DenseReward | SourceReward | None = None,
    ) -> None:
        self.policy, self.scenes, self._seed, self._cohorts, self._discrete, self._reward = policy, scenes, seed, cohorts, discrete, reward
        features, actions = width(policy)
        space: spaces.Space[Any] = spaces.Discrete(LEVELS) if discrete else spaces.Box(-BOUND, BOUND, (actions,), np.float32)
        super().__init__(sum(cohorts), spaces.Box(-10.0, 10.0, (features,), np.float32), space)
        self.episodes_done, self.gains = 0, list[float]()  # gains: of each finished episode, the mean over its rounds
        self._number = 0
        self._running: list[Episode] = []
        self._given: Array = np.zeros(0)

    def reset(self) -> Array:
        self._running = [self._new(cohort) for cohort in self._cohorts]
        self._of_episode: list[list[float]] = [[] for _ in self._cohorts]
        return self._observations()

    def step_async(self, actions: Array) -> None:
        self._given = np.asarray(actions)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        start = 0
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        ended = []
        for place, cohort in enumerate(self._cohorts):
            episode, end = self._running[place], start + cohort
            count = min(len(episode.view.clients), cohort)
            stepped = episode.step(self._actions(self._given[start:end], len(episode.view.clients)))
            rewards[start : start + count] = stepped.rewards.numpy()[:count]
            self._of_episode[place].append(stepped.gain)
            if stepped.done:
                dones[start:end] = True
                ended.append((place, start, end))
                self.gains.append(float(np.mean(self._of_episode[place])))
                self.episodes_done += 1
                self._of_episode[place] = []
                self._running[place] = self._new(cohort)
            start = end
        observations = self._observations()
        for _, first, last in ended:
            for slot in range(first, last):
                infos[slot]["terminal_observation"] = np.zeros_like(observations[slot])
        return observations, rewards, dones, infos

    def _actions(self, raw: Array, count: int) -> torch.Tensor:
        """What the policy takes, from a learner's numbers; a retrained client above the cohort's size decides as the last slot does."""
        rows = torch.from_numpy(np.resize(raw, (count, *raw.shape[1:])) if len(raw) < count else raw[:count]).double()
        if self._discrete:
            level = (rows + 0.5) / LEVELS
            return torch.stack([level, torch.ones_like(level)], dim=1) if isinstance(self.policy, PerClient) else (2 * level - 1)[:, None]
        return rows.sigmoid() if isinstance(self.policy, PerClient) else rows.tanh()

    def _new(self, cohort: int) -> Episode:
        """The next scene in which there is anything to decide."""
        while True:
            scene = self.scenes.draw(self._seed, self._number, cohort)
            self._number += 1
            episode = Episode(scene, self.policy, self._reward)
            if not episode.is_over:
                return episode

    def _observations(self) -> Array:
        found = np.zeros((self.num_envs, *(self.observation_space.shape or ())), np.float32)
        start = 0
        for episode, cohort in zip(self._running, self._cohorts, strict=True):
            rows = episode.features.numpy()[:cohort]
            found[start : start + len(rows)] = rows
            start += cohort
        return found

    def close(self) -> None:
        self._running = []

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * len(self._indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        method: Callable[..., Any] = getattr(self, method_name)
        return [method(*args, **kwargs)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(self._indices(indices))

    def _indices(self, indices: Any) -> list[int]:
        return list(range(self.num_envs)) if indices is None else [indices] if isinstance(indices, int) else list(indices)
