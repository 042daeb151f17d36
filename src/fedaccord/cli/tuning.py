"""`fedaccord tune`: staged tuning, its verdicts as they come, and a TOML file that `fedaccord run` takes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.interrupts import Interrupts
from fedaccord.cli.main import INTERRUPTED
from fedaccord.cli.output import is_rich, note, result, say, table
from fedaccord.cli.places import new_folder
from fedaccord.cli.progress import PAUSE, Progress
from fedaccord.cli.words import SHORT, round_line, run_line
from fedaccord.config import Resolved, Settings, read_settings, resolve, runs_of, to_toml
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import plain
from fedaccord.federation import RoundResult
from fedaccord.runs import lines_of, short_id, storage
from fedaccord.telemetry import Event
from fedaccord.tuning.door import Request, Tuned, Watcher, tune_experiment
from fedaccord.tuning.journal import ASKED, TABLE, read_asked, rows
from fedaccord.tuning.space import Point, is_axis
from fedaccord.tuning.stages import Attempt, Stage, StageResult, figure


def tune_config(
    config: Path | None,
    given: Sequence[str],
    trials: int | None,
    out: Path | None,
    metric: str | None,
    shares: str,
    rounds: str | None,
    root: Path,
    as_json: bool,
) -> int:
    """A new tuning, in a folder of its own below `root`."""
    if config is None:
        raise ConfigError("E204", "CONFIG is missing", "fedaccord tune", "Give the experiment's TOML file, or --resume TUNING")
    resolved, search = _asked(config, given)
    lengths = None if rounds is None else tuple(int(each) for each in _numbers(rounds, "--rounds", int))
    request = Request(search, trials, tuple(_numbers(shares, "--shares", float)), lengths, metric)
    if out is not None and out.exists():
        raise ConfigError("E211", "the file exists already", str(out), "Choose another --out, or remove it")
    folder = new_folder(resolved, root, "tune")
    return _tune(resolved, request, folder, False, out or folder / "tuned.toml", as_json)


def resume_tuning(name: str, out: Path | None, root: Path, as_json: bool) -> int:
    """The same again: trials that were made are read, not made."""
    folder = _locate(name, root)
    asked = read_asked(folder)
    tables, sources, request = asked["tables"], asked["sources"], asked["request"]
    again = resolve(Settings(tables, f"{folder.name}/{ASKED}"))
    resolved = Resolved(again.experiment, again.task, again.tables, sources)
    lengths = None if request["rounds"] is None else tuple(request["rounds"])
    wanted = Request(request["search"], request["trials"], tuple(request["shares"]), lengths, request["metric"])
    return _tune(resolved, wanted, folder, True, out or Path(asked["out"]), as_json, Path(asked["out"]))


def _tune(resolved: Resolved, request: Request, folder: Path, resume: bool, out: Path, as_json: bool, first_out: Path | None = None) -> int:
    task = resolved.task.make()
    more = {"tables": resolved.tables, "sources": resolved.sources, "out": str(first_out or out)}
    note(run_line(short_id(folder), resolved.tables).replace("run", "tune", 1))
    with Interrupts() as interrupts, Progress() as progress:
        shown = Shown(progress, resolved.experiment.local.batch_size)
        tuned = tune_experiment(
            resolved.experiment, task, request, folder=folder, resume=resume, more=more, watcher=shown, should_stop=interrupts.asked
        )
    has_found = any(each.score is not None for each in tuned.attempts)
    if has_found:
        with storage(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(_document(resolved, tuned))
    if as_json:
        result(_json(resolved, tuned, folder, out if has_found else None))
    else:
        _print(tuned, out if has_found else None, folder)
    if tuned.state != "finished":
        note(f"stopped after {len(tuned.attempts)} trials, which are kept. Go on: fedaccord tune --resume {folder}")
    return 0 if tuned.state == "finished" else INTERRUPTED


def _asked(config: Path, given: Sequence[str]) -> tuple[Resolved, dict[str, Any]]:
    """The experiment, and what to search: ranges and lists of --set, and whatever would be a sweep elsewhere."""
    pairs = [(text, *map(str.strip, text.partition("=")[::2])) for text in given]
    search: dict[str, Any] = {key: values for _, key, values in pairs if is_axis(values)}
    runs = runs_of(read_settings(config, [text for text, _, values in pairs if not is_axis(values)], os.environ))
    for key, value in (pair for run in runs for pair in run.varied):
        search.setdefault(key, [])
        if isinstance(search[key], list) and value not in search[key]:
            search[key].append(value)
    if "run.seed" in search:
        raise ConfigError("E208", "a tuning has one seed", "run.seed", "Give one seed; compare what was found over several")
    return runs[0], search


def _numbers(text: str, where: str, kind: type) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        example = "0.01,0.1,1" if kind is float else "6,20,100"
        raise ConfigError("E202", f"{text!r} is no list of numbers", where, f"Write e.g. {where} {example}") from None


def _locate(name: str, root: Path) -> Path:
    """The folder of a tuning, by its path, its name or its short id."""
    if (Path(name) / ASKED).is_file():
        return Path(name)
    places = [path.parent for path in root.glob(f"*/{ASKED}")]
    found = [path for path in places if path.name == name] or [path for path in places if short_id(path) == name]
    if len(found) != 1:
        what = f"{name!r} means {len(found)} tunings" if found else f"no tuning is called {name!r}"
        raise ConfigError("E210", what, str(root), "Give its folder")
    return found[0]


class Shown(Watcher):
    """Rounds as they pass, verdicts as they fall: on stderr. Without a terminal a trial's rounds are told every few seconds only."""

    def __init__(self, progress: Progress, batch_size: int | str) -> None:
        self._progress, self._batch_size = progress, batch_size
        self._stages, self._opened, self._told = tuple[Stage, ...](), 0, 0.0

    def planned(self, stages: tuple[Stage, ...]) -> None:
        self._stages = stages

    def begin(self, number: int, stage: Stage, point: Point) -> None:
        self._open(number)
        self._told = time.monotonic()
        self._progress.begin("trial", _values(point), stage.rounds)

    def round(self, result: RoundResult) -> None:
        line, _ = lines_of(result.report, (), ())
        if is_rich(sys.stderr):
            self._progress.emit("trial", Event("round_finished", {**line, "refused": [], "alerts": []}))
        elif time.monotonic() - self._told >= PAUSE:
            self._told = time.monotonic()
            self._progress.say(f"    {round_line(line, self._stages[self._opened - 1].rounds)}")

    def found(self, found: Attempt | StageResult) -> None:
        if isinstance(found, StageResult):
            self._progress.say(_conclusion(found))
            return
        self._open(found.stage)
        self._progress.end("trial")
        verdict = f"{found.verdict}: " if found.verdict else ""
        self._progress.say(f"  trial {found.number} ({found.origin})  {_values(found.point)}  {verdict}{found.why}")
        few, share = found.measured.examples_a_client, self._stages[found.stage - 1].share
        if found.number == 1 and share < 1 and isinstance(self._batch_size, int) and few < self._batch_size:
            self._progress.say(f"  note: {few:g} examples a client are less than one mini-batch; --shares gives more")

    def _open(self, number: int) -> None:
        if number != self._opened:
            stage, self._opened = self._stages[number - 1], number
            self._progress.say(f"stage {number} of {len(self._stages)}: {_part(stage.share)}, {stage.rounds} rounds")


def _conclusion(ended: StageResult) -> str:
    change = f"{ended.verdict}: " if ended.verdict.startswith("move") else ""
    return f"stage {ended.stage}  {'pass' if ended.passed else 'no pass'}  {change}{ended.why}"


def _part(share: float) -> str:
    return "all of the data" if share == 1 else f"{share * 100:.3g}% of the data"


def _values(point: Mapping[str, Any]) -> str:
    return "  ".join(f"{key.rpartition('.')[2]} {figure(value)}" for key, value in point.items())


def _print(tuned: Tuned, out: Path | None, folder: Path) -> None:
    """The table of all trials, what each stage said, and where the result is."""
    metric = SHORT.get(tuned.metric, tuned.metric)
    shown = [
        {
            "stage": str(each.stage),
            "data": f"{tuned.plan[each.stage - 1].share * 100:.3g}%",
            "trial": str(each.number),
            "from": each.origin,
            **{key.rpartition(".")[2]: figure(value) for key, value in each.point.items()},
            f"validation {metric}": figure(each.measured.metric),
            "verdict": each.verdict or "open",
        }
        for each in tuned.attempts
    ]
    table(shown, "1 trial" if len(shown) == 1 else f"{len(shown)} trials")
    for each in tuned.stages:
        say(_conclusion(each))
    found = "  ".join(f"{key} {figure(value)}" for key, value in tuned.values.items())
    if out is None:
        say(f"{tuned.state}  nothing was found yet  trials: {folder / TABLE}")
        return
    say(f"{'done' if tuned.state == 'finished' else tuned.state}  {found}  run: fedaccord run {out}  trials: {folder / TABLE}")


def _document(resolved: Resolved, tuned: Tuned) -> str:
    """The experiment with the values found, and behind each where it came from."""
    tables = {"task": resolved.tables["task"], **plain(tuned.experiment)}
    sources = dict(resolved.sources)
    for key, how in tuned.sources.items():
        sources[key] = f"{sources.get(key, 'default')}, {how}" if how.startswith("kept") else " ".join(how.split())
    head = f"# fedaccord tune: {len(tuned.attempts)} trials, judged on validation data, seed {tuned.experiment.run.seed}"
    ended = "" if tuned.passed else "; not every stage passed" if tuned.state == "finished" else "; interrupted"
    return f"{head}{ended}.\n\n{to_toml(tables, sources)}"


def _json(resolved: Resolved, tuned: Tuned, folder: Path, out: Path | None) -> dict[str, Any]:
    lines = rows(tuned.plan, tuned.attempts, tuned.metric)
    ended = {each.stage: each for each in tuned.stages}
    stages = []
    for number, stage in enumerate(tuned.plan, 1):
        own = ended.get(number)
        stages.append(
            {
                "stage": number,
                "share": stage.share,
                "rounds": stage.rounds,
                "passed": None if own is None else own.passed,
                "verdict": None if own is None else own.verdict,
                "why": None if own is None else own.why,
                "trials": [line for line in lines if line["stage"] == number],
            }
        )
    return {
        "run_id": short_id(folder),
        "folder": str(folder),
        "state": tuned.state,
        "passed": tuned.passed,
        "algorithm": resolved.tables["algorithm"]["name"],
        "seed": tuned.experiment.run.seed,
        "metric": tuned.metric,
        "start": tuned.start,
        "values": tuned.values,
        "sources": tuned.sources,
        "out": None if out is None else str(out),
        "table": str(folder / TABLE),
        "stages": stages,
    }
