"""The verbs that look at runs: ls, show, log, report."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.output import comparison, note, result, say, table
from fedaccord.cli.places import is_parent, locate, one_run, read_study, state_of
from fedaccord.cli.story import client_story, overview
from fedaccord.cli.words import SHORT, done_line, metric_of, round_line, run_line
from fedaccord.core.errors import ConfigError, FedaccordError
from fedaccord.report import comparison_rows, summary, write_report
from fedaccord.runs import Record, find, read, read_lines, short_id

POLL = 0.3  # seconds


def list_all(root: Path, as_json: bool) -> None:
    """`fedaccord ls`."""
    rows = []
    for folder in find(root):
        try:
            rows.append(_row(folder, root))
        except FedaccordError as damaged:  # one damaged run does not hide the others
            note(str(damaged))
    if as_json:
        result({"runs": rows})
    elif rows:
        table([{name: "–" if value is None else str(value) for name, value in _columns(row).items()} for row in rows])
    else:
        say(f"no runs in {root}")


def _row(folder: Path, root: Path) -> dict[str, Any]:
    record = read(folder)
    test = next((line for line in reversed(record.rounds) if metric_of(line)), None)
    found = metric_of(test) if test else None
    return {
        "run_id": short_id(folder),
        "folder": str(folder),
        "parent": None if folder.parent == root else str(folder.parent),
        "state": state_of(folder, record.status),
        "round": len(record.rounds),
        "rounds": record.status.get("rounds"),
        "algorithm": record.experiment["algorithm"]["name"],
        "task": record.experiment["task"]["name"],
        "seed": record.experiment["run"]["seed"],
        "metric": found[0] if found else None,
        "value": found[1] if found else None,
        "started": record.provenance.get("started"),
    }


def _columns(row: dict[str, Any]) -> dict[str, Any]:
    value = None if row["value"] is None else f"{SHORT.get(row['metric'], row['metric'])} {row['value']:.3f}"
    return {
        "run": row["run_id"],
        "state": row["state"],
        "round": f"{row['round']}/{row['rounds']}",
        "reached": value,
        "algorithm": row["algorithm"],
        "seed": row["seed"],
        "started": str(row["started"] or "").replace("T", " ").partition("+")[0],
        "folder": row["folder"],
    }


def show_run(name: str, client: int | None, root: Path, as_json: bool) -> None:
    """`fedaccord show`."""
    if client is None and is_parent(locate(name, root)):
        return _show_parent(locate(name, root), as_json)
    folder = one_run(name, root)
    record = read(folder)
    if client is not None:
        story = client_story(record, client)
        return result(story.data) if as_json else say("\n".join(story.lines))
    found = overview(record, state_of(folder, record.status))
    if as_json:
        return result(found.data)
    say("\n".join(found.lines))


def _show_parent(parent: Path, as_json: bool) -> None:
    study, orders = read_study(parent)
    rows = [_row(order.folder, parent) for order in orders if (order.folder / "status.json").exists()]
    records = [read(Path(row["folder"])) for row in rows if row["state"] == "finished"]
    waiting = len(orders) - len(rows)
    if as_json:
        return result(
            {"parent": str(parent), "runs": rows, "not_begun": waiting, "summary": summary(records, study["target"]) if records else []}
        )
    table([{name: "–" if value is None else str(value) for name, value in _columns(row).items()} for row in rows], parent.name)
    if waiting:
        say(f"{waiting} runs have not begun. Go on: fedaccord resume {parent}")
    if records:
        say()
        comparison(comparison_rows(records, study["target"]), "finished runs, 95% intervals over seeds; best is optimistic")


def print_log(name: str, follow: bool, root: Path, as_json: bool) -> None:
    """`fedaccord log`: the rounds so far, and with -f those to come."""
    folder = one_run(name, root)
    record = read(folder)
    rounds = int(record.status.get("rounds") or record.experiment["run"]["rounds"])
    if not as_json:
        say(run_line(short_id(folder), record.experiment, record.partition.get("clients")))
    for line in _lines(folder, follow):
        print(json.dumps(line, ensure_ascii=False) if as_json else round_line(line, rounds), flush=follow)
    if not as_json:
        status = read(folder).status
        say(f"{state_of(folder, status)}" + (f": {status['error']['code']} {status['error']['what']}" if status.get("error") else ""))


def _lines(folder: Path, follow: bool) -> Iterator[dict[str, Any]]:
    told = 0
    while True:
        running = follow and state_of(folder, read(folder).status) == "running"  # asked before reading, so that no last line is missed
        lines = list(read_lines(folder / "rounds.jsonl"))
        yield from lines[told:]
        told = max(told, len(lines))
        if not running:
            return
        time.sleep(POLL)


def write(names: Sequence[str], html: Path | None, target: float | None, metric: str | None, root: Path, as_json: bool) -> None:
    """`fedaccord report`."""
    places = [locate(name, root) for name in names]
    records: list[Record] = []
    for place in places:
        if is_parent(place):
            target = read_study(place)[0]["target"] if target is None else target
        records += [read(folder) for folder in (find(place) if is_parent(place) else [place])]
    records = list({record.folder: record for record in records}.values())
    if not any(record.rounds for record in records):
        raise ConfigError("E213", "no round was finished yet", ", ".join(names), "Wait for the first round")
    page = html or (places[0] / "report.html" if len(places) == 1 else Path("report.html"))
    written = write_report(records, page, target=target, metric=metric)
    rows = summary(records, target, metric)
    if as_json:
        return result(
            {
                "report": str(written.html),
                "csv": [str(written.summary), str(written.rounds), str(written.clients), str(written.partition), str(written.landscape)],
                "summary": rows,
            }
        )
    if len(rows) > 1:
        comparison(comparison_rows(records, target, metric), "95% intervals over seeds; best is optimistic")
    say(done_line(rows, str(written.html)).replace("done  ", "", 1))
