"""A small project of the user's own (so scikit-learn is not loaded), and the command line called in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TASK = """
import os, time
import torch, torch.nn.functional as F
from torch import nn
import fedaccord as fa

class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return self.body(x)

def make_task(hidden: int = 4, examples: int = 120):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(examples + 30, 6, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    n = examples
    return fa.Task(model=lambda: Net(hidden), loss=F.cross_entropy, train=(x[:n], y[:n]), test=(x[n:], y[n:]), num_classes=3)

def broken_task():
    raise ValueError("no such camera")
"""

CONFIG = """
[task]
name = "mine:make_task"

[partition]
name = "dirichlet_per_class"
alpha = 0.5
clients = 6

[local]
lr = 0.2
epochs = 1
batch_size = 10

[algorithm]
name = "fedsmoo"
rho = 0.05

[run]
rounds = 3
cohort = 3
checkpoint_every = 1

[compare]
algorithms = ["fedavg", "fedsmoo"]

[compare.fedsmoo]
beta = 20
"""


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one JSON document: anything else on it is a fault."""
        return json.loads(self.out)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with mine.py and experiment.toml, which is the current one."""
    (tmp_path / "mine.py").write_text(TASK)
    (tmp_path / "experiment.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def quick_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drawn report costs seconds; where a test is about something else, an empty page stands for it."""

    def write(records: Any, path: Any, **options: Any) -> None:
        Path(path).write_text("<html>")

    monkeypatch.setattr("fedaccord.cli.training.write_report", write)


@pytest.fixture
def call(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """``call("run", "experiment.toml")``: what the program `fedaccord` does, without a new process."""
    from fedaccord.cli import main

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Result(int(left.value.code or 0), out, err)

    return run


class Program:
    """`fedaccord` in a process of its own."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, pause: float) -> None:
        source = Path(__file__).resolve().parents[2] / "src"
        environment = {**os.environ, "PAUSE": str(pause), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
        command = [sys.executable, "-m", "fedaccord.cli", *arguments]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read stderr until a line holds `text`."""
        assert self.process.stderr
        for line in self.process.stderr:
            self.seen += line
            if text in line:
                return
        raise AssertionError(f"{text!r} never came:\n{self.seen}")

    def end(self) -> Result:
        out, err = self.process.communicate(timeout=60)
        return Result(self.process.returncode, out, self.seen + err)


@pytest.fixture
def program(project: Path) -> Iterator[Callable[..., Program]]:
    """Starts programs; any that is left at the end of the test is killed."""
    started: list[Program] = []

    def start(*arguments: str, pause: float = 0.0) -> Program:
        started.append(Program(arguments, project, pause))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition, at most 60 seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            time.sleep(0.05)

    return wait
