from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]


@pytest.fixture
def folder(call: Call, quick_report: None) -> Path:
    """A finished run."""
    done = call("run", "experiment.toml", "--json")
    assert done.code == 0, done.err
    return Path(done.json["runs"][0]["folder"])


def test_ls_lists_runs_with_their_state(call: Call, folder: Path) -> None:
    listed = call("ls")
    assert listed.code == 0
    assert folder.name in listed.out and "finished" in listed.out and "3/3" in listed.out and "acc 0." in listed.out
    (run,) = call("ls", "--json").json["runs"]
    assert (run["run_id"], run["state"], run["algorithm"], run["round"]) == (folder.name[-4:], "finished", "fedsmoo", 3)
    assert call("ls", "--root", "elsewhere").out == "no runs in elsewhere\n"
    assert call("ls", "--root", "elsewhere", "--json").json == {"runs": []}


@pytest.mark.usefixtures("quick_report")
def test_one_damaged_run_does_not_hide_the_others_from_ls(call: Call) -> None:
    call("run", "experiment.toml")
    call("run", "experiment.toml", "--seed", "1")
    first, second = call("ls", "--json").json["runs"]
    (Path(first["folder"]) / "status.json").write_text("{torn")
    listed = call("ls", "--json")
    assert listed.code == 0 and [each["run_id"] for each in listed.json["runs"]] == [second["run_id"]] and "E322" in listed.err


def test_a_run_whose_process_is_gone_is_interrupted_not_running(call: Call, folder: Path) -> None:
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "state": "running"}))
    assert call("ls", "--json").json["runs"][0]["state"] == "interrupted"
    assert "Resume: fedaccord resume" in call("show", folder.name).out


def test_show_tells_state_verdict_and_the_last_rounds(call: Call, folder: Path) -> None:
    for name in (str(folder), folder.name, folder.name[-4:]):
        shown = call("show", name)
        assert shown.code == 0
        assert "finished  round 3/3" in shown.out and "verdict: acc 0." in shown.out and "round 2/3" in shown.out
    document = call("show", folder.name, "--json").json
    assert document["state"] == "finished" and len(document["last_rounds"]) == 3
    assert document["sources"]["algorithm.rho"] == "file"


def test_show_tells_the_story_of_one_client(call: Call, folder: Path) -> None:
    client = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])["cohort"][0]
    shown = call("show", folder.name, "--client", str(client))
    assert shown.code == 0 and shown.out.startswith(f"client {client}  ") and "asked in " in shown.out and "own examples" in shown.out
    document = call("show", folder.name, "--client", str(client), "--json").json
    assert document["asked"][0] == 1 and sum(document["label_counts"]) == document["examples"]
    stranger = call("show", folder.name, "--client", "6", "--json")
    assert stranger.code == 2 and stranger.json["error"]["code"] == "E203"


def test_log_prints_a_line_a_round(call: Call, folder: Path) -> None:
    logged = call("log", folder.name)
    assert logged.code == 0
    assert [line.split("  ")[0] for line in logged.out.splitlines()[1:]] == ["round 1/3", "round 2/3", "round 3/3", "finished"]
    rounds = [json.loads(line) for line in call("log", folder.name, "--json").out.splitlines()]
    assert [line["round"] for line in rounds] == [1, 2, 3]


@pytest.mark.parametrize("verb", ["show", "log", "stop", "report", "resume"])
def test_a_run_that_is_not_there_is_e210(call: Call, verb: str) -> None:
    failed = call(verb, "beef")
    assert failed.code == 2 and failed.err == "E210 no run is called 'beef'. runs. See: fedaccord ls, or name the folder with --root.\n"
    assert call(verb, "beef", "--json").json["error"]["code"] == "E210"


def test_a_project_folder_is_no_run(call: Call, project: Path) -> None:
    assert call("show", str(project)).code == 2


def test_a_word_that_means_two_runs_is_refused(call: Call, folder: Path) -> None:
    folder.with_name(f"other_{folder.name[-4:]}").mkdir()
    for name in ("experiment.toml", "rounds.jsonl"):
        (folder.with_name(f"other_{folder.name[-4:]}") / name).write_text("")
    assert "means 2 runs" in call("show", folder.name[-4:]).err


def test_stop_of_a_run_that_has_ended_is_e214(call: Call, folder: Path) -> None:
    failed = call("stop", folder.name)
    assert failed.code == 2 and "E214" in failed.err and "finished at round 3" in failed.err


def test_report_writes_one_file_and_its_csv(call: Call, folder: Path, project: Path) -> None:
    written = call("report", folder.name, "--html", "page.html", "--target", "0.1", "--json")
    assert written.code == 0, written.err
    page = (project / "page.html").read_text()
    assert written.json["report"] == "page.html" and "FedSMOO" in page
    assert all(Path(path).exists() for path in written.json["csv"]) and written.json["summary"][0]["algorithm"] == "fedsmoo"
    missing = call("report", folder.name, "--metric", "dice")
    assert missing.code == 2 and "E205" in missing.err


def test_a_damaged_run_is_e322_and_exit_3(call: Call, folder: Path) -> None:
    (folder / "status.json").write_text("{")
    failed = call("show", folder.name)
    assert failed.code == 3 and "E322 status.json is not JSON" in failed.err


def test_describe_names_empty_single_and_one_class_clients_and_what_to_do(call: Call) -> None:
    wanted = ["describe", "experiment.toml", "-s", "partition={name='dirichlet_per_class', alpha=0.05, clients=100}", "-s", "run.cohort=10"]
    told = call(*wanted)
    assert told.code == 0, told.err
    document = call(*wanted, "--json").json
    found = {each["name"]: each for each in document["findings"]}
    for name, words in (
        ("empty_clients", "no training example"),
        ("single_example_clients", "one training example only"),
        ("one_class_clients", "one class only"),
    ):
        clients = document["measures"][name]
        assert clients and found[name]["clients"] == clients
        assert f"{words}" in told.out and f"{clients[0]}, {clients[1]}" in told.out
        assert found[name]["remedy"] and found[name]["remedy"] in told.out
    sizes = document["partition"]["sizes"]
    assert [client for client, size in enumerate(sizes) if size == 0] == document["measures"]["empty_clients"]
    assert document["measures"]["label_entropy_mean"] < 0.8 and "label_skew" in found
    assert document["measures"]["gradient_angles"]["mean"] > 0 and document["measures"]["gradient_angles"]["norm_ratio"] > 1
    d = (6 * 4 + 4) + (4 * 3 + 3)
    assert document["measures"]["message_up_bytes"] == 2 * d * 4  # FedSMOO sends delta and mu
    assert document["measures"]["client_state_bytes"] == 100 * 2 * d * 4
    assert "rho = 0.05 # file" in told.out


def test_describe_counts_what_stays_with_the_clients_as_their_state_and_not_as_a_message(call: Call, project: Path) -> None:
    text = (
        (project / "mine.py")
        .read_text()
        .replace("nn.Linear(6, hidden), nn.Tanh()", "nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.Tanh()")
    )
    (project / "normed.py").write_text(text)
    wanted = ["describe", "experiment.toml", "-s", "task.name=normed:make_task", "-s", "partition={name='iid', clients=6}", "--json"]
    d, norm, statistics = (6 * 4 + 4) + (4 * 3 + 3), 2 * 4, 2 * 4
    for method, up, kept in (("fedavg", 4 * (d + norm + statistics) + 8, 0), ("fedbn", 4 * d, 4 * (norm + statistics) + 8)):
        found = call(*wanted, "-s", f"algorithm={method}").json["measures"]
        assert (found["message_up_bytes"], found["message_down_bytes"]) == (up, up), method
        assert found["client_state_bytes"] == 6 * kept, method


def test_describe_of_a_wrong_file_is_an_error(call: Call) -> None:
    assert call("describe", "missing.toml").code == 2
    failed = call("describe", "experiment.toml", "-s", "partition=natural_ids", "--json")
    assert failed.code == 3 and failed.json["error"]["code"] == "E313"


def test_describe_measures_the_gradients_that_the_clients_really_have(call: Call) -> None:
    """With one client there is nothing to compare; clients with the same data would have angle 0, and IID ones are close."""
    alone = call("describe", "experiment.toml", "-s", "partition={name='iid', clients=1}", "-s", "run.cohort=1", "--json").json
    assert alone["measures"]["gradient_angles"] is None
    few = call("describe", "experiment.toml", "-s", "partition={name='iid', clients=2}", "-s", "run.cohort=1", "--json").json
    skewed = call(
        "describe",
        "experiment.toml",
        "-s",
        "partition={name='label_shards', clients=3, shards_per_client=1}",
        "-s",
        "run.cohort=1",
        "--json",
    ).json
    assert few["measures"]["gradient_angles"]["mean"] < 45 < skewed["measures"]["gradient_angles"]["mean"]


@pytest.mark.parametrize("template", ["vision", "tabular", "segmentation"])
def test_new_makes_a_project_that_runs(
    call: Call, project: Path, monkeypatch: pytest.MonkeyPatch, quick_report: None, template: str
) -> None:
    made = call("new", f"my_{template}", "--template", template, "--json")
    assert made.code == 0, made.err
    folder = project / f"my_{template}"
    assert {path.name for path in folder.iterdir()} == {"experiment.toml", "task.py", "README.md"}
    assert "PROJECT_NAME" not in "".join(path.read_text() for path in folder.iterdir())
    monkeypatch.chdir(folder)
    done = call("run", "experiment.toml", "-s", "run.rounds=1", "--json")
    assert done.code == 0, done.err
    assert done.json["runs"][0]["state"] == "finished"


def test_new_never_writes_into_a_folder_that_holds_something(call: Call, project: Path) -> None:
    failed = call("new", str(project))
    assert failed.code == 2 and "E211" in failed.err
    assert "next: cd fresh" in call("new", "fresh").out
    wrong = call("new", "other", "--template", "visoin", "--json")
    assert wrong.code == 2 and wrong.json["error"]["remedy"] == "Did you mean 'vision'?" and not (project / "other").exists()
