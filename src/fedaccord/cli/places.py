"""Where runs lie and what they are called: folder names, short ids, and the run that a word on the command line means."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.config import Resolved, Settings, resolve
from fedaccord.core.errors import ConfigError, StorageError
from fedaccord.runs import RunFolder, find, short_id, storage

STUDY = "study.json"
STOP = "stop"


@dataclass(frozen=True)
class Order:
    """One run to do: its experiment and its folder."""

    resolved: Resolved
    folder: Path

    @property
    def label(self) -> str:
        """The method, what a sweep varies, and the seed."""
        method = str(self.resolved.tables["algorithm"]["name"])
        varied = [
            f"{key.removesuffix('.name').rpartition('.')[2]} {value}"
            for key, value in self.resolved.varied
            if key not in ("run.seed", "algorithm", "algorithm.name")
        ]
        return "  ".join([method, *varied, f"seed {self.resolved.experiment.run.seed}"])


def lay_out(runs: Sequence[Resolved], root: Path, kind: str) -> tuple[Path | None, list[Order]]:
    """(parent, orders): a single run lies in `root`, several are siblings under one parent."""
    today, taken = datetime.date.today().isoformat(), _ids(root)
    if len(runs) == 1:
        return None, [Order(runs[0], root / f"{today}_{_scene(runs[0])}_{_variant(runs[0])}_{_new_id(taken)}")]
    parent = root / f"{today}_{_scene(runs[0])}_{kind}_{_new_id(taken)}"
    return parent, [Order(each, parent / f"{_variant(each)}_{_new_id(taken)}") for each in runs]


def new_folder(run: Resolved, root: Path, kind: str) -> Path:
    """A folder, not yet made, for something of its own that is done with one experiment."""
    return root / f"{datetime.date.today().isoformat()}_{_scene(run)}_{_variant(run)}_{kind}_{_new_id(_ids(root))}"


def _scene(run: Resolved) -> str:
    """Task and partition: fashion_dir0.1."""
    task = run.task.name.rpartition(":")[2].removeprefix("make_") if ":" in run.task.name else run.task.name.partition("_")[0]
    partition = run.tables["partition"]
    short = {
        "dirichlet_per_class": "dir",
        "dirichlet_per_client": "dirclient",
        "quantity_dirichlet": "sizes",
        "label_shards": "shards",
        "pathological_labels": "labels",
    }
    figure = next((partition[key] for key in ("alpha", "shards_per_client", "labels_per_client", "std") if key in partition), "")
    name = str(partition["name"])
    return _safe(
        f"{task}_{short.get(name, name.rpartition(':')[2])}{figure:g}"
        if figure != ""
        else f"{task}_{short.get(name, name.rpartition(':')[2])}"
    )


def _variant(run: Resolved) -> str:
    """Method, what varies, seed: fedsmoo_rho0.05_s0."""
    method = str(run.tables["algorithm"]["name"]).rpartition(":")[2].lower()
    varied = [f"{key.rpartition('.')[2]}{value}" for key, value in run.varied if key not in ("run.seed", "algorithm", "algorithm.name")]
    return _safe("_".join([method, *varied, f"s{run.experiment.run.seed}"]))


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")[:120]


def _ids(root: Path) -> set[str]:
    return {short_id(path) for depth in ("*", "*/*") for path in root.glob(depth) if path.is_dir()}


def _new_id(taken: set[str]) -> str:
    while True:
        found = secrets.token_hex(2)
        if found not in taken and not found.isdigit():  # an id of digits alone could be read as something else
            taken.add(found)
            return found


def write_study(parent: Path, orders: Sequence[Order], kind: str, target: float | None, html: Path | None) -> None:
    """Keep what the parent's runs are, so that an interrupted comparison can go on with those not begun. E211 where the folder exists."""
    runs = [
        {
            "folder": each.folder.name,
            "tables": each.resolved.tables,
            "sources": each.resolved.sources,
            "varied": [list(pair) for pair in each.resolved.varied],
        }
        for each in orders
    ]
    study = {"kind": kind, "target": target, "html": None if html is None else str(html.resolve()), "runs": runs}
    with storage(parent):
        parent.mkdir(parents=True, exist_ok=False)
        (parent / STUDY).write_text(json.dumps(study, indent=1))


def read_study(parent: Path) -> tuple[dict[str, Any], list[Order]]:
    """The parent's settings and all its runs, done or not."""
    try:
        study = json.loads((parent / STUDY).read_text())
        return study, [Order(_again(run, parent), parent / run["folder"]) for run in study["runs"]]
    except (OSError, KeyError, ValueError) as problem:
        if isinstance(problem, ConfigError):
            raise
        raise StorageError("E322", f"{STUDY} cannot be read ({type(problem).__name__}: {problem})", str(parent)) from problem


def _again(run: Mapping[str, Any], parent: Path) -> Resolved:
    found = resolve(Settings(run["tables"], f"{parent.name}/{STUDY}"), tuple((key, value) for key, value in run["varied"]))
    return Resolved(found.experiment, found.task, found.tables, run["sources"], found.varied)


def locate(name: str, root: Path) -> Path:
    """The folder of a run, or of several under one parent, that `name` means. E210 where there is none, or more than one."""
    path = Path(name)
    if _is_place(path):
        return path
    places = [each for depth in ("*", "*/*") for each in root.glob(depth) if _is_place(each)]
    found = [each for each in places if each.name == path.name] or [each for each in places if short_id(each) == name]
    if not found:
        raise ConfigError("E210", f"no run is called {name!r}", str(root), "See: fedaccord ls, or name the folder with --root")
    if len(found) > 1:
        raise ConfigError(
            "E210", f"{name!r} means {len(found)} runs: {', '.join(str(each) for each in found[:3])}", str(root), "Give the folder"
        )
    return found[0]


def is_parent(path: Path) -> bool:
    """Whether the folder holds the runs of one comparison or sweep."""
    return (path / STUDY).is_file()


def _is_place(path: Path) -> bool:
    return ((path / "experiment.toml").is_file() and (path / "rounds.jsonl").exists()) or is_parent(path)  # a project has the former alone


def one_run(name: str, root: Path) -> Path:
    """As `locate`, for verbs that look at a single run."""
    path = locate(name, root)
    if is_parent(path):
        inside = ", ".join(short_id(each) for each in find(path)) or "none yet"
        raise ConfigError("E210", f"{path.name} holds several runs: {inside}", str(path), "Name one of them")
    return path


def state_of(path: Path, status: Mapping[str, Any]) -> str:
    """The state of a run, which is `interrupted` where the process that ran it is gone."""
    state = str(status.get("state", "unknown"))
    return "interrupted" if state == "running" and not RunFolder(path).is_running() else state
