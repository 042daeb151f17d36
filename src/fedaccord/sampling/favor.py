"""FAVOR: clients are chosen by a double DQN that sees the principal components of everybody's weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from fedaccord.core.algorithm import Positive, PositiveCount, Share
from fedaccord.core.errors import ConfigError
from fedaccord.core.rng import stream, torch_stream
from fedaccord.sampling.samplers import NOTHING, History

ADAM = (0.9, 0.999, 1e-8)


class SamplerState(NamedTuple):
    """What a sampler that learns remembers: plain JSON data, and vectors by name."""

    facts: Mapping[str, Any] = MappingProxyType({})
    vectors: Mapping[str, Tensor] = MappingProxyType({})


class Experience(NamedTuple):
    """What a round was, for a sampler that learns from it."""

    round: int
    population: int
    cohort: tuple[int, ...]
    w: Tensor  # [d], the model that was sent
    deltas: Mapping[int, Tensor]  # of those whose upload counted, w_K - w [d]
    new_w: Tensor  # [d]
    validation: Mapping[str, float] | None  # metrics of the new model on the server's validation data


@dataclass(frozen=True)
class Favor:
    """Top `size` clients by Q(s, a), some of them drawn at random; learned while the run goes on (Wang et al. 2020, INFOCOM).

    State s: components of the global model and of each client's last local model, (N + 1) x k; the basis is fitted once, on the local
    models of round 1, which asks everybody. Reward 64^(accuracy - target) - 1 on VALIDATION data, never test data. Targets are double
    DQN's: r + gamma Q'(s', argmax_a Q(s', a)), each picked client with the round's reward. The global model comes first in s and is no
    action: slot i of the outputs is client i. mode "one": a single client a round, as the paper trains; else its deployment.
    """

    size: PositiveCount = 10
    mode: Literal["top", "one"] = "top"
    components: PositiveCount = 100  # at most; never more than clients
    target: Share = 0.9  # accuracy
    base: Annotated[float, Gt(1)] = 64.0
    gamma: Share = 0.95
    epsilon: Share = 0.1  # of the picks, at random
    hidden: PositiveCount = 512
    lr: Positive = 1e-3
    memory: PositiveCount = 200  # transitions
    batch: PositiveCount = 16
    steps: PositiveCount = 4  # gradient steps a round
    sync: PositiveCount = 10  # rounds between copies into the target network
    metric: str = "accuracy"

    learns: ClassVar[bool] = True
    needs_validation: ClassVar[bool] = True

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        """The first round's cohort: everybody, since the basis is fitted on all local models."""
        if self._wanted() > population:
            raise ConfigError("E203", f"a cohort of {self.size} out of {population} clients", "run.cohort", f"Ask for at most {population}")
        return tuple(range(population))

    def choose(self, round: int, population: int, seed: int, state: SamplerState) -> tuple[int, ...]:
        """The cohort of a later round."""
        if "basis" not in state.vectors:
            return self.draw(round, population, seed)
        rng, values = stream(seed, "favor", round), network(state.vectors, "q", self._observed(state), population)
        order = values.argsort(descending=True, stable=True).tolist()
        chosen: list[int] = []
        for _ in range(self._wanted()):
            left = [client for client in order if client not in chosen]
            chosen.append(int(rng.choice(left)) if rng.random() < self.epsilon else left[0])
        return tuple(sorted(chosen))

    def learned(self, state: SamplerState, seen: Experience, seed: int) -> SamplerState:
        """The state after a round."""
        if not seen.deltas:
            return state
        if "basis" not in state.vectors:
            return self._begun(seen, seed)
        before = self._observed(state)
        vectors = {**state.vectors, **self._components(state.vectors, seen)}
        after = torch.cat([vectors["global"], vectors["clients"].flatten()])
        accuracy = (seen.validation or {}).get(self.metric)
        facts = {**state.facts, "rounds": state.facts["rounds"] + 1}
        if accuracy is not None:
            reward = self.base ** (accuracy - self.target) - 1
            for client in sorted(seen.deltas):
                facts, vectors = self._kept(facts, vectors, before, client, reward, after)
            vectors = self._trained(facts, vectors, seen, seed)
        if facts["rounds"] % self.sync == 0:
            vectors = vectors | {name.replace("q.", "target."): value.clone() for name, value in vectors.items() if name.startswith("q.")}
        return SamplerState(facts, vectors)

    def _wanted(self) -> int:
        return 1 if self.mode == "one" else self.size

    def _observed(self, state: SamplerState) -> Tensor:
        """s [(N + 1) k], the global model first."""
        return torch.cat([state.vectors["global"], state.vectors["clients"].flatten()])

    def _begun(self, seen: Experience, seed: int) -> SamplerState:
        """Basis and networks, from the local models of a round in which everybody was asked; who did not answer stands at the mean."""
        local = torch.stack([seen.w.double() + seen.deltas[client].double() for client in sorted(seen.deltas)])
        mean = local.mean(0)
        _, _, basis = torch.linalg.svd(local - mean, full_matrices=False)
        count = min(self.components, len(basis), seen.population)
        vectors: dict[str, Tensor] = {"mean": mean, "basis": basis[:count].contiguous()}
        vectors["clients"] = torch.zeros(seen.population, count, dtype=torch.float64)
        vectors |= self._components(vectors, seen)
        inputs, n = (seen.population + 1) * count, seen.population
        generator = torch_stream(seed, "favor network")
        for name, (out, into) in (("0", (self.hidden, inputs)), ("1", (n, self.hidden))):
            weight = torch.randn(out, into, generator=generator, dtype=torch.float64) / math.sqrt(into)
            vectors |= {f"q.{name}.weight": weight, f"q.{name}.bias": torch.zeros(out, dtype=torch.float64)}
        vectors |= {name.replace("q.", "target."): value.clone() for name, value in vectors.items() if name.startswith("q.")}
        vectors |= {f"{m}.{name}": torch.zeros_like(value) for name, value in vectors.items() if name.startswith("q.") for m in ("m", "v")}
        vectors |= {f"memory.{name}": torch.zeros(self.memory, inputs, dtype=torch.float32) for name in ("before", "after")}
        vectors |= {
            "memory.reward": torch.zeros(self.memory, dtype=torch.float64),
            "memory.action": torch.zeros(self.memory, dtype=torch.int64),
        }
        return SamplerState({"rounds": 1, "held": 0, "next": 0, "updates": 0}, vectors)

    def _components(self, vectors: Mapping[str, Tensor], seen: Experience) -> dict[str, Tensor]:
        """Those of the new global model, and of the local models of this round; the others' stay."""
        mean, basis = vectors["mean"], vectors["basis"]
        clients = vectors["clients"].clone()
        for client, delta in seen.deltas.items():
            clients[client] = basis @ (seen.w.double() + delta.double() - mean)
        return {"clients": clients, "global": basis @ (seen.new_w.double() - mean)}

    def _kept(
        self, facts: dict[str, Any], vectors: Mapping[str, Tensor], before: Tensor, action: int, reward: float, after: Tensor
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        place = facts["next"]
        new = {name: vectors[f"memory.{name}"].clone() for name in ("before", "after", "reward", "action")}
        new["before"][place], new["after"][place] = before.float(), after.float()
        new["reward"][place], new["action"][place] = reward, action
        facts = {**facts, "next": (place + 1) % self.memory, "held": min(self.memory, facts["held"] + 1)}
        return facts, {**vectors, **{f"memory.{name}": value for name, value in new.items()}}

    def _trained(self, facts: dict[str, Any], vectors: dict[str, Tensor], seen: Experience, seed: int) -> dict[str, Tensor]:
        """Some steps of Adam on Huber's loss of the double DQN's targets. Counts its updates in `facts`."""
        rng = stream(seed, "favor replay", seen.round)
        names = [name for name in vectors if name.startswith("q.")]
        for _ in range(self.steps):
            rows = torch.from_numpy(rng.integers(facts["held"], size=self.batch))
            before, after = (vectors[f"memory.{name}"][rows].double() for name in ("before", "after"))
            targets = double_dqn_targets(vectors, after, vectors["memory.reward"][rows], self.gamma, seen.population)
            own = {name: vectors[name].detach().requires_grad_() for name in names}
            values = network(own, "q", before, seen.population)
            loss = F.smooth_l1_loss(values.gather(1, vectors["memory.action"][rows][:, None])[:, 0], targets)
            gradients = torch.autograd.grad(loss, list(own.values()))
            facts["updates"] += 1
            vectors = {**vectors, **_adam(vectors, dict(zip(names, gradients, strict=True)), self.lr, facts["updates"])}
        return vectors


def network(vectors: Mapping[str, Tensor], name: str, states: Tensor, population: int) -> Tensor:
    """Q values [..., N] of states [..., (N + 1) k]: two layers, ReLU between them."""
    hidden = F.relu(F.linear(states, vectors[f"{name}.0.weight"], vectors[f"{name}.0.bias"]))
    values = F.linear(hidden, vectors[f"{name}.1.weight"], vectors[f"{name}.1.bias"])
    assert values.shape[-1] == population
    return values


def double_dqn_targets(vectors: Mapping[str, Tensor], after: Tensor, rewards: Tensor, gamma: float, population: int) -> Tensor:
    """r + gamma Q'(s', argmax_a Q(s', a)) [B]: one network chooses, the other judges (van Hasselt et al. 2016, arXiv:1509.06461)."""
    best = network(vectors, "q", after, population).argmax(1, keepdim=True)
    return rewards + gamma * network(vectors, "target", after, population).gather(1, best)[:, 0]


def _adam(vectors: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: float, step: int) -> dict[str, Tensor]:
    beta1, beta2, eps = ADAM
    new: dict[str, Tensor] = {}
    for name, gradient in gradients.items():
        m = beta1 * vectors[f"m.{name}"] + (1 - beta1) * gradient
        v = beta2 * vectors[f"v.{name}"] + (1 - beta2) * gradient.square()
        moved = lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
        new |= {f"m.{name}": m, f"v.{name}": v, name: vectors[name] - moved}
    return new
