"""The measures of a run: taken once at its end, of its global model, on what its clients train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.algorithm import Server
from fedaccord.core.vector import FlatModel
from fedaccord.experiment import Experiment, RunOptions, measured, share_out
from fedaccord.federation import RunState
from fedaccord.report.groups import study
from fedaccord.report.html import flatness
from fedaccord.report.quantities import measure
from fedaccord.runs import read

PLAN = fa.Measures(examples=40, probes=2, points_1d=3, points_2d=3)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x)
        return found


def task() -> fa.Task:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(150, 6, generator=draw)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return fa.Task(model=Net, loss=F.cross_entropy, train=(x[:120], y[:120]), test=(x[120:], y[120:]), num_classes=3)


def run(**options: Any) -> fa.Run:
    asked = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 2, "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=10)}
    return fa.run(task(), fa.FedAvg(), **{**asked, **options})


def test_measures_are_in_the_record_the_folder_and_the_report(tmp_path: Path) -> None:
    in_memory, on_disk = run(measures=PLAN), run(measures=PLAN, folder=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "measures.json").read_text())
    assert found == on_disk.record.measures == read(tmp_path / "run").measures
    assert {**found, "seconds": 0} == {**in_memory.record.measures, "seconds": 0}
    assert (found["round"], found["examples"], found["seed"], found["reasons"]) == (2, 40, 0, {})
    page = in_memory.report(tmp_path / "r.html").read_text()
    assert 'id="flatness"' in page and 'id="loss-slice"' in page and 'id="loss-contours-0"' in page


def test_measuring_changes_nothing_of_the_run() -> None:
    plain, with_measures = run(), run(measures=PLAN)
    assert plain.record.measures == {} and "measures" not in plain.record.experiment
    assert torch.equal(plain.weights(), with_measures.weights())
    assert all(torch.equal(b, with_measures.final.buffers[name]) for name, b in plain.final.buffers.items())


def test_the_examples_are_those_that_train_and_all_of_them_where_as_many_are_asked_for() -> None:
    """The loss in the record is the loss of the model in evaluation mode on the clients' own training rows, held-out rows left out."""
    done = run(measures=fa.Measures(examples=5000, probes=2, points_1d=1, points_2d=1), client_test=0.5)
    data, _ = share_out(Experiment(partition=fa.IID(clients=4), run=RunOptions(client_test=0.5)), task())
    rows = torch.from_numpy(data.train.indices)
    assert len(rows) == done.record.measures["examples"] < 70
    expected = F.cross_entropy(done.model()(data.x[rows]), data.y[rows])
    assert done.record.measures["loss"] == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_stopped_run_is_measured_at_the_end_of_its_resume(tmp_path: Path) -> None:
    options: dict[str, Any] = {"folder": tmp_path / "run", "measures": PLAN, "rounds": 4}

    class StopsIt:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 1:
                (tmp_path / "run" / "stop").touch()

    assert run(**options, telemetry=[StopsIt()]).record.measures == {}
    resumed, whole = run(**options, resume=True), run(**{**options, "folder": None})
    assert resumed.record.measures["round"] == 4
    assert {**resumed.record.measures, "seconds": 0} == {**whole.record.measures, "seconds": 0}
    again = run(**options, resume=True)  # finished: nothing is left to do, nothing is measured twice
    assert again.record.measures == resumed.record.measures


def test_buffers_that_stay_with_the_clients_leave_nothing_to_measure() -> None:
    found = run(measures=PLAN, local_parts="buffers").record
    assert found.measures["eigenvalue"] is None and "local to the clients" in found.measures["reasons"]["all"]


def test_weights_that_are_not_finite_give_nulls_with_a_reason_and_still_a_report() -> None:
    experiment = Experiment(partition=fa.IID(clients=4))
    model, (data, _) = FlatModel(Net()), share_out(experiment, task())
    broken = RunState(2, Server(torch.full_like(model.initial_w, torch.nan)), model.initial_buffers)
    found = measured(PLAN, experiment, task(), model, data, broken)
    assert found["sam_gap"] is None and found["reasons"] == {"all": "the weights are not finite"}
    record = run().record
    record.measures = found
    chosen = study([record])
    section = flatness(chosen, measure(chosen))
    assert all(picture.svg is None and picture.missing == "the weights are not finite." for picture in section.pictures)
    assert {cell.note for cell in section.tables[0].rows[0][1:]} == {"the weights are not finite"}


def test_a_plan_that_cannot_be_is_refused_before_the_run_begins() -> None:
    with pytest.raises(fa.ConfigError, match=r"E203 measures\.rho"):
        run(measures=fa.Measures(rho=0.0))
    with pytest.raises(fa.ConfigError, match=r"E202 measures"):
        run(measures=True)
