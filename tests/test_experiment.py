"""experiment.py: what does not fit together is said before training; parts that stay with the clients cost no traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa

OPTIONS: dict[str, Any] = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 2}


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def task(**splits: Any) -> fa.Task:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    return fa.Task(model=module, loss=F.cross_entropy, train=(x[:60], y[:60]), test=(x[60:], y[60:]), **splits)


# Devices


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ({"weak_share": 1.5}, "E203 devices.weak_share"),
        ({"weak_speed": 0.0}, "E203 devices.weak_speed"),
        ({"gradients_per_second": 0.0}, "E203 devices.gradients_per_second"),
        ({"deadline": -1.0, "gradients_per_second": 1.0}, "E203 devices.deadline"),
        ({"deadline": 1.0}, "E208 a deadline says nothing of devices whose speed is unknown"),
    ],
)
def test_devices_that_cannot_be_are_named(devices: dict[str, Any], said: str) -> None:
    with pytest.raises(fa.ConfigError, match=said):
        fa.run(task(), fa.NoiseAdaptiveSAM(sam_budget="auto"), devices=fa.Devices(**devices), **OPTIONS)


def test_devices_and_cohorts_of_a_file_are_those_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedaccord.config import read_settings, runs_of

    file = tmp_path / "experiment.toml"
    file.write_text(
        """
        task = "digits"
        [algorithm]
        name = "dynamic_sam"
        weak_epochs = 1
        [devices]
        weak_share = 0.5
        gradients_per_second = 40.0
        deadline = 2
        [run]
        cohort = {name = "stability_aware", size = 3, floor = 0.1}
        """
    )
    (resolved,) = runs_of(read_settings(file, (), {}))
    assert resolved.experiment.devices == fa.Devices(0.5, 40.0, deadline=2.0)
    assert resolved.experiment.run.cohort == fa.StabilityAware(3, floor=0.1)


# Parts that stay with the clients


@pytest.mark.parametrize("method", [fa.FedBN(), fa.SiloBN()], ids=["fedbn", "silobn"])
def test_what_stays_with_the_clients_travels_neither_up_nor_down(method: fa.Algorithm) -> None:
    rounds = fa.run(task(), method, **OPTIONS).rounds
    shared = fa.run(task(), fa.FedAvg(), **OPTIONS).rounds
    assert rounds["bytes_down"].equals(rounds["bytes_up"]) and (rounds["bytes_down"] < shared["bytes_down"]).all()
    assert shared["bytes_down"].equals(shared["bytes_up"])


def test_a_given_module_brings_the_batch_norm_that_each_client_starts_from() -> None:
    given = module()
    nn.init.constant_(given[1].weight, 2.0)
    run = fa.run(task(), fa.FedBN(), initial=given, **OPTIONS)
    assert run.final.buffers["1.weight"].tolist() == [2.0] * 6
    assert run.model(0)[1].weight.tolist() == [2.0] * 6


def test_stopping_early_needs_a_global_model_to_measure() -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    with pytest.raises(fa.ConfigError, match="E208 no global model is measured where clients keep parts of it"):
        fa.run(task(validation=(x, y)), fa.FedBN(), stop_at=0.9, **OPTIONS)


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_own_parameters_and_their_moments_survive_a_resume_to_the_bit(tmp_path: Path, state: str) -> None:
    plan = fa.LocalPlan(lr=0.01, epochs=1, batch_size=8, optimizer=fa.Adam(), keep_moments=True, weight_decay=0.01)
    options: dict[str, Any] = OPTIONS | {"rounds": 5, "local": plan, "state": state, "checkpoint_every": 2}
    method = fa.DynamicSAM(warmup_rounds=1)

    class Interrupt:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 3:
                raise KeyboardInterrupt

    whole = fa.run(task(), method, local_parts="batch_norm", folder=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fa.run(task(), method, local_parts="batch_norm", folder=tmp_path / "run", telemetry=[Interrupt()], **options)
    resumed = fa.run(task(), method, local_parts="batch_norm", folder=tmp_path / "run", resume=True, **options)
    assert torch.equal(resumed.weights(), whole.weights()) and resumed.evaluations.equals(whole.evaluations)
