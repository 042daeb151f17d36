from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaccord.runs import RunFolder, find, read

Call = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("quick_report")


def weights(folder: Path) -> torch.Tensor:
    return RunFolder(folder).weights(read(folder).status["round"])


@pytest.fixture
def unbroken(call: Call) -> torch.Tensor:
    """The final weights of the run that nothing interrupts."""
    done = call("run", "experiment.toml", "-s", "run.rounds=6", "--out", "unbroken", "--json")
    assert done.code == 0, done.err
    return weights(Path(done.json["runs"][0]["folder"]))


def test_ctrl_c_once_finishes_the_round_and_saves(call: Call, program: Call, project: Path, unbroken: torch.Tensor) -> None:
    running = program("run", "experiment.toml", "-s", "run.rounds=6", "-s", "run.checkpoint_every=100", pause=0.05)
    running.wait_for("round 1/6")
    running.process.send_signal(signal.SIGINT)
    done = running.end()
    assert done.code == 130
    assert "finishing the round" in done.err and "saved. Resume: fedaccord resume " in done.err
    (folder,) = find(project / "runs")
    record = read(folder)
    assert record.status["state"] == "stopped" and record.status["round"] == len(record.rounds) < 6
    assert int(RunFolder(folder).checkpoints()[-1].name) == record.status["round"]
    resumed = call(*done.err.strip().splitlines()[-1].partition("fedaccord ")[2].split(), "--json")
    assert resumed.code == 0, resumed.err
    assert f"resumed after round {record.status['round']}" in resumed.err
    assert torch.equal(weights(folder), unbroken)


def test_ctrl_c_twice_stops_at_once_and_the_run_goes_on_from_its_last_checkpoint(
    call: Call, program: Call, project: Path, unbroken: torch.Tensor
) -> None:
    running = program("run", "experiment.toml", "-s", "run.rounds=6", "-s", "run.checkpoint_every=2", pause=0.15)
    running.wait_for("round 3/6")
    running.process.send_signal(signal.SIGINT)
    running.wait_for("finishing the round")
    running.process.send_signal(signal.SIGINT)
    done = running.end()
    assert done.code == 130
    assert "stopped at once" in done.err and "Traceback" not in done.err
    (folder,) = find(project / "runs")
    record = read(folder)
    assert record.status["state"] == "interrupted" and record.status["round"] == 3
    assert RunFolder(folder).checkpoints()[-1].name == "000002"
    resumed = call("resume", folder.name)
    assert resumed.code == 0 and "resumed after round 2" in resumed.err
    assert [line["round"] for line in read(folder).rounds] == [1, 2, 3, 4, 5, 6]
    assert torch.equal(weights(folder), unbroken)


def test_ctrl_c_on_a_comparison_saves_the_running_ones_and_begins_no_other(call: Call, program: Call, project: Path) -> None:
    running = program("compare", "experiment.toml", "--seeds", "2", "--jobs", "2", pause=0.05)
    running.wait_for("round 1/3")
    running.process.send_signal(signal.SIGINT)
    done = running.end()
    assert done.code == 130 and "Traceback" not in done.err
    assert "runs are not finished. Go on: fedaccord resume" in done.err
    states = [read(folder).status["state"] for folder in find(project / "runs")]
    assert len(states) < 4 and "running" not in states
    parent = next((project / "runs").iterdir())
    resumed = call("compare", "experiment.toml", "--resume", parent.name, "--jobs", "1", "--json")
    assert resumed.code == 0, resumed.err
    assert [run["state"] for run in resumed.json["runs"]] == ["finished"] * 4


def test_stop_and_log_follow_a_run_in_another_process(call: Call, program: Call, project: Path, wait_until: Call) -> None:
    running = program("run", "experiment.toml", "-s", "run.rounds=500", "-s", "run.checkpoint_every=50", pause=0.02)
    running.wait_for("round 1/500")
    (folder,) = find(project / "runs")
    listed = call("ls", "--json").json["runs"]
    assert [run["state"] for run in listed] == ["running"]
    again = call("resume", folder.name)
    assert again.code == 2 and "E212 another process is running it" in again.err
    stopped = call("stop", folder.name[-4:])
    assert stopped.code == 0 and "stopped after round" in stopped.out and "/500. Resume: fedaccord resume" in stopped.out
    done = running.end()
    assert done.code == 130 and "saved" in done.err
    followed = call("log", folder.name, "-f")  # ends by itself, since the run has ended
    assert followed.code == 0 and followed.out.splitlines()[-1] == "stopped"
    late = call("stop", folder.name, "--json")
    assert late.code == 2 and late.json["error"]["code"] == "E214"


def test_log_follows_until_the_run_ends(call: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(call("run", "experiment.toml", "--json").json["runs"][0]["folder"])
    lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_text(lines[0])
    states = iter(["running", "running", "finished", "finished"])
    monkeypatch.setattr("fedaccord.cli.looking.state_of", lambda *_: next(states))
    left = iter(lines[1:])

    def next_round(_: float) -> None:
        with (folder / "rounds.jsonl").open("a") as file:
            file.write(next(left))

    monkeypatch.setattr("time.sleep", next_round)
    followed = call("log", folder.name, "-f")
    assert [line.split("  ")[0] for line in followed.out.splitlines()[1:]] == ["round 1/3", "round 2/3", "round 3/3", "finished"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.name != "posix" or os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small file system needs root")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_e321_and_resume_completes_after_space_is_freed(call: Call, small_disk: Path, unbroken: torch.Tensor) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"0" * (1024 - 68) * 1024)  # six rounds take about 100 kB
    full = call("run", "experiment.toml", "-s", "run.rounds=6", "--out", str(small_disk / "runs"))
    assert full.code == 3
    assert "E321 the disk is full" in full.err and "fedaccord resume RUN" in full.err and "Traceback" not in full.err
    ballast.unlink()
    (folder,) = find(small_disk / "runs")
    assert 0 < len(read(folder).rounds) < 6
    resumed = call("resume", str(folder))
    assert resumed.code == 0, resumed.err
    assert torch.equal(weights(folder), unbroken)
