"""Learning between runs, from what a run has written down: features, actions and what came of them.

The journal's actions come from an older policy, and PPO has no use for those. Stable-Baselines3's TD3 learns off-policy, with a critic of
its own: here without discount, as everywhere in this room, on a buffer in which rounds with a large reward come twice as often (the source
favours |r| > 0.5). The journal must hold noise (`explore` above 0): without it no action can be told from another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import TD3
from torch import Tensor, nn

from fedaccord.aggregation.policies.features import RELATIVE
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import number

LARGE = 0.5  # a reward that comes twice as often
FEWEST = 200  # decisions


class Journal(NamedTuple):
    """Decisions of `Residual`, one row a client and round."""

    features: np.ndarray[Any, np.dtype[np.float32]]  # [n, F]
    tilts: np.ndarray[Any, np.dtype[np.float32]]  # [n, 1]
    rewards: np.ndarray[Any, np.dtype[np.float32]]  # [n]


def journal_of(rounds: Sequence[Mapping[str, Any]], clients: Sequence[Mapping[str, Any]], scale: float = 20.0) -> Journal:
    """From the lines of rounds.jsonl and clients.jsonl: the shared reward of each round that was scored, for each of its decisions.

    E208 where the run has no scored decisions, or all of them are one and the same.
    """
    gains = {}
    for line in rounds:
        by_size, policy = (number((line.get("trust") or {}).get(name)) for name in ("loss_by_size", "loss_policy"))
        if by_size is not None and policy is not None:
            gains[line["round"]] = scale * (by_size - policy) / max(abs(by_size), 1e-12)
    rows = [
        ([number(line["judged"].get(f"feature_{name}")) or 0.0 for name in RELATIVE], line["judged"]["tilt"], gains[line["round"]])
        for line in clients
        if line["kind"] == "train" and line["round"] in gains and number((line.get("judged") or {}).get("tilt")) is not None
    ]
    if len(rows) < FEWEST or len({row[1] for row in rows}) < 2:
        what = f"the run has {len(rows)} scored decisions that differ in nothing" if rows else "the run has no scored decisions"
        remedy = "Run with policy residual, explore = 0.3 and validation data, for some tens of rounds"
        raise ConfigError("E208", what, "policy train --journal", remedy)
    features, tilts, rewards = zip(*rows, strict=True)
    as_array = [np.asarray(each, dtype=np.float32) for each in (features, tilts, rewards)]
    return Journal(as_array[0], as_array[1][:, None], as_array[2].clip(-2, 2))


def refined(layers: Mapping[str, Tensor], journal: Journal, seed: int = 0, steps: int = 2000) -> dict[str, Tensor]:
    """The layers after `steps` gradient steps of TD3 on the journal, begun from `layers` [F -> 1]."""
    hidden = [layers[f"{i}.weight"].shape[0] for i in range(len(layers) // 2 - 1)]
    model = TD3(
        "MlpPolicy",
        _Place(journal.features.shape[1]),
        gamma=0.0,
        learning_rate=3e-4,
        batch_size=128,
        buffer_size=2 * len(journal.rewards) + 1,
        policy_delay=2,
        policy_kwargs={"activation_fn": nn.Tanh, "net_arch": {"pi": hidden, "qf": [64, 64]}},
        seed=seed,
        device="cpu",
    )
    actor: Any = model.actor
    linear = [each for each in actor.mu if isinstance(each, nn.Linear)]
    with torch.no_grad():
        for i, layer in enumerate(linear):
            layer.weight.copy_(layers[f"{i}.weight"])
            layer.bias.copy_(layers[f"{i}.bias"])
    model.actor_target.load_state_dict(model.actor.state_dict())
    buffer: Any = model.replay_buffer
    for feature, tilt, reward in zip(*journal, strict=True):
        for _ in range(2 if abs(float(reward)) > LARGE else 1):
            buffer.add(feature[None], feature[None], tilt[None], np.array([reward]), np.array([True]), [{}])
    model._setup_learn(steps, None)
    model.train(gradient_steps=steps, batch_size=128)
    found: dict[str, Tensor] = {}
    for i, layer in enumerate(linear):
        found |= {f"{i}.weight": layer.weight.detach().double().clone(), f"{i}.bias": layer.bias.detach().double().clone()}
    return found


class _Place(gymnasium.Env[Any, Any]):
    """What TD3 asks of an environment that it never steps: the shapes."""

    def __init__(self, features: int) -> None:
        self.observation_space = spaces.Box(-10.0, 10.0, (features,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(self.observation_space.shape or (), np.float32), {}
