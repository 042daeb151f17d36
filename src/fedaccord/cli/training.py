"""The verbs that train: run, resume, compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.interrupts import Interrupts
from fedaccord.cli.main import INTERRUPTED
from fedaccord.cli.one import train
from fedaccord.cli.output import comparison as show_comparison
from fedaccord.cli.output import note, result, say
from fedaccord.cli.places import STOP, Order, is_parent, lay_out, locate, read_study, write_study
from fedaccord.cli.pool import Outcome, Pool
from fedaccord.cli.progress import Progress, Sink
from fedaccord.cli.words import done_line, run_line
from fedaccord.config import alternatives, checked_section, comparison, from_run, read_settings, runs_of, to_toml
from fedaccord.core.errors import ConfigError, FedaccordError
from fedaccord.report import comparison_rows, summary, write_report
from fedaccord.runs import read, short_id
from fedaccord.runtime.cores import cores


def run_config(
    config: Path,
    overrides: Sequence[str],
    seeds: int | None,
    seed: int | None,
    out: Path,
    jobs: int | None,
    target: float | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """`fedaccord run`."""
    settings = read_settings(config, overrides, os.environ)
    wanted = checked_section(settings).get("target") if target is None else target
    runs = runs_of(settings, seeds, seed)
    varied = {key for each in runs for key, _ in each.varied}
    parent, orders = lay_out(runs, out, "seeds" if varied == {"run.seed"} else "sweep")
    if dry_run:
        return _dry_run(orders, as_json)
    if parent is None:
        return _finish(None, [_alone(orders[0], resume=False)], wanted, None, as_json)
    write_study(parent, orders, "sweep", wanted, None)
    return _together(parent, orders, jobs, wanted, None, as_json)


def resume_run(name: str, root: Path, jobs: int | None, as_json: bool, html: Path | None = None) -> int:
    """`fedaccord resume`: a run, or what is left of a parent's runs."""
    folder = locate(name, root)
    if not is_parent(folder):
        if read(folder).status.get("state") == "finished":
            note("the run has finished; there is nothing left to do")
            return _finish(None, [Outcome(Order(from_run(folder), folder), "finished")], None, None, as_json)
        return _finish(None, [_alone(Order(from_run(folder), folder), resume=True)], None, None, as_json)
    study, orders = read_study(folder)
    (folder / STOP).unlink(missing_ok=True)
    kept = study["html"]
    page = html if html is not None else None if kept is None else Path(kept)
    return _together(folder, orders, jobs, study["target"], page, as_json, compared=study["kind"] == "compare")


def compare_methods(
    config: Path,
    algorithms: str | None,
    seeds: int | None,
    seed: int | None,
    target: float | None,
    html: Path | None,
    overrides: Sequence[str],
    out: Path,
    jobs: int | None,
    as_json: bool,
    under: Mapping[str, str | None],
) -> int:
    """`fedaccord compare`: every method on the same seeds, so on the same partitions, initial weights and cohorts.

    under: option -> the attacks, screens and policies that each method is put under; None: as the configuration says.
    """
    found = comparison(read_settings(config, overrides, os.environ), _listed(algorithms or ""), seeds, target)
    asked = {option: _listed(names) for option, names in under.items() if names is not None}
    points = [point for method in found.methods for point in alternatives(method, asked)]
    runs = [each for settings, varied in points for each in runs_of(settings, found.seeds, seed, varied)]
    runs.sort(key=lambda each: each.experiment.run.seed)  # an interrupted comparison has whole seeds, not whole methods
    parent, orders = lay_out(runs, out, "compare")
    if parent is None:
        return _finish(None, [_alone(orders[0], resume=False)], found.target, html, as_json)
    write_study(parent, orders, "compare", found.target, html)
    return _together(parent, orders, jobs, found.target, html, as_json, compared=True)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _dry_run(orders: Sequence[Order], as_json: bool) -> int:
    """Build everything that a run needs, and write nothing."""
    import tempfile

    from fedaccord.cli.one import task_of
    from fedaccord.experiment import partition_summary, prepare

    shown = []
    for order in orders:
        resolved, task = order.resolved, task_of(order.resolved)
        with tempfile.TemporaryDirectory() as folder:
            prepared = prepare(resolved.experiment, task, None, Path(folder))
        drawn = partition_summary(resolved.experiment, task, prepared.partition)
        shown.append(
            {
                "name": order.folder.name,
                "experiment": resolved.tables,
                "sources": resolved.sources,
                "clients": drawn["clients"],
                "notes": drawn["notes"],
            }
        )
        if not as_json:
            say(run_line("(dry)", resolved.tables, drawn["clients"]))
            for line in drawn["notes"]:
                say(f"note: {line}")
    if as_json:
        result({"dry_run": True, "runs": shown})
    else:
        say()
        say(to_toml(orders[0].resolved.tables, orders[0].resolved.sources).rstrip())
        say(f"\n{len(orders)} {'run' if len(orders) == 1 else 'runs'} would be made; nothing was written")
    return 0


def _alone(order: Order, resume: bool) -> Outcome:
    """A single run, in this process. Its errors are the verb's."""
    run_id = short_id(order.folder)
    with Interrupts() as interrupts:
        try:
            with Progress() as progress:
                progress.begin(run_id, order.label, order.resolved.experiment.run.rounds)
                status = train(order.resolved, order.resolved.sources, order.folder, resume, [Sink(run_id, progress)], interrupts.asked)
        except KeyboardInterrupt:
            note(f"stopped at once; the run goes on from its last checkpoint. Resume: fedaccord resume {_word(order.folder)}")
            return Outcome(order, "interrupted", exit_code=INTERRUPTED)
    if status["state"] != "finished":
        note(f"stopped after round {status['round']}/{status['rounds']}, saved. Resume: fedaccord resume {_word(order.folder)}")
        return Outcome(order, "stopped", exit_code=INTERRUPTED)
    return Outcome(order, "finished")


def _together(
    parent: Path, orders: Sequence[Order], jobs: int | None, target: float | None, html: Path | None, as_json: bool, compared: bool = False
) -> int:
    """Siblings under one parent; those that are finished already are left alone."""
    if jobs is not None and jobs < 1:
        raise ConfigError("E203", f"{jobs} jobs", "--jobs", "Ask for 1 or more")
    done = {order.folder for order in orders if _is_finished(order.folder)}
    left = [order for order in orders if order.folder not in done]
    jobs = min(jobs or cores(), max(len(left), 1))
    note(f"{len(left)} of {len(orders)} runs to do, {jobs} at a time, in {parent}")
    with Progress(several=len(left)) as progress:
        outcomes = {each.order.folder: each for each in Pool(left, jobs, progress, parent).run()} if left else {}
    ended = [outcomes.get(order.folder, Outcome(order, "finished")) for order in orders]
    return _finish(parent, ended, target, html, as_json, compared)


def _finish(
    parent: Path | None, outcomes: Sequence[Outcome], target: float | None, html: Path | None, as_json: bool, compared: bool = False
) -> int:
    """The report and the closing line, or how to go on; the exit code."""
    finished = [read(each.order.folder) for each in outcomes if each.state == "finished"]
    whole = len(finished) == len(outcomes)
    place = html or (parent or outcomes[0].order.folder) / "report.html"
    rows: list[dict[str, Any]] = []
    if finished and (whole or parent is not None):
        write_report(finished, place, target=target)
        rows = summary(finished, target)
    code = _exit_code(outcomes)
    failed = [each for each in outcomes if each.error is not None]
    if as_json:
        _json(parent, outcomes, rows, place if rows else None, failed)
    elif rows:
        if compared or len(rows) > 1:
            seeds = {run.experiment["run"]["seed"] for run in finished}
            many = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds, 95% intervals"
            show_comparison(comparison_rows(finished, target), f"{many}; best is optimistic")
        say(done_line(rows, str(place)))
    for each in failed:
        assert each.error is not None
        note(str(FedaccordError(*(each.error[part] for part in ("code", "what", "where", "remedy")))))
        if "--debug" in sys.argv and each.traceback:
            note(each.traceback)
    if parent is not None and not whole:
        missing = len(outcomes) - len(finished)
        note(f"{missing} of {len(outcomes)} runs are not finished. Go on: fedaccord resume {_word(parent)}")
    return code


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    codes = [each.exit_code for each in outcomes if each.error is not None]
    if codes:
        return codes[0]
    return 0 if all(each.state == "finished" for each in outcomes) else INTERRUPTED


def _json(parent: Path | None, outcomes: Sequence[Outcome], rows: Any, report: Path | None, failed: Sequence[Outcome]) -> None:
    runs = [
        {
            "run_id": short_id(each.order.folder),
            "folder": str(each.order.folder),
            "algorithm": each.order.resolved.tables["algorithm"]["name"],
            "seed": each.order.resolved.experiment.run.seed,
            "varied": dict(each.order.resolved.varied),
            "state": each.state,
            "error": each.error,
            **_reached(each),
        }
        for each in outcomes
    ]
    document: dict[str, Any] = {"runs": runs, "summary": rows, "report": None if report is None else str(report)}
    if parent is not None:
        document = {"parent": str(parent), "run_id": short_id(parent), **document}
    if failed:
        document["error"] = failed[0].error
    result(document)


def _reached(outcome: Outcome) -> dict[str, Any]:
    """Rounds done and the last test metrics."""
    try:
        record = read(outcome.order.folder)
    except FedaccordError:
        return {"round": 0, "rounds": outcome.order.resolved.experiment.run.rounds, "test": None}
    test = next((line["test"] for line in reversed(record.rounds) if line.get("test")), None)
    return {"round": record.status.get("round", 0), "rounds": record.status.get("rounds"), "test": test}


def _is_finished(folder: Path) -> bool:
    return (folder / "status.json").exists() and read(folder).status.get("state") == "finished"


def _word(folder: Path) -> str:
    """What stands for the folder on the command line: the short id in the usual place, else the folder."""
    usual = folder.parent == Path("runs") and folder.name.endswith(f"_{short_id(folder)}")
    return short_id(folder) if usual else str(folder)
