"""The learners of Stable-Baselines3 on `Slots`, and the network that each leaves, as the layers of a policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn

from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.learning.slots import Slots

Learner = Literal["ppo", "a2c_delayed", "dqn"]
HIDDEN = (32, 32)


@dataclass(frozen=True)
class Training:
    """How long and how."""

    learner: Learner = "ppo"
    minutes: float = 30.0
    episodes: int = 5000  # at most; whichever comes first
    seed: int = 0
    learning_rate: float = 1e-3
    clip: float = 0.2
    batch: int = 128
    rounds: int = 32  # of each slot between two updates
    delay: int = 3  # updates by which the acting policy of a2c_delayed is behind


class Delayed(A2C):
    """A2C whose rollouts come from the policy of some updates ago, as clients on weak networks would act in A3C."""

    delay = 3

    def collect_rollouts(self, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        past: list[dict[str, Tensor]] = self.__dict__.setdefault("_past", [])
        now = {name: value.clone() for name, value in self.policy.state_dict().items()}
        past.append(now)
        self.policy.load_state_dict(past[0])
        if len(past) > self.delay:
            past.pop(0)
        going_on = super().collect_rollouts(env, callback, rollout_buffer, n_rollout_steps)
        self.policy.load_state_dict(now)
        return going_on

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_past"]


def train(slots: Slots, training: Training, told: Callable[[int, float, float], None] = lambda *_: None) -> dict[str, Tensor]:
    """The trained layers. told: (episodes, mean gain of the last hundred, minutes) now and then. Same seed and episodes, same layers."""
    model = _model(slots, training)
    _start_neutral(model)
    model.learn(10**9, callback=_Until(slots, training, told))
    return layers_of(model)


def _model(slots: Slots, t: Training) -> BaseAlgorithm:
    common: dict[str, Any] = {"seed": t.seed, "device": "cpu", "learning_rate": t.learning_rate, "gamma": 0.0, "verbose": 0}
    shape = {"activation_fn": nn.Tanh, "net_arch": list(HIDDEN)}
    if t.learner == "dqn":
        return DQN(
            "MlpPolicy",
            slots,
            policy_kwargs=shape,
            batch_size=t.batch,
            buffer_size=50_000,
            train_freq=t.rounds,
            gradient_steps=64,
            **common,
        )
    shape["log_std_init"] = 0.3 if isinstance(slots.policy, PerClient) else -1.2  # acceptance turns only at 0.85 and 0.15
    if t.learner == "a2c_delayed":
        model = Delayed("MlpPolicy", slots, policy_kwargs=shape, n_steps=8, gae_lambda=0.0, **common)
        model.delay = t.delay
        return model
    return PPO(
        "MlpPolicy",
        slots,
        policy_kwargs=shape,
        n_steps=t.rounds,
        batch_size=t.batch,
        n_epochs=6,
        clip_range=t.clip,
        gae_lambda=0.0,
        ent_coef=0.0,
        **common,
    )


def _start_neutral(model: BaseAlgorithm) -> None:
    """The last layer of the actor is zero at first: FedAvg's weights, or a half of everything."""
    if isinstance(model, A2C | PPO):
        last = _linear(model)[-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)


def layers_of(model: BaseAlgorithm) -> dict[str, Tensor]:
    """The actor's layers, named as `network.forward` wants them; of DQN those that give the values of the ten levels."""
    found: dict[str, Tensor] = {}
    for i, layer in enumerate(_linear(model)):
        found |= {f"{i}.weight": layer.weight.detach().double().clone(), f"{i}.bias": layer.bias.detach().double().clone()}
    return found


def _linear(model: BaseAlgorithm) -> list[nn.Linear]:
    policy: Any = model.policy
    parts = [policy.q_net.q_net] if isinstance(model, DQN) else [policy.mlp_extractor.policy_net, policy.action_net]
    return [each for part in parts for each in part.modules() if isinstance(each, nn.Linear)]


class _Until(BaseCallback):
    """Ends the training by episodes or by the clock, whichever comes first."""

    def __init__(self, slots: Slots, training: Training, told: Callable[[int, float, float], None]) -> None:
        super().__init__()
        self._slots, self._training, self._told = slots, training, told
        self._begun, self._told_at = time.monotonic(), 0

    def _on_step(self) -> bool:
        done, minutes = self._slots.episodes_done, (time.monotonic() - self._begun) / 60
        if done - self._told_at >= 50:
            self._told_at = done
            recent = self._slots.gains[-100:]
            self._told(done, sum(recent) / len(recent), minutes)
        return done < self._training.episodes and minutes < self._training.minutes
