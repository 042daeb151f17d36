"""A policy beside FedAvg on scenes that it was not trained in: whole runs on the same seeds, each with its own trajectory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedaccord.aggregation.policies.per_client import PerClient
from fedaccord.aggregation.policy import BySize, Policy
from fedaccord.aggregation.screen import Screen
from fedaccord.learning.scenes import Scene, Scenes, built

HELD_OUT = 1_000_003  # the seeds of evaluations are those of trainings plus this


class Contestant(NamedTuple):
    """Who decides the weights."""

    policy: Policy | None = None  # None: FedAvg
    screen: Screen | None = None


class Score(NamedTuple):
    """One run's last round."""

    accuracy: float  # on the test data
    loss: float
    worst: float  # 95th percentile of the clients' losses on their own held-out examples


def evaluated(contestants: Mapping[str, Contestant], scenes: Scenes, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """One row a scene and contestant, as plain data."""
    for number in range(count):
        scene = scenes.draw(seed + HELD_OUT, number)
        for name, contestant in contestants.items():
            score = final(scene, contestant)
            yield {
                "scene": number,
                "source": scene.source,
                "clients": scene.clients,
                "cohort": scene.cohort,
                "alpha": scene.alpha,
                "absent": scene.absent,
                "attack": "none" if scene.attack is None else type(scene.attack).__name__,
                "contestant": name,
                **score._asdict(),
            }


def final(scene: Scene, contestant: Contestant) -> Score:
    """A whole run."""
    prepared = built(scene, contestant.policy or BySize(), contestant.screen)
    state = prepared.start
    for result in prepared.federation.run(state):
        state = result.state
    test = prepared.federation.evaluate_test(state.server.w, state.buffers).metrics or {}
    own = prepared.federation.runtime.evaluate(state.server.w, state.buffers, range(prepared.federation.runtime.population))
    losses = [each.metrics["loss"] for each in own if each.metrics and "loss" in each.metrics]
    return Score(test.get("accuracy", 0.0), test.get("loss", float("inf")), float(np.percentile(losses, 95)) if losses else float("nan"))


def paired(rows: Sequence[Mapping[str, Any]], name: str, other: str, what: str = "accuracy") -> dict[str, float]:
    """Mean difference over scenes with its 95% interval (Student's t)."""
    from scipy import stats

    values = {(row["scene"], row["contestant"]): float(row[what]) for row in rows}
    scenes = sorted({scene for scene, _ in values})
    differences = np.array([values[scene, name] - values[scene, other] for scene in scenes])
    if len(differences) < 2:
        return {"mean": float(differences.mean()), "low": float("nan"), "high": float("nan"), "scenes": len(differences)}
    half = float(stats.t.ppf(0.975, len(differences) - 1) * differences.std(ddof=1) / len(differences) ** 0.5)
    mean = float(differences.mean())
    return {"mean": mean, "low": mean - half, "high": mean + half, "scenes": len(differences)}


def rejected(policy: PerClient, scenes: Scenes, seed: int, count: int, cosine: float = 0.3, medians: float = 2.0) -> dict[str, int]:
    """Of the updates of known clients that point elsewhere (cosine below) and are too long (norm above so many medians): how many there
    were and how many the policy rejected; and the same of all others."""
    found = {"bad": 0, "bad_rejected": 0, "others": 0, "others_rejected": 0}
    for number in range(count):
        prepared = built(scenes.draw(seed + HELD_OUT, number), policy)
        federation, state = prepared.federation, prepared.start
        while state.round < federation.rounds:
            collected = federation.collect(state)
            view, memory = collected.examined.view, collected.state.trust.facts.get("policy", {})
            state = federation.conclude(collected).state
            if view is None:
                continue
            weights = policy.weigh(view, memory).weights
            norms, directions = view.figures["norm"], view.figures["direction"]
            is_bad = (directions < cosine) & (norms > medians * norms.quantile(0.5))
            is_known = [str(client) in memory.get("clients", {}) for client in view.clients]
            for bad, known, gone in zip(is_bad.tolist(), is_known, (weights == 0).tolist(), strict=True):
                if known:
                    kind = "bad" if bad else "others"
                    found[kind] += 1
                    found[f"{kind}_rejected"] += int(gone)
    return found
