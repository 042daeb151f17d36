"""`fedaccord measure`: how flat the models of existing runs lie, kept in their folders for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedaccord.cli.one import task_of
from fedaccord.cli.output import note, result, table
from fedaccord.cli.places import is_parent, locate
from fedaccord.config import check, from_run
from fedaccord.core.algorithm import Server
from fedaccord.core.errors import ConfigError
from fedaccord.core.vector import FlatModel
from fedaccord.experiment import measured, share_out
from fedaccord.federation import RunState
from fedaccord.measures import Measures
from fedaccord.report.quantities import FLATNESS
from fedaccord.report.words import shown
from fedaccord.runs import RunFolder, find, read, short_id


def measure_runs(names: Sequence[str], rho: float | None, examples: int | None, root: Path, as_json: bool) -> None:
    """Each run's own [measures], or their defaults, unless `rho` and `examples` say otherwise. Earlier measures are replaced.

    Of a parent, the runs that have finished. Errors: E210 (no run, no checkpoint), E212 (a run started from Python), E203 (options).
    """
    torch.set_num_threads(1)  # as in a run, to the same bits
    rows = []
    for folder in dict.fromkeys(folder for name in names for folder in _runs(locate(name, root))):
        found = _measure(folder, rho, examples)
        algorithm = read(folder).experiment["algorithm"]["name"]
        rows.append({"run_id": short_id(folder), "folder": str(folder), "algorithm": algorithm, "measures": found})
        seconds, reasons = shown(found["seconds"], "seconds"), found["reasons"]
        note(f"{short_id(folder)}  measured after round {found['round']} on {found['examples']} examples  {seconds}")
        for name, reason in reasons.items():
            note(f"{short_id(folder)}  {name}: {reason}")
    if as_json:
        return result({"runs": rows})
    table([_columns(row) for row in rows])


def _runs(place: Path) -> list[Path]:
    if not is_parent(place):
        return [place]
    found = [folder for folder in find(place) if read(folder).status.get("state") == "finished"]
    if not found:
        raise ConfigError("E210", "no run has finished yet", str(place), f"Go on: fedaccord resume {place}")
    return found


def _measure(folder: Path, rho: float | None, examples: int | None) -> dict[str, Any]:
    disk = RunFolder(folder)
    round, w, buffers = disk.last_model()
    try:
        resolved = from_run(folder)
    except ConfigError as problem:
        if problem.code != "E212":
            raise
        raise ConfigError("E212", problem.what, problem.where, "Measure from Python: fa.run(..., measures=fa.Measures())") from problem
    plan = resolved.experiment.measures or Measures()
    plan = replace(plan, rho=plan.rho if rho is None else rho, examples=plan.examples if examples is None else examples)
    experiment = replace(resolved.experiment, measures=plan)
    check(experiment)
    task = task_of(resolved)
    if task.data_hash() != read(folder).provenance.get("data_hash"):
        raise ConfigError("E212", "the data are not those of the run", str(folder), "Measure where its data are as they were")
    data, _ = share_out(experiment, task)
    model = FlatModel(task.build_model(experiment.run.seed))
    found = measured(plan, experiment, task, model, data, RunState(round, Server(w), buffers))
    disk.keep_measures(found)
    return found


def _columns(row: Mapping[str, Any]) -> dict[str, str]:
    found = row["measures"]
    head = {"run": row["run_id"], "algorithm": row["algorithm"], "seed": str(found["seed"]), "ρ": f"{found['rho']:g}"}
    return head | {quantity.words: shown(found[quantity.name], quantity.kind) for quantity in FLATNESS}
