"""keeping.py: where the state of clients lies, if nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fedaccord as fa

CLIENTS = 8
EACH = 2 * 650 * 4  # bytes: FedSMOO's two duals of a softmax regression on digits


@pytest.fixture(scope="module")
def digits() -> fa.Task:
    return fa.digits(model="softmax", validation=0)


def run(task: fa.Task, method: fa.Algorithm, **options: Any) -> fa.Run:
    plan = fa.LocalPlan(lr=0.05, epochs=1, batch_size=16)
    return fa.run(task, method, partition=fa.IID(clients=CLIENTS), cohort=4, rounds=3, local=plan, runtime="sequential", **options)


def available(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr("fedaccord.tasks.memory.available_memory", lambda: num_bytes)


def state_of(run: fa.Run) -> str:
    return str(run.record.experiment["runtime"]["state"])


def test_what_would_fill_a_third_of_the_memory_lies_on_disk_to_the_same_bits(
    digits: fa.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="fedaccord"):
        available(monkeypatch, 3 * CLIENTS * EACH)
        roomy = run(digits, fa.FedSMOO(), folder=tmp_path / "roomy")
        assert state_of(roomy) == "memory" and "client state" not in caplog.text
        available(monkeypatch, 3 * CLIENTS * EACH - 1)
        tight = run(digits, fa.FedSMOO(), folder=tmp_path / "tight")
    assert state_of(tight) == "disk" and tight.record.sources["runtime.state"] == "chosen"
    assert "client state lies in the run's folder: 8 clients may come to keep 3.87e-05 GiB" in caplog.text
    assert (tmp_path / "tight" / "clients" / "rows.bin").stat().st_size >= EACH and not (tmp_path / "roomy" / "clients").exists()
    assert torch.equal(roomy.weights(), tight.weights())


def test_a_resume_follows_the_record_whatever_there_is_room_for(digits: fa.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 3 * CLIENTS * EACH - 1)
    tight = run(digits, fa.FedSMOO(), folder=tmp_path / "run")
    monkeypatch.undo()
    resumed = run(digits, fa.FedSMOO(), folder=tmp_path / "run", resume=True)
    assert state_of(resumed) == "disk" and torch.equal(resumed.weights(), tight.weights())


def test_without_a_folder_memory_is_all_there_is(digits: fa.Task, monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, CLIENTS * EACH + 20_000)
    assert state_of(run(digits, fa.FedSMOO())) == "memory"
    available(monkeypatch, CLIENTS * EACH - 1)
    with pytest.raises(fa.DataError, match=r"E307 the state of 8 clients needs .*Give the run a folder"):
        run(digits, fa.FedSMOO())


def test_what_is_asked_for_is_done(digits: fa.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(run(digits, fa.FedSMOO(), state="disk", folder=tmp_path / "disk")) == "disk"
    available(monkeypatch, CLIENTS * EACH)
    assert state_of(run(digits, fa.FedSMOO(), state="memory", folder=tmp_path / "memory")) == "memory"
    available(monkeypatch, CLIENTS * EACH - 1)
    with pytest.raises(fa.DataError, match=r"E307 .*disk"):
        run(digits, fa.FedSMOO(), state="memory", folder=tmp_path / "refused")


def test_methods_that_keep_nothing_need_no_place(digits: fa.Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 0)
    assert state_of(run(digits, fa.FedAvg(), folder=tmp_path / "run")) == "memory"
    assert not (tmp_path / "run" / "clients").exists()
