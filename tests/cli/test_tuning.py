from __future__ import annotations

import csv
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]

CONFIG = """
[task]
name = "mine:with_validation"

[partition]
name = "dirichlet_per_class"
alpha = 0.5
clients = 6

[local]
lr = 0.2
epochs = 1
batch_size = 10

[algorithm]
name = "{algorithm}"

[run]
rounds = 3
cohort = 3
"""

TASK = """
from dataclasses import replace
import mine_base

def with_validation(hidden: int = 4):
    import fedaccord as fa, torch.nn.functional as F
    whole = mine_base.make_task(hidden)
    x, y = whole.train.x, whole.train.y
    return fa.Task(
        model=lambda: mine_base.Net(hidden), loss=F.cross_entropy, train=(x[:90], y[:90]), validation=(x[90:], y[90:]), test=whole.test,
        num_classes=3,
    )
"""

SMALL = ("--trials", "3", "--rounds", "2,2,3", "--shares", "0.2,0.5,1")
SEARCH = ("--set", "local.lr=0.01..1", "--set", "algorithm.rho=0.01,0.1")


@pytest.fixture
def tuning(project: Path) -> Path:
    (project / "mine_base.py").write_text((project / "mine.py").read_text())
    (project / "mine.py").write_text(TASK)
    for algorithm in ("fedsam", "dynamic_sam"):
        (project / f"{algorithm}.toml").write_text(CONFIG.replace("{algorithm}", algorithm))
    return project


def test_tune_writes_a_toml_that_run_takes_with_the_source_of_each_value(call: Call, tuning: Path) -> None:
    done = call("tune", "fedsam.toml", *SEARCH, *SMALL, "--out", "tuned.toml")
    assert done.code == 0, done.err
    text = (tuning / "tuned.toml").read_text()
    values = tomllib.loads(text)
    line = next(each for each in text.splitlines() if each.startswith("lr = "))
    assert "# tuned in stage 1 (" in line or "# file, kept by tuning" in line
    assert "clients = 6 # file" in text and text.startswith("# fedaccord tune: ")
    ran = call("run", "tuned.toml", "--dry-run", "--json")
    assert ran.code == 0, ran.err
    experiment = ran.json["runs"][0]["experiment"]
    assert experiment["local"]["lr"] == values["local"]["lr"] and experiment["algorithm"]["rho"] == values["algorithm"]["rho"]
    assert experiment["run"]["rounds"] == 3 and experiment["run"]["train_share"] == 1.0


def test_tune_shows_every_trial_on_stdout_and_the_verdicts_on_stderr(call: Call, tuning: Path) -> None:
    done = call("tune", "fedsam.toml", *SEARCH, *SMALL)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].endswith("trials") and lines[1].split()[:6] == ["stage", "data", "trial", "from", "lr", "rho"]
    assert [line.split()[0:2] for line in lines if line.startswith("stage ")][1:] == [["stage", "1"], ["stage", "2"], ["stage", "3"]]
    assert lines[-1].startswith("done  local.lr ") and "run: fedaccord run runs/" in lines[-1] and "tuning.csv" in lines[-1]
    assert done.err.splitlines()[0].startswith("tune ") and "fedsam  6 clients, Dirichlet 0.5  seed 0" in done.err
    assert "stage 1 of 3: 20% of the data, 2 rounds" in done.err and "  trial 1 (" in done.err
    assert "\x1b" not in done.err + done.out and "A new study" not in done.err


def test_dynamic_sam_says_pass_or_what_to_move(call: Call, tuning: Path) -> None:
    done = call(
        "tune", "dynamic_sam.toml", "-s", "algorithm.rho_max=0.001", "--trials", "2", "--rounds", "6,6,3", "--shares", "0.2,0.5,1", "--json"
    )
    assert done.code == 0, done.err
    first, second, third = done.json["stages"]
    assert first["trials"][0]["verdict"].startswith("move algorithm.rho_max from 0.001 to 0.01")
    assert "median sigma" in first["why"] and "gamma > 0.8" in second["why"] and "validation accuracy" in third["why"]
    assert (
        "  trial 1 (configured)  rho_max 0.001  alpha 0.4  kappa 0.1  move algorithm.rho_max from 0.001 to 0.01: median sigma" in done.err
    )


def test_tune_as_json_is_one_document(call: Call, tuning: Path) -> None:
    done = call("tune", "fedsam.toml", *SEARCH, *SMALL, "--json")
    assert done.code == 0, done.err
    found = done.json
    assert set(found) == {
        *("run_id", "folder", "state", "passed", "algorithm", "seed", "metric", "start", "values", "sources", "out", "table", "stages")
    }
    assert (found["state"], found["passed"], found["algorithm"], found["metric"]) == ("finished", True, "fedsam", "accuracy")
    assert found["start"] == {"local.lr": 0.2, "algorithm.rho": 0.1} and set(found["values"]) == set(found["start"])
    assert [(each["share"], each["rounds"]) for each in found["stages"]] == [(0.2, 2), (0.5, 2), (1.0, 3)]
    assert set(found["stages"][0]) == {"stage", "share", "rounds", "passed", "verdict", "why", "trials"}
    with Path(found["table"]).open() as file:
        table = list(csv.DictReader(file))
    trials = [trial for each in found["stages"] for trial in each["trials"]]
    assert [str(trial["local.lr"]) for trial in trials] == [row["local.lr"] for row in table]
    assert Path(found["out"]).name == "tuned.toml" and Path(found["folder"]).name.endswith(f"_tune_{found['run_id']}")


def test_a_sweep_of_the_file_or_in_brackets_is_a_list_to_choose_from(call: Call, tuning: Path) -> None:
    done = call("tune", "fedsam.toml", "-s", "local.lr=[0.1,0.3]", "-s", "run.rounds=2", "--shares", "0.5,1", "--json")
    assert done.code == 0, done.err
    assert sorted(trial["local.lr"] for trial in done.json["stages"][0]["trials"]) == [0.1, 0.3]
    assert done.json["stages"][1]["rounds"] == 2 and done.json["start"] == {"local.lr": 0.1}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["fedsam.toml"], 2, "E204 FedSAM has no stages of its own"),
        (["fedsam.toml", "--set", "algorithm.roh=0.1..1"], 2, "E201 unknown key 'roh' of FedSAM. --set algorithm.roh. Did you mean 'rho'?"),
        (["fedsam.toml", "--set", "local.lr=0..1"], 2, "E203 a range from 0. --set local.lr"),
        (["fedsam.toml", "--set", "local.lr=0.1,fast"], 2, 'E202 local.lr = "fast" is a string. --set local.lr'),
        (["fedsam.toml", "--set", "run.seed=[1,2]"], 2, "E208 a tuning has one seed"),
        (["fedsam.toml", *SEARCH, "--shares", "some"], 2, "E202 'some' is no list of numbers. --shares"),
        (["fedsam.toml", *SEARCH, "--metric", "acuracy"], 2, "E205 unknown metric 'acuracy'. --metric. Did you mean 'accuracy'?"),
        (["experiment.toml", "-s", "task=mine_base:make_task", *SEARCH], 2, "E208 tuning needs validation data"),
        (["fedsam.toml", *SEARCH, "--out", "fedsam.toml"], 2, "E211 the file exists already. fedsam.toml"),
        (["--resume", "zzzz"], 2, "E210 no tuning is called 'zzzz'"),
        ([], 2, "E204 CONFIG is missing"),
    ],
)
def test_a_wrong_tuning_is_one_line_with_its_code(call: Call, tuning: Path, arguments: list[str], code: int, text: str) -> None:
    failed = call("tune", *arguments)
    assert failed.code == code and text in failed.err.splitlines()[-1]
    assert not list((tuning / "runs").glob("*")), "nothing is left behind"


def test_ctrl_c_leaves_what_was_found_and_the_rest_follows(call: Call, program: Call, tuning: Path) -> None:
    whole = call("tune", "fedsam.toml", *SEARCH, *SMALL, "--root", "whole", "--json")
    assert whole.code == 0, whole.err
    running = program("tune", "fedsam.toml", *SEARCH, *SMALL, "--out", "tuned.toml", "--json", pause=0.02)
    running.wait_for("trial 2 (")
    running.process.send_signal(signal.SIGINT)
    done = running.end()
    assert done.code == 130 and "Traceback" not in done.err and "Go on: fedaccord tune --resume" in done.err
    assert done.json["state"] == "interrupted" and done.json["passed"] is False
    assert tomllib.loads((tuning / "tuned.toml").read_text())["local"]["lr"] == done.json["values"]["local.lr"]
    resumed = call("tune", "--resume", done.json["run_id"], "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.json["stages"] == whole.json["stages"] and resumed.json["values"] == whole.json["values"]
    assert resumed.json["out"] == "tuned.toml" and "; interrupted" not in (tuning / "tuned.toml").read_text()
