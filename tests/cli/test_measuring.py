from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., Any]
SMALL = ("-s", "measures.examples=30", "-s", "measures.points_1d=3", "-s", "measures.points_2d=3", "-s", "measures.probes=2")


def folder_of(call: Call, *options: str) -> Path:
    done = call("run", "experiment.toml", "--json", *options)
    assert done.code == 0, done.err
    return Path(done.json["runs"][0]["folder"])


@pytest.mark.usefixtures("quick_report")
def test_a_run_that_exists_is_measured_as_at_its_end(call: Call) -> None:
    with_measures = folder_of(call, *SMALL)
    at_its_end = json.loads((with_measures / "measures.json").read_text())
    again = call("measure", str(with_measures), "--json")
    assert again.code == 0, again.err
    (row,) = again.json["runs"]
    assert {**row["measures"], "seconds": 0} == {**at_its_end, "seconds": 0}
    assert json.loads((with_measures / "measures.json").read_text()) == row["measures"]


@pytest.mark.usefixtures("quick_report")
def test_measures_of_a_run_that_was_begun_without_them_go_into_its_report(call: Call) -> None:
    folder = folder_of(call)
    assert not (folder / "measures.json").exists() and "measures" not in (folder / "experiment.toml").read_text()
    assert call("resume", str(folder)).code == 0
    shown = call("measure", folder.name[-4:], "--rho", "0.2", "--examples", "20")
    assert shown.code == 0, shown.err
    assert "λ₁" in shown.out and "SAM gap" in shown.out and "0.2" in shown.out
    found = json.loads((folder / "measures.json").read_text())
    assert (found["rho"], found["examples"], found["round"]) == (0.2, 20, 3)
    (row,) = call("report", str(folder), "--json").json["summary"]
    assert row["sam_gap"]["mean"] == found["sam_gap"]


@pytest.mark.usefixtures("quick_report")
def test_a_parent_is_measured_run_by_run(call: Call) -> None:
    done = call("run", "experiment.toml", "--seeds", "2", "--jobs", "1", "--json", *SMALL)
    parent = Path(done.json["parent"])
    for each in parent.glob("*/measures.json"):
        each.unlink()
    measured = call("measure", str(parent), "--json")
    assert measured.code == 0 and [row["measures"]["seed"] for row in measured.json["runs"]] == [0, 1]
    assert len(list(parent.glob("*/measures.json"))) == 2


@pytest.mark.usefixtures("quick_report")
def test_what_cannot_be_measured_is_one_line_with_a_code(call: Call) -> None:
    folder = folder_of(call)
    refused = call("measure", str(folder), "--rho", "-1")
    assert refused.code == 2 and refused.err.startswith("E203 measures.rho = -1")
    provenance = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps({**provenance, "data_hash": "another"}))
    assert call("measure", str(folder)).err.startswith("E212 the data are not those of the run")
    for checkpoint in (folder / "checkpoints").iterdir():
        checkpoint.rename(folder / f"old-{checkpoint.name}")
    assert call("measure", str(folder)).err.startswith("E210 there is no checkpoint yet")
    assert not (folder / "measures.json").exists()
