"""FAVOR: clients are chosen by a double DQN that sees the principal components of everybody's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Gt
from torch import Tensor

from fedaccord.core.algorithm import Positive, PositiveCount, Share
from fedaccord.core.arrays import load_arrays
from fedaccord.core.errors import ConfigError
from fedaccord.core.reports import lower_is_better, number
from fedaccord.core.rng import stream, torch_stream
from fedaccord.sampling.learner import Experience, SamplerState
from fedaccord.sampling.samplers import NOTHING, History

ADAM = (0.9, 0.999, 1e-8)
FARTHEST = 1e6  # from the basis' origin: what lies beyond stands there, so that no upload can break the network
PREFIX = "sampling."  # of its vectors in a checkpoint's file
LAYERS = tuple(f"{name}.{part}" for name in ("0", "1") for part in ("weight", "bias"))
COPIES = ("q", "target", "m.q", "v.q")  # of the network: the one that is trained, the one that judges, and Adam's moments
MEMORY = ("before", "after", "reward", "action")
VECTORS = {
    "mean",
    "basis",
    "clients",
    "global",
    *(f"{copy}.{layer}" for copy in COPIES for layer in LAYERS),
    *(f"memory.{n}" for n in MEMORY),
}


@dataclass(frozen=True)
class Favor:
    """The clients with the largest Q(s, a), some of them drawn at random instead (Wang et al. 2020, INFOCOM, "Optimizing Federated
    Learning on Non-IID Data with Reinforcement Learning").

    State s: components of the global model and of each client's last local model, (N + 1) x k; the basis is fitted once, on the local
    models of round 1, which asks everybody. Reward base^(accuracy - target) - 1 on VALIDATION data, never test data. Targets are double
    DQN's: r + gamma Q'(s', argmax_a Q(s', a)). The global model comes first in s and is no action: slot i of the outputs is client i.

    mode "one" trains as the paper does, one client a round; "deployed" asks the best `size` and learns nothing more; "top" asks the best
    `size` while it learns, each of them credited with the round's reward, and is ours. A run is an episode: `trained` names the checkpoint
    folder of an earlier one with the same clients and model, whose basis, network and transitions this one begins with.

    Deviations: round 1 counts like any other; Huber's loss, in place of the square; a run's last round is no terminal state; an action is
    to ask, so a client that does not answer, or whose upload is refused, has the round's reward as well. gamma, epsilon, lr, batch, memory,
    steps and sync are ours. A round costs k products with vectors [d] for each client, the first one a singular value decomposition of
    [N, d] in float64; a checkpoint grows by (k + 1) d numbers in float64, the network, and `memory` pairs of states.
    """

    size: PositiveCount = 10
    mode: Literal["top", "one", "deployed"] = "top"
    trained: str | None = None  # a folder checkpoints/NNNNNN; left out: it knows nothing at first
    components: PositiveCount = 100  # k, at most; never more than clients
    target: Share = 0.9  # accuracy
    base: Annotated[float, Gt(1)] = 64.0
    gamma: Share = 0.95
    epsilon: Share = 0.1  # of the picks, at random; none where it is deployed
    hidden: PositiveCount = 512
    lr: Positive = 1e-3
    memory: PositiveCount = 200  # transitions
    batch: PositiveCount = 16
    steps: PositiveCount = 4  # gradient steps a round
    sync: PositiveCount = 10  # rounds between copies into the target network
    metric: str = "accuracy"

    @property
    def asks(self) -> int:
        """Clients in a cohort after the first."""
        return 1 if self.mode == "one" else self.size

    def check(self, measured: Collection[str], population: int, d: int) -> None:
        """E208, E205, E110 and E301 when the run is built. measured: the metrics on validation data, none where there are none."""
        if self.mode == "deployed" and self.trained is None:
            raise ConfigError(
                "E208", "nothing is trained that could be deployed", "run.cohort.trained", "Name a checkpoint, or use mode top"
            )
        if self.mode != "deployed":
            self._check_metric(measured)
        if self.trained is not None:
            self._check_earlier(earlier(self.trained), population, d)

    def _check_metric(self, measured: Collection[str]) -> None:
        if not measured:
            what = "Favor is rewarded on validation data, and the task has none for a global model"
            raise ConfigError("E208", what, "run.cohort", "Give the task validation data (validation = 0.1), or sample uniformly")
        if self.metric not in measured or lower_is_better(self.metric):
            rising = ", ".join(name for name in measured if not lower_is_better(name)) or "none"
            what = f"no metric {self.metric!r} of which more is better"
            raise ConfigError("E205", what, "run.cohort.metric", f"The task measures: {rising}")

    def _check_earlier(self, kept: SamplerState, population: int, d: int) -> None:
        vectors = kept.vectors
        found = (*vectors["clients"].shape[:1], vectors["basis"].shape[1], *vectors["q.0.bias"].shape, *vectors["memory.reward"].shape)
        here = (population, d, self.hidden, self.memory)
        if found != here:
            names = ("clients", "weights", "hidden units", "transitions")
            odd = [f"{theirs} {name}, here {own}" for name, theirs, own in zip(names, found, here, strict=True) if theirs != own]
            what = f"what was trained has {'; '.join(odd)}"
            raise ConfigError("E110", what, "run.cohort.trained", "Its network belongs to the clients and the model it was trained with")

    def draw(self, round: int, population: int, seed: int, history: History = NOTHING) -> tuple[int, ...]:
        """The first round's cohort: everybody, since the state needs a local model of each."""
        if self.asks > population:
            raise ConfigError("E203", f"a cohort of {self.asks} out of {population} clients", "run.cohort", f"Ask for at most {population}")
        return tuple(range(population))

    def choose(self, round: int, population: int, seed: int, state: SamplerState, kept_out: Collection[int] = ()) -> tuple[int, ...]:
        """The cohort of a later round: who is in quarantine makes room for the next best."""
        if "basis" not in state.vectors:
            return tuple(client for client in self.draw(round, population, seed) if client not in kept_out)
        rng, values = stream(seed, "favor", round), self.scores(population, state)["q_value"]
        left = [client for client in values.argsort(descending=True, stable=True).tolist() if client not in kept_out]
        epsilon, chosen = 0.0 if self.mode == "deployed" else self.epsilon, list[int]()
        for _ in range(min(self.asks, len(left))):
            chosen.append(left.pop(int(rng.integers(len(left))) if rng.random() < epsilon else 0))
        return tuple(sorted(chosen))

    def scores(self, population: int, state: SamplerState) -> Mapping[str, Tensor]:
        """Q(s, a) of each client."""
        return {"q_value": network(state.vectors, "q", _observed(state.vectors), population)} if "basis" in state.vectors else {}

    def learned(self, state: SamplerState, seen: Experience, seed: int) -> SamplerState:
        """The state after a round. Without a reward it learns where everybody stands, and nothing else."""
        if "basis" not in state.vectors:
            return self._begun(seen, seed) if seen.deltas else state
        vectors = {**state.vectors, **_components(state.vectors, seen)}
        accuracy = number((seen.validation or {}).get(self.metric))
        if self.mode == "deployed" or accuracy is None:
            return state._replace(vectors=vectors)
        facts = {**state.facts, "rounds": state.facts["rounds"] + 1}
        reward = self.base ** max(-1.0, min(1.0, accuracy - self.target)) - 1
        facts, vectors = self._kept(facts, vectors, _observed(state.vectors), seen.cohort, reward)
        if facts["held"]:
            vectors = self._trained(facts, vectors, seen, seed)
        if facts["rounds"] % self.sync == 0:
            vectors = {**vectors, **_target(vectors)}
        return SamplerState(facts, vectors)

    def _begun(self, seen: Experience, seed: int) -> SamplerState:
        """After the first round: as an earlier run left it, or afresh. Who did not answer stands at the basis' origin."""
        if self.trained is not None:
            kept = earlier(self.trained)
            origin = {**kept.vectors, "clients": torch.zeros_like(kept.vectors["clients"])}
            return kept._replace(vectors={**origin, **_components(origin, seen)})
        local = torch.stack([_local(seen, client) for client in sorted(seen.deltas)])
        mean = local.mean(0)
        _, _, basis = torch.linalg.svd(local - mean, full_matrices=False)
        count = min(self.components, len(basis), seen.population)
        vectors: dict[str, Tensor] = {"mean": mean, "basis": basis[:count].contiguous()}
        vectors["clients"] = torch.zeros(seen.population, count, dtype=torch.float64)
        vectors |= _components(vectors, seen)
        inputs, n = (seen.population + 1) * count, seen.population
        generator = torch_stream(seed, "favor network")
        for name, (out, into) in (("0", (self.hidden, inputs)), ("1", (n, self.hidden))):
            weight = torch.randn(out, into, generator=generator, dtype=torch.float64) / math.sqrt(into)
            vectors |= {f"q.{name}.weight": weight, f"q.{name}.bias": torch.zeros(out, dtype=torch.float64)}
        vectors |= _target(vectors)
        vectors |= {f"{m}.{name}": torch.zeros_like(value) for name, value in vectors.items() if name.startswith("q.") for m in ("m", "v")}
        vectors |= {f"memory.{name}": torch.zeros(self.memory, inputs, dtype=torch.float32) for name in ("before", "after")}
        vectors |= {
            "memory.reward": torch.zeros(self.memory, dtype=torch.float64),
            "memory.action": torch.zeros(self.memory, dtype=torch.int64),
        }
        return SamplerState({"rounds": 1, "held": 0, "next": 0, "updates": 0}, vectors)

    def _kept(
        self, facts: dict[str, Any], vectors: Mapping[str, Tensor], before: Tensor, actions: Collection[int], reward: float
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """With one transition for each client that was asked; the oldest make room."""
        place, after = facts["next"], _observed(vectors)
        new = {name: vectors[f"memory.{name}"].clone() for name in MEMORY}
        for action in actions:
            new["before"][place], new["after"][place] = before.float(), after.float()
            new["reward"][place], new["action"][place] = reward, action
            place = (place + 1) % self.memory
        facts = {**facts, "next": place, "held": min(self.memory, facts["held"] + len(actions))}
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


def earlier(folder: str) -> SamplerState:
    """What a run's checkpoint holds of it. E301 where that cannot be read."""
    try:
        facts = json.loads((Path(folder) / "trust.json").read_text())["sampling"]
        arrays = load_arrays(Path(folder) / "trust.safetensors")
        vectors = {name: arrays[f"{PREFIX}{name}"] for name in sorted(VECTORS)}
        return SamplerState({name: int(facts[name]) for name in ("rounds", "held", "next", "updates")}, vectors)
    except Exception as problem:
        what = f"no trained Favor can be read ({type(problem).__name__}: {problem})"
        raise ConfigError("E301", what, folder, "Name a folder checkpoints/NNNNNN of a run with cohort = 'favor'") from problem


def _observed(vectors: Mapping[str, Tensor]) -> Tensor:
    """s [(N + 1) k], the global model first."""
    return torch.cat([vectors["global"], vectors["clients"].flatten()])


def _components(vectors: Mapping[str, Tensor], seen: Experience) -> dict[str, Tensor]:
    """Those of the new global model, and of the local models of this round; the others' stay."""
    mean, basis = vectors["mean"], vectors["basis"]
    clients = vectors["clients"].clone()
    for client in seen.deltas:
        clients[client] = (basis @ (_local(seen, client) - mean)).clamp(-FARTHEST, FARTHEST)
    return {"clients": clients, "global": (basis @ (seen.new_w.cpu().double() - mean)).clamp(-FARTHEST, FARTHEST)}


def _local(seen: Experience, client: int) -> Tensor:
    """The client's own model [d], float64: sums in float32 may overflow."""
    return seen.w.cpu().double() + seen.deltas[client].cpu().double()


def _target(vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.replace("q.", "target."): value.clone() for name, value in vectors.items() if name.startswith("q.")}
