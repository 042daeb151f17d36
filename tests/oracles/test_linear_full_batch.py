"""Our methods against the trajectories that the FedSMOO authors' own simulator computes (FL-Simulator), replayed through the public API."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa

TOLERANCE = 1e-6  # of the distance moved in the round


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    folder = Path(os.environ.get("FEDACCORD_ORACLES", Path(__file__).parents[2].parent / "shared" / "oracles"))
    if not (folder / "linear_full_batch.npz").exists():
        pytest.skip(f"no reference numbers in {folder}: set FEDACCORD_ORACLES")
    with np.load(folder / "linear_full_batch.npz") as file:
        found = dict(file)
    return found | {"config": json.loads(str(found["config"]))}


def replay(oracle: dict[str, Any], algorithm: Any, **options: Any) -> np.ndarray:
    """Global weights [rounds + 1, d] of `algorithm` under the reference's conventions."""
    config, x, y = oracle["config"], oracle["client_x"], oracle["client_y"]
    num_clients, num_examples, num_features = x.shape
    task = fa.Task(
        model=nn.Linear(num_features, config["C"]),
        loss=F.cross_entropy,
        train=fa.Examples(
            torch.from_numpy(x.reshape(-1, num_features)), torch.from_numpy(y.reshape(-1)), np.repeat(np.arange(num_clients), num_examples)
        ),
        test=(x[0], y[0]),
    )
    run = fa.run(
        task,
        algorithm,
        partition=fa.NaturalIds(),
        cohort=[np.flatnonzero(active).tolist() for active in oracle["active"]],
        rounds=config["T"],
        local=fa.LocalPlan(
            lr=config["lr"],
            epochs=config["EP"],
            batch_size="full",
            schedule=fa.Exponential(config["decay"]),
            weight_decay=config["wd"],
            clip_norm=10.0,
            clip_scope="reference",
        ),
        policy=fa.Equal(),
        client_test=0.0,
        initial=torch.from_numpy(oracle["w0"]),
        **options,
    )
    return np.stack([run.weights(t).numpy() for t in range(config["T"] + 1)])


METHODS = {
    "FedAvg": lambda c: fa.FedAvg(),
    "FedProx": lambda c: fa.FedProx(mu=c["lamb"]),
    "SCAFFOLD": lambda c: fa.Scaffold(),
    "FedDyn": lambda c: fa.FedDyn(alpha=c["lamb"]),
    "FedSAM": lambda c: fa.FedSAM(rho=c["rho"]),
    "FedCM": lambda c: fa.FedCM(alpha=c["alpha"]),
    "MoFedSAM": lambda c: fa.MoFedSAM(rho=c["rho"], alpha=c["alpha"]),
    "FedGamma": lambda c: fa.FedGamma(rho=c["rho"]),
    "FedSpeed": lambda c: fa.FedSpeed(rho=c["rho"], alpha=c["lamb"]),
    "FedSMOO": lambda c: fa.FedSMOO(rho=c["rho"], beta=1 / c["lamb"]),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_round_matches_the_reference(oracle: dict[str, Any], name: str) -> None:
    ours, theirs = replay(oracle, METHODS[name](oracle["config"])), np.concatenate([oracle["w0"][None], oracle[f"traj_{name}"]])
    for t in range(1, len(theirs)):
        moved = np.linalg.norm(theirs[t] - theirs[0])
        assert np.linalg.norm(ours[t] - theirs[t]) <= TOLERANCE * moved, f"round {t}"


def test_server_adam_around_fedavg_matches_the_reference(oracle: dict[str, Any]) -> None:
    optimizer = fa.ServerAdam(lr=0.1, beta1=0.9, beta2=0.99, tau=0.01, initial_v=0.0)
    ours, theirs = replay(oracle, fa.FedAvg(), server_optimizer=optimizer), np.concatenate([oracle["w0"][None], oracle["traj_FedAdam"]])
    for t in range(1, len(theirs)):
        assert np.linalg.norm(ours[t] - theirs[t]) <= TOLERANCE * np.linalg.norm(theirs[t] - theirs[0]), f"round {t}"


def test_another_learning_rate_does_not_match(oracle: dict[str, Any]) -> None:
    """The comparison is alive: a change of 0.1% is seen."""
    changed = oracle | {"config": oracle["config"] | {"lr": oracle["config"]["lr"] * 1.001}}
    ours, theirs = replay(changed, fa.FedAvg()), oracle["traj_FedAvg"]
    assert np.linalg.norm(ours[-1] - theirs[-1]) > TOLERANCE * np.linalg.norm(theirs[-1] - oracle["w0"])
