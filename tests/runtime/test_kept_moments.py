"""Local momentum that is reset in each round, or kept from one of a client's rounds to its next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedaccord as fa


def line() -> fa.Task:
    """Loss w on one weight: the gradient is 1 everywhere."""
    return fa.Task(
        model=nn.Linear(1, 1, bias=False),
        loss=lambda outputs, y: outputs.mean(),
        train=(torch.ones(2, 1), torch.zeros(2)),
        test=(torch.ones(1, 1), torch.zeros(1)),
    )


def end(keep: bool, **changes: Any) -> list[float]:
    plan = fa.LocalPlan(lr=0.1, epochs=1, batch_size="full", optimizer=fa.Sgd(momentum=0.5), keep_moments=keep)
    options: dict[str, Any] = {"cohort": 1, "rounds": 3, "client_test": 0.0, "initial": torch.tensor([1.0])} | changes
    run = fa.run(line(), fa.FedAvg(), partition=fa.IID(clients=1), local=plan, **options)
    return [float(run.weights(t)) for t in range(1, 4)]


def test_momentum_is_reset_or_kept_by_hand() -> None:
    """Reset: 0.1 a round. Kept: m = 1, 1.5, 1.75, so 1 - 0.1, - 0.15, - 0.175."""
    assert end(False) == pytest.approx([0.9, 0.8, 0.7])
    assert end(True) == pytest.approx([0.9, 0.75, 0.575])


@pytest.mark.parametrize("state", ["memory", "disk"])
@pytest.mark.parametrize("optimizer", [fa.Sgd(momentum=0.9), fa.Adam(), fa.Sgd()], ids=repr)
def test_kept_moments_survive_a_resume_to_the_bit(tmp_path: Path, state: str, optimizer: Any) -> None:
    plan = fa.LocalPlan(lr=0.01, epochs=1, optimizer=optimizer, keep_moments=True)
    options: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "local": plan, "state": state, "checkpoint_every": 2}
    task = fa.digits(model="softmax")

    class Interrupt:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 3:
                raise KeyboardInterrupt

    whole = fa.run(task, fa.FedSMOO(), rounds=6, folder=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fa.run(task, fa.FedSMOO(), rounds=6, folder=tmp_path / "run", telemetry=[Interrupt()], **options)
    resumed = fa.run(task, fa.FedSMOO(), rounds=6, folder=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.weights(), whole.weights())


def test_a_refused_clients_moments_stay_as_they_were() -> None:
    """Two clients, each asked in every round; the policy leaves the second one out in round 2."""

    class First(fa.Policy):
        def weigh(self, cohort: fa.CohortView, memory: Any) -> fa.Decision:
            return fa.Decision(torch.tensor([0.0 if cohort.round == 2 and client == 1 else 1.0 for client in cohort.clients]))

    plan = fa.LocalPlan(lr=0.1, epochs=1, batch_size="full", optimizer=fa.Sgd(momentum=0.5), keep_moments=True)
    options: dict[str, Any] = {"cohort": [[0, 1], [0, 1], [1]], "rounds": 3, "client_test": 0.0, "initial": torch.tensor([1.0])}
    run = fa.run(line(), fa.FedAvg(), partition=fa.IID(clients=2), local=plan, policy=First(), **options)
    assert float(run.weights(2)) - float(run.weights(3)) == pytest.approx(0.15), "m = 0.5 * 1 + 1, as if round 2 had not been"
