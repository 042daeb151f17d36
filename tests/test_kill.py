"""kill -9 at random moments of a run: what is resumed ends as the run that was never broken, to the bit.

Three kinds of moments: any time after the first round; while a checkpoint is written; just before a random file operation of the run. The
runs are real processes, forked from one that has loaded everything (tests/killed_run.py), and the signal is SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedaccord as fa
from fedaccord.core.rng import stream
from fedaccord.runs import KEPT_CHECKPOINTS

SCRIPT = Path(__file__).with_name("killed_run.py")
ROUNDS, CHECKPOINT_EVERY = 30, 3
STORES = ("memory", "disk")


class Runs:
    """Starts runs, each in its own process, kills them, and waits for them."""

    def __init__(self) -> None:
        source = Path(fa.__file__).parents[1]  # the package under test, installed or not
        self.environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            [sys.executable, SCRIPT, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment
        )
        assert self._answer()["ready"]

    def start(self, folder: Path, state: str, *, resume: bool = False, die_at: int = 0) -> int:
        return int(self._ask({"folder": str(folder), "state": state, "resume": resume, "die_at": die_at})["pid"])

    def wait(self, pid: int) -> int:
        """0, or the negative number of the signal that ended it."""
        return int(self._ask({"wait": pid})["status"])

    def kill(self, pid: int) -> bool:
        """Whether the process was still running."""
        os.kill(pid, signal.SIGKILL)
        status = self.wait(pid)
        assert status in (0, -signal.SIGKILL)
        return status != 0

    def close(self) -> None:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.close()
        self._server.wait(timeout=60)
        self._server.stdout.close()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._server.stdin
        print(json.dumps(order), file=self._server.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._server.stdout
        return dict(json.loads(self._server.stdout.readline()))


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    found = Runs()
    yield found
    found.close()


class Unbroken:
    """A run that nobody killed, in each of the two stores: what it left, and how long it took."""

    def __init__(self, runs: Runs, folder: Path) -> None:
        self.folders, self.seconds, self.operations = {}, {}, {}
        for state in STORES:
            self.folders[state] = folder / state
            pid = runs.start(self.folders[state], state)
            until(lambda: rounds_done(folder / state) > 0)  # noqa: B023
            began = time.monotonic()
            assert runs.wait(pid) == 0
            self.seconds[state] = time.monotonic() - began
            self.operations[state] = int(Path(f"{self.folders[state]}.operations").read_text())


@pytest.fixture(scope="module")
def unbroken(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    return Unbroken(runs, tmp_path_factory.mktemp("unbroken"))


def until(happened: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.0002)


def rounds_done(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def lines(path: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in path.read_text().splitlines()]


def assert_checkpoints_are_whole(folder: Path) -> None:
    """Every checkpoint that a resume may take is complete, and names no more records than there are."""
    for checkpoint in sorted((folder / "checkpoints").glob("[0-9]*"))[-KEPT_CHECKPOINTS:]:
        progress = json.loads((checkpoint / "progress.json").read_text())
        assert progress["round"] == int(checkpoint.name)
        assert all((folder / name).stat().st_size >= length for name, length in progress["lengths"].items())
        assert all(np.isfinite(array).all() for array in load_file(checkpoint / "server.safetensors").values())
        assert len(load_file(checkpoint / "clients.safetensors")["_clients"]) > 0


def assert_same(folder: Path, other: Path) -> None:
    """Models of every round, last checkpoint, client state and records are equal; nothing half-written is left."""
    for part in ("weights/*", f"checkpoints/{ROUNDS:06d}/*.safetensors", "clients/*"):
        ours, theirs = ({path.name: path.read_bytes() for path in each.glob(part)} for each in (folder, other))
        assert ours.keys() == theirs.keys(), part
        assert [name for name in theirs if ours[name] != theirs[name]] == [], part
    assert len(list((folder / "weights").iterdir())) == ROUNDS
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert lines(folder / name) == lines(other / name)
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["round"]) == ("finished", ROUNDS)
    assert not list(folder.rglob("*.tmp"))


def killed_at_a_time(runs: Runs, unbroken: Unbroken, folder: Path, state: str, share: float) -> bool:
    """Killed once `share` of the time between the first round and the end has passed. False: it was faster."""
    pid = runs.start(folder, state)
    until(lambda: rounds_done(folder) > 0)
    time.sleep(share * unbroken.seconds[state])
    return runs.kill(pid)


def killed_in_a_checkpoint(runs: Runs, unbroken: Unbroken, folder: Path, state: str, share: float) -> bool:
    """Killed up to 5 ms after it began to write a checkpoint. False: it had ended by then."""
    rounds = range(CHECKPOINT_EVERY, ROUNDS + 1, CHECKPOINT_EVERY)
    round = rounds[int(share * len(rounds))]
    aside, final = folder / "checkpoints" / f".{round:06d}.tmp", folder / "checkpoints" / f"{round:06d}"
    pid = runs.start(folder, state)
    until(lambda: aside.exists() or final.exists())
    time.sleep(share * len(rounds) % 1 * 0.005)
    return runs.kill(pid)


def killed_at_an_operation(runs: Runs, unbroken: Unbroken, folder: Path, state: str, share: float) -> bool:
    """Killed just before an operation on its files, anywhere between the first and the last."""
    pid = runs.start(folder, state, die_at=1 + int(share * unbroken.operations[state]))
    return runs.wait(pid) == -signal.SIGKILL


MOMENTS = {"time": killed_at_a_time, "checkpoint": killed_in_a_checkpoint, "operation": killed_at_an_operation}


def killed_while_resuming(runs: Runs, folder: Path, state: str, seconds: float) -> bool:
    """Taken up again, and killed after so many seconds; False: it had come to its end."""
    pid = runs.start(folder, state, resume=True)
    time.sleep(seconds)
    return runs.kill(pid)


def broken_and_resumed(runs: Runs, unbroken: Unbroken, place: Path, number: int, moment: str) -> int:
    """One run, killed at a moment that `number` draws, every third one again while it resumes; then it runs to its end. How many kills."""
    draws, state = stream(number, "kill", moment), STORES[number % 2]
    for attempt in range(10):  # a run that was faster than its killer is no kill
        folder = place / f"{moment}-{number}-{attempt}"
        if MOMENTS[moment](runs, unbroken, folder, state, float(draws.random())):
            break
    else:
        raise AssertionError("ten runs ended before they could be killed")
    kills, reached = 1, rounds_done(folder)
    assert_checkpoints_are_whole(folder)
    is_run = (folder / "experiment.toml").exists()
    if is_run and number % 3 == 2:
        kills += killed_while_resuming(runs, folder, state, float(draws.random()) * unbroken.seconds[state])
        assert_checkpoints_are_whole(folder)
    if not is_run:  # killed before there was one: it begins afresh
        folder = place / f"{moment}-{number}-afresh"
    assert runs.wait(runs.start(folder, state, resume=is_run)) == 0
    assert_same(folder, unbroken.folders[state])
    print(f"{moment} {number} ({state}): killed after {reached} rounds, {kills} kills, the same to the bit")
    return kills


def test_a_killed_run_resumes_to_the_same_bits(runs: Runs, unbroken: Unbroken, tmp_path: Path) -> None:
    cases = [("time", 0), ("checkpoint", 1), ("operation", 2)]
    assert sum(broken_and_resumed(runs, unbroken, tmp_path, number, moment) for moment, number in cases) >= 3


def test_both_stores_of_client_state_give_the_same_run(unbroken: Unbroken) -> None:
    memory, mapped = (unbroken.folders[state] for state in STORES)
    for path in (memory / "weights").iterdir():
        assert path.read_bytes() == (mapped / "weights" / path.name).read_bytes()
    assert lines(memory / "clients.jsonl") == lines(mapped / "clients.jsonl")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_at_random_moments(runs: Runs, unbroken: Unbroken, tmp_path: Path) -> None:
    kills = sum(broken_and_resumed(runs, unbroken, tmp_path, number, "time") for number in range(10))
    kills += sum(broken_and_resumed(runs, unbroken, tmp_path, number, "checkpoint") for number in range(10))
    assert kills >= 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_between_operations_on_files(runs: Runs, unbroken: Unbroken, tmp_path: Path) -> None:
    assert sum(broken_and_resumed(runs, unbroken, tmp_path, number, "operation") for number in range(20)) >= 20


@pytest.mark.slow
def test_a_killed_run_is_resumed_by_a_fresh_program_within_ten_seconds(runs: Runs, unbroken: Unbroken, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, str(SCRIPT), "run", str(folder), "memory"]
    with subprocess.Popen(command, env=runs.environment) as process:
        until(lambda: (folder / "checkpoints" / f"{2 * CHECKPOINT_EVERY:06d}").exists())
        process.kill()
    began = time.monotonic()
    with subprocess.Popen([*command, "--resume"], env=runs.environment) as process:
        until(lambda: (folder / "checkpoints" / f"{3 * CHECKPOINT_EVERY:06d}").exists())
        assert time.monotonic() - began < 10
        assert process.wait() == 0
    assert_same(folder, unbroken.folders["memory"])


@pytest.mark.soak
def test_a_hundred_kills(runs: Runs, unbroken: Unbroken, tmp_path: Path) -> None:
    kills = sum(broken_and_resumed(runs, unbroken, tmp_path, 1000 + number, moment) for number in range(34) for moment in MOMENTS)
    assert kills >= 100
