"""What a tuning leaves on disk, so that it can be taken up again.

tuning.json     what was asked: the experiment, the ranges, the stages
trials.jsonl    one line a measured trial, written when it ends; a resumed tuning reads them instead of training again
tuning.csv      all trials with values, metric, figures and verdict, written anew after each
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedaccord.core.errors import ConfigError, StorageError
from fedaccord.runs import RunFolder, read_lines, storage
from fedaccord.tuning.space import Point
from fedaccord.tuning.stages import Attempt, Measured, Stage

ASKED, TRIALS, TABLE = "tuning.json", "trials.jsonl", "tuning.csv"


class Journal:
    """The trials of one tuning; without a folder they are kept in memory only. Close it to let go of the folder."""

    def __init__(self, folder: Path | None, asked: dict[str, Any], resume: bool) -> None:
        """E211 where a new tuning's folder is not empty; E210, E212 where there is nothing, or another tuning, to take up."""
        self.folder = folder
        self._known: dict[str, Measured] = {}
        self._lock: RunFolder | None = None
        if folder is None:
            return
        asked = json.loads(json.dumps(asked))
        if resume:
            _same(read_asked(folder), asked, folder)
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError("E211", "the folder is not empty", str(folder), "Choose another one, or resume the tuning in it")
        with storage(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = RunFolder(folder)
        self._lock.lock()
        if resume:
            self._known = _read(folder)
        with storage(folder):
            (folder / ASKED).write_text(json.dumps(asked, indent=1))
            lines = [_line(key, measured) for key, measured in self._known.items()]
            (folder / TRIALS).write_text("".join(lines))  # a last line that a killed process left unfinished is gone

    def find(self, stage: int, point: Point) -> Measured | None:
        """What this trial showed, where it was made before."""
        return self._known.get(_key(stage, point))

    def add(self, stage: int, point: Point, measured: Measured) -> None:
        """Keep a trial."""
        key = _key(stage, point)
        self._known[key] = measured
        if self.folder is not None:
            with storage(self.folder), (self.folder / TRIALS).open("a") as file:
                file.write(_line(key, measured))

    def table(self, stages: Sequence[Stage], attempts: Sequence[Attempt], metric: str) -> None:
        """Write tuning.csv."""
        if self.folder is None:
            return
        lines = rows(stages, attempts, metric)
        columns = list(dict.fromkeys(name for line in lines for name in line))
        with storage(self.folder), (self.folder / TABLE).open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def rows(stages: Sequence[Stage], attempts: Sequence[Attempt], metric: str) -> list[dict[str, Any]]:
    """One flat row a trial: what is in tuning.csv, in `--json` and in `Tuned.trials`. Figures of other stages are left out."""
    return [
        {
            "stage": each.stage,
            "share": stages[each.stage - 1].share,
            "rounds": stages[each.stage - 1].rounds,
            "trial": each.number,
            "origin": each.origin,
            **each.point,
            f"validation_{metric}": each.measured.metric,
            "verdict": each.verdict or "open",
            "why": each.why,
            "examples": each.measured.examples,
            "gradients": each.measured.gradients,
            **each.measured.figures,
        }
        for each in attempts
    ]


def read_asked(folder: Path) -> dict[str, Any]:
    """What the tuning in this folder was asked. E210 where there is none, E322 where it cannot be read."""
    if not (folder / ASKED).is_file():
        raise ConfigError("E210", "no tuning is here", str(folder), "Start it without --resume")
    try:
        found: dict[str, Any] = json.loads((folder / ASKED).read_text())
    except ValueError as problem:
        raise StorageError("E322", f"{ASKED} is not JSON ({problem})", str(folder)) from problem
    return found


def _same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    changed = [name for name in new if new[name] != old.get(name)]
    if changed:
        what = f"the tuning in this folder was asked something else: {', '.join(changed)} differ"
        raise ConfigError("E212", what, str(folder), "Ask the same, or start a new one")


def _read(folder: Path) -> dict[str, Measured]:
    try:
        return {_key(line["stage"], line["point"]): Measured(**line["measured"]) for line in read_lines(folder / TRIALS)}
    except (KeyError, TypeError) as problem:
        raise StorageError("E322", f"{TRIALS} cannot be read ({type(problem).__name__}: {problem})", str(folder)) from problem


def _key(stage: int, point: Point) -> str:
    return json.dumps({"stage": stage, "point": point}, sort_keys=True)


def _line(key: str, measured: Measured) -> str:
    return json.dumps({**json.loads(key), "measured": asdict(measured)}, allow_nan=False) + "\n"
