"""What a round costs follows the cohort, not the population: allocations, records and client state with 100,000 registered clients."""

from __future__ import annotations

import json
import time
import tomllib
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fedaccord as fa
from fedaccord.experiment import Experiment, RunOptions, RuntimeOptions, prepare
from fedaccord.partition import Attributes, Partition, Shards

MANY, COHORT = 100_000, 10


@dataclass(frozen=True)
class TwoEach:
    """Client i holds the examples 2i and 2i + 1."""

    clients: int

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        return Partition(Shards(np.arange(2 * self.clients), 2 * np.arange(self.clients + 1)))


def softmax() -> nn.Module:
    return nn.Linear(4, 2)


@pytest.fixture(scope="module")
def task() -> fa.Task:
    x = torch.randn(2 * MANY, 4, generator=torch.Generator().manual_seed(0))
    return fa.Task(model=softmax, loss=F.cross_entropy, train=(x, (x[:, 0] > 0).long()), test=(x[:10], (x[:10, 0] > 0).long()))


def experiment(clients: int, algorithm: fa.Algorithm, **runtime: Any) -> Experiment:
    run = RunOptions(rounds=100, cohort=fa.Uniform(COHORT), client_test=0.5, evaluated_clients=50)
    devices = fa.Devices(weak_share=0.3)
    return Experiment(TwoEach(clients), algorithm, devices=devices, runtime=RuntimeOptions("sequential", **runtime), run=run)


def allocated(experiment: Experiment, task: fa.Task, folder: Path | None = None) -> int:
    """Bytes that Python and numpy hold at the peak of three rounds, the last one of the run among them, above what they held before."""
    prepared = prepare(experiment, task, state_folder=folder)
    federation, state = prepared.federation, prepared.start
    state = federation.round(state).state
    last = experiment.run.rounds - 1
    tracemalloc.start()
    try:
        for before in (state, state._replace(round=2), state._replace(round=last)):
            result = federation.round(before)
            assert len(result.clients) == len(result.report.cohort) == COHORT
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [fa.FedAvg(), fa.FedDyn(), fa.NoiseAdaptiveSAM()], ids=lambda method: type(method).__name__)
def test_a_round_allocates_for_its_cohort_whoever_is_registered(task: fa.Task, method: fa.Algorithm) -> None:
    few, many = (allocated(experiment(clients, method), task) for clients in (1000, MANY))
    assert many < few + 200_000, "2 bytes a registered client"


def test_state_on_disk_costs_for_those_that_came(task: fa.Task, tmp_path: Path) -> None:
    few = allocated(experiment(1000, fa.FedDyn(), state="disk"), task, tmp_path / "few")
    assert allocated(experiment(MANY, fa.FedDyn(), state="disk"), task, tmp_path / "many") < few + 200_000
    (rows,) = (tmp_path / "many" / "clients").iterdir()
    assert rows.stat().st_size == 4 * COHORT * 40, "four rounds"


def test_the_records_of_a_run_hold_the_cohorts_and_a_sample(task: fa.Task, tmp_path: Path) -> None:
    run = fa.run(
        task,
        fa.FedAvg(),
        partition=TwoEach(MANY),
        cohort=COHORT,
        rounds=3,
        client_test=0.5,
        evaluated_clients=50,
        folder=tmp_path / "run",
    )
    assert len(run.clients) == 3 * COHORT and len(run.evaluations) == 50 == run.evaluations["client"].nunique()
    assert len((tmp_path / "run" / "clients.jsonl").read_text().splitlines()) == 3 * COHORT + 50
    drawn = json.loads((tmp_path / "run" / "partition.json").read_text())
    assert drawn["clients"] == len(drawn["sizes"]) == MANY and drawn["label_counts"] is None
    assert drawn["notes"] == ["more than 10000 clients: their counts of each class are not listed"]
    assert 0 < drawn["measures"]["label_entropy_mean"] < 1
    again = fa.run(
        task,
        fa.FedAvg(),
        partition=TwoEach(MANY),
        cohort=COHORT,
        rounds=3,
        client_test=0.5,
        evaluated_clients=50,
        folder=tmp_path / "run",
        resume=True,
    )
    assert torch.equal(again.weights(), run.weights())


def test_only_clients_that_will_be_asked_count_against_the_memory(task: fa.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedDyn keeps 40 bytes a client here: 400 bytes a round for those that are asked, 4 MB for all."""
    monkeypatch.setattr("fedaccord.tasks.memory.available_memory", lambda: 41_000)
    prepare(experiment(MANY, fa.FedDyn()), task)
    longer = experiment(MANY, fa.FedDyn())
    with pytest.raises(fa.DataError, match=r"E307 the state of 2000 clients needs"):
        prepare(replace(longer, run=replace(longer.run, rounds=200)), task)


def test_index_lists_of_many_clients_are_written_down_at_once(task: fa.Task, tmp_path: Path) -> None:
    partition = fa.Explicit(Shards(np.arange(20_000), 2 * np.arange(10_001)))
    start = time.process_time()
    fa.run(task, fa.FedAvg(), partition=partition, cohort=2, rounds=1, client_test=0.0, folder=tmp_path / "run", keep_weights=False)
    assert time.process_time() - start < 20, "a writer that is quadratic in the length took minutes"
    assert len(tomllib.loads((tmp_path / "run" / "experiment.toml").read_text())["partition"]["shards"]["indices"]) == 20_000
