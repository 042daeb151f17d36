from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedaccord.algorithms import REGISTRY
from fedaccord.config import comparison, read_settings, runs_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SMOKE = sorted((EXPERIMENTS / "smoke").glob("*.toml"))


@pytest.mark.parametrize("config", SMOKE, ids=lambda path: path.stem)
def test_every_smoke_experiment_runs(call: Callable[..., Any], quick_report: None, config: Path) -> None:
    done = call("run", str(config), "--json")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["state"] == "finished" and run["test"]


COVERED = {tomllib.loads(path.read_text()).get("algorithm", {}).get("name", "fedavg") for path in SMOKE}


@pytest.mark.parametrize("name", [name for name in REGISTRY if name not in COVERED])
def test_every_other_method_runs_by_its_name(call: Callable[..., Any], quick_report: None, name: str) -> None:
    done = call("run", str(EXPERIMENTS / "smoke" / "digits_fedavg.toml"), "--json", "-s", f"algorithm.name={name}")
    assert done.code == 0, done.err
    (run,) = done.json["runs"]
    assert run["state"] == "finished" and run["test"]


def test_the_demo_compares_over_three_seeds() -> None:
    found = comparison(read_settings(EXPERIMENTS / "demo.toml"))
    assert [method.get(("algorithm", "name")) for method in found.methods] == ["fedavg", "fedsmoo", "dynamic_sam"]
    assert found.seeds == 3 and found.target is not None
    assert all(len(runs_of(method, found.seeds)) == 3 for method in found.methods)
