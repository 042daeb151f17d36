"""Situations between the rooms that once went wrong: each is met through the public API."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedaccord as fa
from fedaccord.core.gradient import cosine
from fedaccord.core.vector import FlatModel
from fedaccord.runs import RunFolder
from fedaccord.runtime.states import OnDisk

LOCAL = fa.LocalPlan(lr=0.1, epochs=1, batch_size=8)


def task(model: nn.Module | Callable[[], nn.Module]) -> fa.Task:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(80, 4, generator=generator)
    y = (x[:, 0] > 0).long()
    return fa.Task(model=model, loss=F.cross_entropy, train=(x[:60], y[:60]), test=(x[60:], y[60:]))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def run(model: Any, algorithm: fa.Algorithm | None = None, **options: Any) -> fa.Run:
    settings = {"partition": fa.IID(clients=4), "cohort": 2, "rounds": 3, "local": LOCAL} | options
    return fa.run(task(model), algorithm or fa.FedAvg(), **settings)


def test_the_cosine_of_short_vectors_is_their_cosine() -> None:
    v = torch.tensor([1e-7, -1e-7, 1e-7])
    assert float(cosine(v, v)) == pytest.approx(1.0, abs=1e-5) and float(cosine(v, -v)) == pytest.approx(-1.0, abs=1e-5)
    assert float(cosine(v, torch.zeros(3))) == 0.0


def test_scaffold_trains_in_the_last_round_of_a_cosine_schedule() -> None:
    found = run(with_batch_norm, fa.Scaffold(), local=fa.LocalPlan(lr=0.1, epochs=1, batch_size=8, schedule=fa.Cosine()))
    assert not found.rounds.model_kept.any() and found.rounds.accepted.map(len).tolist() == [2, 2, 2]


def test_the_model_of_a_run_has_the_frozen_parameters_that_it_was_trained_with() -> None:
    def factory() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        model[0].requires_grad_(False)
        return model

    found = run(factory, seed=5)
    x, y = task(factory).test.x, task(factory).test.y
    right = float((found.model()(x).argmax(1) == y).double().mean())
    assert right == pytest.approx(found.rounds.test_accuracy.iloc[-1])


def test_a_pretrained_module_brings_its_buffers() -> None:
    pretrained = with_batch_norm()
    with torch.no_grad():
        pretrained[1].running_mean += 3.0
    started = run(with_batch_norm, initial=pretrained, rounds=1, local=fa.LocalPlan(lr=1e-12, epochs=1, batch_size=60))
    assert float(started.final.buffers["1.running_mean"].mean()) > 1.0
    named = run(with_batch_norm, initial=pretrained.state_dict(), rounds=1, local=fa.LocalPlan(lr=1e-12, epochs=1, batch_size=60))
    assert torch.equal(started.weights(), named.weights())


def test_buffers_are_found_by_name_whatever_the_order_they_arrive_in() -> None:
    model = FlatModel(with_batch_norm())
    model.train(False)
    x, buffers = torch.randn(5, 4), {name: b + 1 for name, b in model.initial_buffers.items()}
    expected = model(model.initial_w, buffers, x)
    assert torch.equal(model(model.initial_w, dict(reversed(buffers.items())), x), expected)


class Counting(nn.Module):
    """Scales by how often it was called since it was made: a buffer that is not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.linear(x) / self.calls


def test_buffers_that_are_not_persistent_do_not_pass_from_client_to_client() -> None:
    both = run(Counting, cohort=[[0, 1]], rounds=1)
    alone = run(Counting, cohort=[[1]], rounds=1)
    assert both.clients.set_index("client").loss[1] == alone.clients.set_index("client").loss[1]


@pytest.fixture
def resumable(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run that was stopped after two of four rounds."""

    class Stops:
        def emit(self, event: Any) -> None:
            if event.kind == "round_finished" and event.data["round"] == 2:
                (tmp_path / "run" / "stop").touch()

    options = {
        "rounds": 4,
        "folder": tmp_path / "run",
        "partition": fa.Explicit([torch.arange(0, 30).numpy(), torch.arange(30, 60).numpy()]),
    }
    stopped = run(with_batch_norm, telemetry=[Stops()], **options)
    assert stopped.record.status["state"] == "stopped"
    yield tmp_path / "run", options


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"initial": with_batch_norm()}, "initial weights"),
        ({"partition": fa.Explicit([[*range(1, 30), 0], list(range(30, 60))])}, "partition"),
        ({"seed": 9}, "run.seed"),
    ],
    ids=["weights", "partition", "seed"],
)
def test_a_resume_with_something_else_is_refused(resumable: Any, change: dict[str, Any], named: str) -> None:
    _, options = resumable
    with pytest.raises(fa.ConfigError, match=f"E212.*{named}"):
        run(with_batch_norm, resume=True, **(options | change))


def test_a_resume_with_the_same_goes_on(resumable: Any) -> None:
    _, options = resumable
    resumed = run(with_batch_norm, resume=True, **options)
    whole = run(with_batch_norm, **{name: value for name, value in options.items() if name != "folder"})
    assert torch.equal(resumed.weights(), whole.weights()) and len(resumed.rounds) == 4


def test_client_files_without_their_checkpoint_are_refused(tmp_path: Path) -> None:
    states = OnDisk(torch.zeros(3), tmp_path / "clients")
    states.settle({1: torch.ones(3)})
    checkpoint = tmp_path / "000001"
    checkpoint.mkdir()
    states.save(checkpoint)
    states.committed(checkpoint)
    with pytest.raises(fa.StorageError, match="E322 the client files hold round 000001"):
        OnDisk(torch.zeros(3), tmp_path / "clients").restore(None)


FULL_DISK = """
import resource, signal, sys
import fedaccord as fa, torch
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, state, largest_file = sys.argv[1], sys.argv[2], int(sys.argv[3])
x = torch.randn(60, 3000)
data = (x, (x[:, 0] > 0).long())
task = fa.Task(model=torch.nn.Linear(3000, 2), loss=torch.nn.functional.cross_entropy, train=data, test=data)

def run(folder, resume=False):
    options = dict(folder=folder, state=state, resume=resume, checkpoint_every=1, keep_weights=False)
    return fa.run(task, fa.FedDyn(), partition=fa.IID(clients=30), cohort=10, rounds=4, **options)

resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
try:
    run(folder)
except fa.StorageError as error:
    print(error)
    if largest_file > 0:  # there is room again
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("the same to the bit:", torch.equal(run(folder, resume=True).weights(), run(folder + "-whole").weights()))
    sys.exit(error.exit_code)
"""


def full_disk(*arguments: object) -> list[str]:
    """The lines of a run that ends as one does for want of space."""
    command = [sys.executable, "-c", FULL_DISK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and done.stdout.startswith("E321"), f"{done.returncode} {done.stdout}{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_a_full_disk_while_client_state_is_written_gives_its_code_and_loses_nothing(state: str, tmp_path: Path) -> None:
    """The rows of twelve clients fit, so that it is full in the second round; then there is room again."""
    said = full_disk(tmp_path / "run", state, 12 * 24_008)
    assert said[-1] == "the same to the bit: True"
    assert len(RunFolder(tmp_path / "run").records()[0]) == 4


def test_a_disk_without_space_under_state_on_disk_gives_its_code(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        full_disk(disk / "run", "disk", -1)
    finally:
        subprocess.run(["umount", disk], check=True)


@dataclass(frozen=True)
class Weighing(fa.Policy):
    weights: tuple[float, ...]

    def weigh(self, cohort: fa.CohortView, memory: Any) -> fa.Decision:
        return fa.Decision(torch.tensor(self.weights, dtype=torch.float64))


def test_a_negative_weight_leaves_a_client_out() -> None:
    found = run(with_batch_norm, policy=Weighing((2.0, -1.0)), rounds=1)
    assert found.clients.weight.tolist() == [1.0, 0.0] and found.rounds.refused[0][0]["reason"] == "no_weight"


def test_a_policy_that_forgets_a_client_is_named() -> None:
    with pytest.raises(fa.ConfigError, match="E215 Weighing gave weights of shape"):
        run(with_batch_norm, policy=Weighing((1.0,)), rounds=1)


@pytest.mark.parametrize("cohort", [10, [[0, 1], [2, 9]], [[0], [1]]], ids=["too many", "a stranger", "a script too short"])
def test_a_cohort_that_cannot_be_drawn_is_refused_before_anything_is_written(cohort: Any, tmp_path: Path) -> None:
    with pytest.raises(fa.ConfigError, match="E203"):
        run(with_batch_norm, cohort=cohort, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("cohort", [None, [1, 2], [[0.7, 1.2]], True], ids=str)
def test_a_cohort_that_is_none_is_refused(cohort: Any) -> None:
    with pytest.raises(fa.ConfigError, match="E202"):
        run(with_batch_norm, cohort=cohort)


def test_a_sink_that_raises_is_logged_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def emit(self, event: Any) -> None:
            raise OSError("the broker is gone")

    with caplog.at_level(logging.ERROR, logger="fedaccord"):
        found = run(with_batch_norm, telemetry=[Broken()])
    assert len(found.rounds) == 3 and "Broken could not take round_finished" in caplog.text


def test_a_metric_that_raises_is_named_before_training() -> None:
    def bad(outputs: Tensor, y: Tensor) -> float:
        raise KeyError("no such class")

    x, y = torch.randn(20, 4), torch.zeros(20, dtype=torch.int64)
    broken = fa.Task(model=nn.Linear(4, 2), loss=F.cross_entropy, train=(x, y), test=(x, y), metrics={"bad": bad}, num_classes=2)
    with pytest.raises(fa.DataError, match=r"E306.*no such class"):
        fa.run(broken, fa.FedAvg(), partition=fa.IID(clients=2), cohort=2, rounds=1)


@pytest.mark.parametrize(
    ("options", "code"), [({"resume": True}, "E208"), ({"resume": True, "folder": "nowhere"}, "E210")], ids=["none", "missing"]
)
def test_a_resume_needs_a_run(options: dict[str, Any], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fa.ConfigError, match=code):
        run(with_batch_norm, **options)
    assert not list(tmp_path.iterdir())


def test_a_resume_notices_that_the_file_of_the_run_was_edited(resumable: Any) -> None:
    """File and call agree, and are not what the run began with."""
    folder, options = resumable
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(text.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(fa.ConfigError, match=r"E212.*the experiment"):
        run(with_batch_norm, resume=True, **(options | {"local": fa.LocalPlan(lr=0.1, epochs=2, batch_size=8)}))


def test_a_run_that_changes_nothing_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedaccord"):
        found = run(with_batch_norm, local=fa.LocalPlan(lr=1e30, epochs=3, batch_size=8))
    assert found.rounds.model_kept.all()
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("round 1 kept the old model: no usable upload. E101") and "Run.rounds" in said


def test_each_kind_of_alert_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="fedaccord"):
        found = run(with_batch_norm, algorithm=fa.NoiseAdaptiveSAM(rho_base=0.15))
    assert all(found.rounds.alerts)
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("round 1, SAM radius at rho_max = 0.15: ") and "Run.rounds.alerts" in said


def test_a_run_is_one_line_and_a_report_takes_runs(tmp_path: Path) -> None:
    found = run(with_batch_norm)
    assert repr(found) == "Run(fedavg, finished after round 3 of 3)"
    assert fa.write_report([found], tmp_path / "report.html").html.exists()
    with pytest.raises(fa.ConfigError, match="E210 there is no round 9"):
        found.weights(9)


def test_a_class_in_place_of_a_method_is_named() -> None:
    with pytest.raises(fa.ConfigError, match=r"E202 algorithm is the class FedAvg.*Write FedAvg\(\)"):
        run(with_batch_norm, fa.FedAvg)  # type: ignore[arg-type]


def test_a_policy_is_not_asked_about_nobody() -> None:
    class Picky(fa.Policy):
        def weigh(self, cohort: fa.CohortView, memory: Any) -> fa.Decision:
            return fa.Decision(torch.ones(len(cohort.reports)) / cohort.counts.min())

    found = run(with_batch_norm, policy=Picky(), local=fa.LocalPlan(lr=1e30, epochs=3, batch_size=8))
    assert found.rounds.model_kept.all() and set(found.rounds.reason) == {"no usable upload"}
