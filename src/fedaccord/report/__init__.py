"""Runs -> one self-contained HTML file, its CSV, and the table on the terminal.

``write_report(records, "report.html", target=0.8)``; `records` have the fields of `Record`; `fedaccord.runs.read` gives them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.core.errors import StorageError
from fedaccord.report.groups import study
from fedaccord.report.source import Record

__all__ = ["Record", "ReportPaths", "comparison_rows", "summary", "write_report"]


@dataclass(frozen=True)
class ReportPaths:
    """The files written."""

    html: Path
    rounds: Path
    clients: Path
    summary: Path
    partition: Path
    landscape: Path


def write_report(
    records: Sequence[Record],
    html_path: str | Path,
    *,
    target: float | None = None,
    metric: str | None = None,
    title: str | None = None,
    window: int = 5,
    last: int | None = None,
) -> ReportPaths:
    """Write the page and the CSV files beside it; existing ones are replaced. `records`: of runs, or the `Run`s themselves.

    `target`: value of the metric that the mean over `window` rounds must meet. `metric`: by default the first that is not 'loss'.
    `last`: rounds of the tail mean (50; a fifth of the rounds where no run has 100).
    Errors: E213 and E205 (see `groups.study`), E321 and E323 where the files cannot be written.
    """
    from fedaccord.report import csv, html

    page = Path(html_path)
    paths = ReportPaths(
        page, *(page.with_name(f"{page.stem}.{part}.csv") for part in ("rounds", "clients", "summary", "partition", "landscape"))
    )
    chosen = study([getattr(each, "record", each) for each in records], target, metric, window, last)
    files = (
        (paths.summary.name, "every figure of this page, by method and by seed"),
        (paths.rounds.name, "one line a round"),
        (paths.clients.name, "one line a client and round"),
        (paths.partition.name, "examples of each client"),
        (paths.landscape.name, "slices of the loss, where they were measured"),
    )
    texts = {
        paths.rounds: csv.rounds_csv(chosen),
        paths.clients: csv.clients_csv(chosen),
        paths.summary: csv.summary_csv(chosen),
        paths.partition: csv.partition_csv(chosen),
        paths.landscape: csv.landscape_csv(chosen),
        paths.html: html.render(chosen, title, files),
    }
    for path, text in texts.items():
        _write(path, text)
    return paths


def summary(
    records: Sequence[Record], target: float | None = None, metric: str | None = None, *, window: int = 5, last: int | None = None
) -> list[dict[str, Any]]:
    """One plain dict a method, ready for JSON: every figure with mean, low, high, n and each seed's value. Errors: as `write_report`."""
    from fedaccord.report.quantities import summary_rows

    return summary_rows(study(records, target, metric, window, last))


def comparison_rows(
    records: Sequence[Record], target: float | None = None, metric: str | None = None, *, window: int = 5, last: int | None = None
) -> list[dict[str, str]]:
    """The table on the terminal: one row a method, column name -> text; all rows have the same columns in the same order."""
    from fedaccord.report.quantities import measure
    from fedaccord.report.tables import results_as_text

    chosen = study(records, target, metric, window, last)
    return results_as_text(chosen, measure(chosen))


def _write(path: Path, text: str) -> None:
    """Written aside, then renamed, so that a reader never sees half a file."""
    aside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True) if path.parent.is_dir() else None
        code = "E321" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "E323"
        remedy = "free some space" if code == "E321" else "choose a folder that you may write to"
        raise StorageError(code, f"the report cannot be written ({error.strerror})", str(path), remedy) from error
