"""runs.py: the folder of a run; checkpoints that are whole or not there; resuming is as if nothing had happened."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord import runs
from fedaccord.algorithms import REGISTRY
from fedaccord.core.errors import ConfigError, StorageError
from fedaccord.runs import Record, Remembered, RunFolder

NOTHING = Remembered({}, {})


def rows(num: int = 60, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 5, generator=generator)
    return x, x[:, :3].argmax(1)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 3))


@pytest.fixture(scope="module")
def task() -> fa.Task:
    return fa.Task(model=net, loss=F.cross_entropy, train=rows(), test=rows(20, 1))


ROUNDS = 7
OPTIONS: dict[str, Any] = {
    "partition": fa.IID(clients=5),
    "cohort": 3,
    "rounds": ROUNDS,
    "local": fa.LocalPlan(lr=0.1, epochs=1, batch_size=5, schedule=fa.Exponential(0.9)),
    "client_validation": 0.1,
}


class CopyAt:
    """Copies the folder as it is after `round`, as a kill would leave it."""

    def __init__(self, folder: Path, to: Path, round: int) -> None:
        self.folder, self.to, self.at = folder, to, round

    def emit(self, event: Any) -> None:
        if event.kind == "round_finished" and event.data["round"] == self.at:
            shutil.copytree(self.folder, self.to)


def timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize("state", ["memory", "disk"])
@pytest.mark.parametrize("name", REGISTRY)
def test_a_resumed_run_is_the_unbroken_one_to_the_bit(name: str, state: Any, task: fa.Task, tmp_path: Path) -> None:
    """Killed in round 5 with checkpoints every 2 rounds: models of all rounds, records and the rest are those of the run in one piece."""
    method = REGISTRY[name]()
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    options = OPTIONS | {"state": state, "checkpoint_every": 2, "server_optimizer": fa.ServerAdam() if name == "fedavg" else None}
    first = fa.run(task, method, folder=whole, telemetry=[CopyAt(whole, broken, 5)], **options)
    assert [path.name for path in RunFolder(broken).checkpoints()] == ["000002", "000004"]
    second = fa.run(task, method, folder=broken, resume=True, **options)
    for t in range(1, ROUNDS + 1):
        assert torch.equal(first.weights(t), second.weights(t)), f"round {t}"
    assert timeless(first.record.rounds) == timeless(second.record.rounds)
    assert timeless(first.record.clients) == timeless(second.record.clients)
    assert timeless(runs.read(broken).rounds) == timeless(second.record.rounds)
    assert all(torch.equal(b, second.final.buffers[key]) for key, b in first.final.buffers.items())


@pytest.mark.parametrize("at", [1, 3, 6])
def test_wherever_it_is_killed_a_run_can_be_resumed(at: int, task: fa.Task, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    first = fa.run(task, fa.FedSMOO(), folder=whole, telemetry=[CopyAt(whole, broken, at)], checkpoint_every=2, **OPTIONS)
    assert torch.equal(fa.run(task, fa.FedSMOO(), folder=broken, resume=True, checkpoint_every=2, **OPTIONS).weights(), first.weights())


def test_half_a_checkpoint_and_half_a_line_are_ignored(task: fa.Task, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    first = fa.run(task, fa.Scaffold(), folder=whole, telemetry=[CopyAt(whole, broken, 5)], checkpoint_every=2, **OPTIONS)
    aside = broken / "checkpoints" / ".000006.tmp"
    aside.mkdir()
    (aside / "server.safetensors").write_bytes(b"half")
    with (broken / "rounds.jsonl").open("a") as file:
        file.write('{"round": 6, "lr"')
    assert len(runs.read(broken).rounds) == 5, "a line that is still being written is not read"
    second = fa.run(task, fa.Scaffold(), folder=broken, resume=True, checkpoint_every=2, **OPTIONS)
    assert torch.equal(first.weights(), second.weights()) and [line["round"] for line in second.record.rounds] == list(range(1, 8))


def test_a_finished_run_can_be_resumed_and_nothing_happens(task: fa.Task, tmp_path: Path) -> None:
    first = fa.run(task, fa.FedAvg(), folder=tmp_path / "run", **OPTIONS)
    again = fa.run(task, fa.FedAvg(), folder=tmp_path / "run", resume=True, **OPTIONS)
    assert torch.equal(first.weights(), again.weights()) and len(again.record.rounds) == ROUNDS


def test_what_changed_since_the_run_began_is_named(task: fa.Task, tmp_path: Path) -> None:
    fa.run(task, fa.FedAvg(), folder=tmp_path / "run", **OPTIONS)
    with pytest.raises(ConfigError, match=r"E212 changed since the run began: run\.seed"):
        fa.run(task, fa.FedAvg(), folder=tmp_path / "run", resume=True, seed=1, **OPTIONS)
    other = fa.Task(model=net, loss=F.cross_entropy, train=rows(seed=9), test=rows(20, 1))
    with pytest.raises(ConfigError, match="the data"):
        fa.run(other, fa.FedAvg(), folder=tmp_path / "run", resume=True, **OPTIONS)


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_a_folder_that_holds_a_run_is_not_overwritten(state: Any, task: fa.Task, tmp_path: Path) -> None:
    before = fa.run(task, fa.Scaffold(), folder=tmp_path / "run", state=state, **OPTIONS).weights()
    with pytest.raises(ConfigError, match="E211"):
        fa.run(task, fa.Scaffold(), folder=tmp_path / "run", state=state, **OPTIONS)
    assert torch.equal(fa.run(task, fa.Scaffold(), folder=tmp_path / "run", resume=True, state=state, **OPTIONS).weights(), before)


def test_the_folder_holds_what_the_documentation_says(task: fa.Task, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = fa.run(task, fa.FedSMOO(), folder=folder, **OPTIONS)
    names = {path.name for path in folder.iterdir()}
    assert {
        "experiment.toml",
        "provenance.json",
        "partition.json",
        "status.json",
        "rounds.jsonl",
        "clients.jsonl",
        "checkpoints",
        "weights",
    } <= names
    assert {path.name for path in (folder / "checkpoints" / "000007").iterdir()} == {
        "server.safetensors",
        "trust.safetensors",
        "trust.json",
        "clients.safetensors",
        "progress.json",
    }
    record = runs.read(folder)
    assert record.status["state"] == "finished" and len(record.status["run_id"]) == 4 and record.folder == folder
    assert record.experiment == run.record.experiment and record.provenance["data_hash"] == task.data_hash()
    assert record.rounds == run.record.rounds and record.clients == run.record.clients
    assert torch.equal(run.weights(3), RunFolder(folder).weights(3))


def test_a_stop_that_is_asked_for_ends_after_the_round_and_can_be_resumed(task: fa.Task, tmp_path: Path) -> None:
    folder = tmp_path / "run"

    class Ask:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 3:
                RunFolder(folder).ask_to_stop()

    stopped = fa.run(task, fa.FedDyn(), folder=folder, telemetry=[Ask()], **OPTIONS)
    assert stopped.record.status["state"] == runs.read(folder).status["state"] == "stopped" and stopped.final.round == 3
    whole = fa.run(task, fa.FedDyn(), **OPTIONS)
    assert torch.equal(fa.run(task, fa.FedDyn(), folder=folder, resume=True, **OPTIONS).weights(), whole.weights())


def test_a_run_that_fails_says_so_in_its_status(tmp_path: Path, task: fa.Task) -> None:
    class Broken(fa.Policy):
        def weigh(self, cohort: fa.CohortView, memory: Any) -> fa.Decision:
            raise KeyError("a fault in a policy")

    with pytest.raises(Exception, match="E701"):
        fa.run(task, fa.FedAvg(), folder=tmp_path / "run", policy=Broken(), **OPTIONS)
    status = runs.read(tmp_path / "run").status
    assert status["state"] == "failed" and status["error"]["code"] == "E701" and status["round"] == 0


def folder_of(path: Path) -> RunFolder:
    return RunFolder.create(path, Record({"run": {"rounds": 3}}))


def test_two_processes_cannot_run_the_same_folder(tmp_path: Path) -> None:
    first = folder_of(tmp_path / "run")
    assert first.is_running()
    with pytest.raises(ConfigError, match="E212 another process is running it"):
        RunFolder(tmp_path / "run").lock()
    first.close()
    assert not first.is_running()
    second = RunFolder(tmp_path / "run")
    second.lock()
    second.close()


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run")
    for t in range(1, 6):
        folder.checkpoint(t, {"w": torch.full((2,), float(t))}, NOTHING, lambda path: None, lambda path: None)
    assert [path.name for path in folder.checkpoints()] == ["000004", "000005"]
    folder.close()


def test_a_damaged_checkpoint_is_named_and_the_one_before_can_be_used(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run")
    like = {"w": torch.zeros(2)}
    for t in (1, 2):
        folder.checkpoint(t, {"w": torch.full((2,), float(t))}, NOTHING, lambda path: None, lambda path: None)
    damaged = folder.path / "checkpoints" / "000002" / "server.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:10])
    with pytest.raises(StorageError, match="E322 the checkpoint cannot be read"):
        folder.restore(like, NOTHING, lambda path: None)
    shutil.rmtree(damaged.parent)
    round, state, _ = folder.restore(like, NOTHING, lambda path: None)
    assert round == 1 and state["w"].tolist() == [1.0, 1.0]
    folder.close()


def test_a_full_disk_has_its_code_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run")
    folder.checkpoint(1, {"w": torch.ones(2)}, NOTHING, lambda path: None, lambda path: None)

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StorageError, match=r"E321 the disk is full .* resume"):
        folder.checkpoint(2, {"w": torch.ones(2)}, NOTHING, full, lambda path: None)
    assert [path.name for path in folder.checkpoints()] == ["000001"]
    folder.close()


def test_nan_never_enters_the_records(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run")
    with pytest.raises(ValueError, match="JSON"):
        folder.append({"round": 1, "loss": float("nan")}, [])
    folder.close()


def test_reading_what_is_no_run_or_damaged_is_an_error_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="E210 no run is here"):
        runs.read(tmp_path)
    folder_of(tmp_path / "run").close()
    with (tmp_path / "run" / "rounds.jsonl").open("a") as file:
        file.write("{broken}\n")
    with pytest.raises(StorageError, match="E322 line 1 is not JSON"):
        runs.read(tmp_path / "run")
    (tmp_path / "run" / "rounds.jsonl").write_text("")
    (tmp_path / "run" / "status.json").write_text("{")
    with pytest.raises(StorageError, match=r"E322 status\.json"):
        runs.read(tmp_path / "run")


def test_the_short_id_is_the_end_of_the_name_or_fixed_by_it(tmp_path: Path) -> None:
    assert runs.short_id(Path("2026-11-03_fashion_s0_7f3a")) == "7f3a"
    chosen = runs.short_id(Path("mine"))
    assert len(chosen) == 4 and chosen == runs.short_id(Path("elsewhere/mine")) and int(chosen, 16) >= 0


def test_find_lists_runs_and_those_of_a_comparison(tmp_path: Path) -> None:
    for name in ("one", "both/a", "both/b"):
        folder_of(tmp_path / name).close()
    (tmp_path / "not-a-run").mkdir()
    assert {str(path.relative_to(tmp_path)) for path in runs.find(tmp_path)} == {"one", "both/a", "both/b"}
    assert json.loads((tmp_path / "one" / "status.json").read_text())["state"] == "running"
