"""Results go to stdout, as text or as JSON; everything else goes to stderr. Colour and live lines on a terminal only."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

MOST_METHODS = 5  # side by side


def is_rich(stream: TextIO) -> bool:
    """Whether colours and moving lines are welcome there."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def result(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, ensure_ascii=False, allow_nan=False))


def say(text: str = "") -> None:
    """A line of the result."""
    print(text)


def note(text: str) -> None:
    """A line beside the result."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[dict[str, str]], title: str = "") -> None:
    """Rows with the same columns, on stdout."""
    if not rows:
        return
    columns = list(rows[0])
    if is_rich(sys.stdout):
        from rich.console import Console
        from rich.table import Table

        shown = Table(title=title or None, title_justify="left")
        for column in columns:
            shown.add_column(column, overflow="fold")
        for row in rows:
            shown.add_row(*(row[column] for column in columns))
        Console().print(shown)
        return
    if title:
        say(title)
    widths = [max(len(column), *(len(row[column]) for row in rows)) for column in columns]
    for cells in [columns, *([row[column] for column in columns] for row in rows)]:
        say("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


def comparison(rows: Sequence[dict[str, str]], title: str) -> None:
    """Rows with many columns: a column a method, so that it fits on a screen."""
    if len(rows) > MOST_METHODS:
        table(rows, title)
        return
    first, *others = list(rows[0])
    table([{first: other, **{row[first]: row[other] for row in rows}} for other in others], title)
