from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedaccord.cli import one
from fedaccord.runs import RunFolder, find, read

Call = Callable[..., Any]

HARD = """
import os
from dataclasses import dataclass
import fedaccord as fa

@dataclass(frozen=True)
class Hard(fa.FedAvg):
    def update(self, server, cohort):
        if os.environ.get("CRASH"):
            os._exit(9)
        return super().update(server, cohort)
"""

OWN = """
from dataclasses import dataclass
import numpy as np
import fedaccord as fa

@dataclass(frozen=True)
class Half(fa.FedAvg):
    factor: float = 0.5
    def update(self, server, cohort):
        return server._replace(w=server.w + self.factor * cohort.weighted.delta)

@dataclass(frozen=True)
class Halves:
    clients: int = 2
    def split(self, attributes, rng):
        return fa.Partition(fa.Shards.of(np.array_split(np.arange(attributes.num_examples), self.clients)))
"""

BAD = """
from dataclasses import dataclass
import fedaccord as fa

@dataclass(frozen=True)
class Bad(fa.FedAvg):
    def upload(self, w, sent, local, work):
        upload, kept = super().upload(w, sent, local, work)
        return (upload._replace(delta=upload.delta * float("nan")) if work.steps > 2 else upload), kept
"""


def weights(folder: Path) -> torch.Tensor:
    return RunFolder(folder).weights(read(folder).status["round"])


def test_run_leaves_a_folder_named_after_what_varies_and_says_how_it_ended(call: Call, project: Path) -> None:
    done = call("run", "experiment.toml", "--target", "0.1")
    assert done.code == 0, done.err
    (folder,) = find(project / "runs")
    assert "_task_dir0.5_fedsmoo_s0_" in folder.name
    assert done.out.startswith("done  acc 0.") and "target 0.1 never reached" in done.out  # three rounds are less than its window of five
    assert (folder / "report.html").stat().st_size > 10_000
    lines = done.err.splitlines()
    assert lines[0] == f"run {folder.name[-4:]}  fedsmoo  6 clients, Dirichlet 0.5  seed 0"
    assert [line.split("  ")[0] for line in lines if line.startswith("round")] == ["round 1/3", "round 2/3", "round 3/3"]
    assert "ETA" in lines[1] and "kept 3/3" in lines[1] and "up " in lines[1]
    assert "\x1b" not in done.err + done.out  # no colours, no moving lines where no terminal is


@pytest.mark.usefixtures("quick_report")
def test_run_as_json_gives_one_document_on_stdout(call: Call) -> None:
    done = call("run", "experiment.toml", "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert (run["state"], run["round"], run["algorithm"], run["seed"]) == ("finished", 3, "fedsmoo", 0)
    assert 0 <= run["test"]["accuracy"] <= 1
    assert run["run_id"] == Path(run["folder"]).name[-4:]
    assert json.loads((Path(run["folder"]) / "status.json").read_text())["run_id"] == run["run_id"]


@pytest.mark.usefixtures("quick_report")
def test_a_run_keeps_its_resolved_values_with_their_sources(call: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDACCORD__LOCAL__LR", "0.3")
    assert call("run", "experiment.toml", "-s", "algorithm.rho=0.01", "--seed", "4").code == 0
    (folder,) = find(project / "runs")
    text = (folder / "experiment.toml").read_text()
    for line in (
        "rho = 0.01 # command line",
        "beta = 10.0 # default",
        "lr = 0.3 # environment",
        "clients = 6 # file",
        "seed = 4 # command line",
    ):
        assert line in text
    assert read(folder).sources["local.lr"] == "environment"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["-s", "algorithm.roh=1"], 2, "E201 unknown key 'roh' of fedsmoo. -s algorithm.roh. Did you mean 'rho'?"),
        (["-s", "partition.clients=9999"], 3, "E312"),
        (["-s", "task=mine:broken_task"], 2, "E207"),
        (["-s", "run.cohort=50"], 2, "E203 a cohort of 50 out of 6 clients"),
        (["--seeds", "0"], 2, "E203"),
        (["--sedes", "3"], 2, "E201 no such option --sedes. fedaccord run. Did you mean --seeds?"),
    ],
)
def test_a_wrong_run_is_one_line_with_its_code_and_exit_code(call: Call, arguments: list[str], code: int, text: str) -> None:
    failed = call("run", "experiment.toml", *arguments)
    assert failed.code == code
    assert text in failed.err.splitlines()[-1]
    assert "Traceback" not in failed.err and failed.out == ""


def test_errors_are_json_with_json_and_have_a_traceback_with_debug(call: Call) -> None:
    failed = call("run", "missing.toml", "--json")
    assert failed.code == 2 and failed.json["error"]["code"] == "E206" and failed.json["error"]["where"] == "missing.toml"
    assert "Traceback" in call("run", "missing.toml", "--debug").err
    assert call("rum", "--json").json["error"]["code"] == "E205"
    usage = call("run", "--json")
    assert usage.code == 2 and usage.json["error"]["code"] == "E204"


def test_all_faults_of_a_file_are_told_at_once(call: Call, project: Path) -> None:
    failed = call("run", "experiment.toml", "-s", "local.lr=-1", "-s", "algorithm.rho='0.1'", "--json")
    assert failed.code == 2
    error = failed.json["error"]
    assert {error["code"], *(other["code"] for other in error["others"])} == {"E202", "E203"}
    assert not (project / "runs").exists()


def test_a_fault_of_ours_is_e701_and_exit_70(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("fedaccord.cli.training.runs_of", fail)
    failed = call("run", "experiment.toml")
    assert failed.code == 70
    assert failed.err.startswith("E701 RuntimeError: a bug.") and len(failed.err.splitlines()) == 1


def test_a_dry_run_checks_everything_and_writes_nothing(call: Call, project: Path) -> None:
    dry = call("run", "experiment.toml", "--dry-run", "-s", "runtime.state=disk", "-s", "algorithm.rho=[0.1,0.2]", "--seeds", "2")
    assert dry.code == 0, dry.err
    assert "4 runs would be made" in dry.out and "rho = 0.1 # command line" in dry.out
    assert not (project / "runs").exists()
    assert call("run", "experiment.toml", "--dry-run", "-s", "partition.clients=9999").code == 3
    document = call("run", "experiment.toml", "--dry-run", "--json").json
    assert document["runs"][0]["clients"] == 6


def test_lists_sweep_and_the_runs_are_called_after_what_is_swept(call: Call) -> None:
    dry = call("run", "experiment.toml", "-s", "algorithm.rho=[0.01, 0.1]", "--seeds", "2", "--dry-run", "--json")
    assert dry.code == 0, dry.err
    assert [run["name"][:-5] for run in dry.json["runs"]] == [
        "fedsmoo_rho0.01_s0",
        "fedsmoo_rho0.01_s1",
        "fedsmoo_rho0.1_s0",
        "fedsmoo_rho0.1_s1",
    ]
    assert [run["experiment"]["algorithm"]["rho"] for run in dry.json["runs"]] == [0.01, 0.01, 0.1, 0.1]


def test_compare_is_paired_and_ends_with_a_table_and_a_report(call: Call, project: Path) -> None:
    done = call("compare", "experiment.toml", "--seeds", "2", "--target", "0.3", "-s", "run.rounds=6", "--jobs", "1", "--html", "out.html")
    assert done.code == 0, done.err
    head, *rows = [line.split("  ") for line in done.out.splitlines()[1:]]
    assert [cell.strip() for cell in head if cell.strip()] == ["method", "FedAvg", "FedSMOO"]
    told = {row[0].strip() for row in rows}
    assert {"final", "best (optimistic)", "minus FedAvg", "rounds to 0.3", "worst tenth", "gradients", "bytes up", "time"} <= told
    assert (project / "out.html").stat().st_size > 10_000 and "report: out.html" in done.out
    runs = {
        (read(path).experiment["algorithm"]["name"], read(path).experiment["run"]["seed"]): read(path) for path in find(project / "runs")
    }
    assert set(runs) == {("fedavg", 0), ("fedavg", 1), ("fedsmoo", 0), ("fedsmoo", 1)}
    assert runs["fedsmoo", 0].experiment["algorithm"] == {"name": "fedsmoo", "rho": 0.05, "beta": 20.0, "s_step": "drop_last"}
    for seed in (0, 1):
        one, other = runs["fedavg", seed], runs["fedsmoo", seed]
        assert one.partition["sizes"] == other.partition["sizes"]
        assert [line["cohort"] for line in one.rounds] == [line["cohort"] for line in other.rounds]


@pytest.mark.usefixtures("quick_report")
def test_one_crashing_run_does_not_lose_the_others_and_resume_completes_it(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "hard.py").write_text(HARD)
    monkeypatch.setenv("CRASH", "1")
    broken = call("compare", "experiment.toml", "--algorithms", "hard:Hard,fedavg", "--seeds", "1", "--jobs", "1", "--json")
    assert broken.code == 70
    assert {run["algorithm"]: run["state"] for run in broken.json["runs"]} == {"hard:Hard": "failed", "fedavg": "finished"}
    assert "exit code 9" in broken.json["error"]["what"] and "fedaccord resume" in broken.err
    monkeypatch.delenv("CRASH")
    mended = call("resume", broken.json["run_id"], "--json")
    assert mended.code == 0, mended.err
    assert {run["state"] for run in mended.json["runs"]} == {"finished"}
    hard, fedavg = (Path(run["folder"]) for run in mended.json["runs"])
    assert torch.equal(weights(hard), weights(fedavg))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--algorithms", "fedavg,fedsmo"], "E205 'fedsmo' is not known. --algorithms. Did you mean 'fedsmoo'?"),
        (["--algorithms", "fedavg,fedavg"], "E208"),
        (["-s", "compare.fedsmoo.roh=1"], "E201 unknown key 'roh' of fedsmoo"),
        (["-s", "compare.fedsmoo.rho=-1"], "E203"),
        (["-s", "algorithm.mu=1"], "E201 none of fedavg, fedsmoo has the key 'mu'"),
        (["--resume", "nothing"], "E210"),
        (["--jobs", "0"], "E203"),
    ],
)
def test_a_wrong_comparison_is_refused_before_anything_runs(call: Call, arguments: list[str], text: str) -> None:
    failed = call("compare", "experiment.toml", *arguments)
    assert failed.code == 2 and text in failed.err


@pytest.mark.usefixtures("quick_report")
def test_your_own_method_and_partition_are_named_by_their_module(call: Call, project: Path) -> None:
    (project / "own.py").write_text(OWN)
    own = ["-s", "algorithm={name='own:Half', factor=1}", "-s", "partition=own:Halves", "-s", "run.cohort=2", "--json"]
    done = call("run", "experiment.toml", *own)
    assert done.code == 0, done.err
    folder = Path(done.json["runs"][0]["folder"])
    assert read(folder).experiment["algorithm"] == {"name": "own:Half", "factor": 1.0}
    assert read(folder).partition["sizes"] == [60, 60]
    assert call("resume", str(folder)).code == 0
    wrong = call("run", "experiment.toml", "-s", "algorithm='own:Halves'")
    assert wrong.code == 2 and "E202 own:Halves is not an Algorithm" in wrong.err
    assert "E201 unknown key 'facto'" in call("run", "experiment.toml", "-s", "algorithm={name='own:Half', facto=1}").err


@pytest.mark.usefixtures("quick_report")
def test_refused_clients_are_told_with_the_reason(call: Call, project: Path) -> None:
    (project / "bad.py").write_text(BAD)
    done = call("run", "experiment.toml", "-s", "algorithm=bad:Bad", "-s", "run.cohort=6", "--json")
    assert done.code == 0, done.err
    assert "W201 client" in done.err and "(2nd time). See: fedaccord quarantine" in done.err and "refused" in done.err
    shown = call("show", done.json["runs"][0]["run_id"])
    assert "refused" in shown.out and "non finite" in shown.out


@pytest.mark.usefixtures("quick_report")
def test_what_a_method_alerts_to_is_told_while_it_runs_and_afterwards(call: Call) -> None:
    """rho_base at rho_max: every client is at the clip in every one of the three rounds; the first and the second time are told."""
    done = call("run", "experiment.toml", "-s", "algorithm=noise_adaptive_sam", "-s", "algorithm.rho_base=0.15", "--json")
    assert done.code == 0, done.err
    told = [line for line in done.err.splitlines() if line.startswith("W202")]
    assert [line.partition(",")[0] for line in told] == ["W202 round 1", "W202 round 2"]
    run_id = done.json["runs"][0]["run_id"]
    assert "SAM radius at rho_max = 0.15: " in told[0] and told[1].endswith(f"(2nd time). See: fedaccord show {run_id}")
    assert "alert (SAM radius at rho_max)" in call("log", run_id).out
    shown = call("show", run_id)
    assert "alerts\n  3 times, last in round 3: SAM radius at rho_max = 0.15: " in shown.out
    assert call("show", run_id, "--json").json["alerts"][0]["times"] == 3


@pytest.mark.usefixtures("quick_report")
def test_state_that_would_not_fit_in_memory_is_e307_before_training(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaccord.tasks.memory.available_memory", lambda: 500)
    failed = call("run", "experiment.toml", "-s", "runtime.state=memory")
    assert failed.code == 3
    assert "E307 the state of 6 clients needs" in failed.err and "disk" in failed.err
    assert call("run", "experiment.toml", "-s", "runtime.state=disk").code == 0


@pytest.mark.usefixtures("quick_report")
def test_resume_of_a_finished_run_does_nothing_and_of_a_changed_one_is_refused(call: Call, project: Path) -> None:
    folder = Path(call("run", "experiment.toml", "--json").json["runs"][0]["folder"])
    before = (folder / "rounds.jsonl").read_text()
    again = call("resume", folder.name[-4:])
    assert again.code == 0 and "has finished" in again.err
    assert (folder / "rounds.jsonl").read_text() == before
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "stopped"}))
    mine = project / "mine.py"
    mine.write_text(mine.read_text().replace("manual_seed(0)", "manual_seed(1)  # other data"))
    sys.modules.pop("mine")
    one._last_task.clear()  # as in a new process
    changed = call("resume", str(folder), "--json")
    assert changed.code == 2 and changed.json["error"]["code"] == "E212"
    assert call("resume", "beef").code == 2
