"""The tables of docs/performance.md, made from results/runtimes.csv: between each pair of marks the rows of the works that it names."""

from __future__ import annotations

import csv
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
MARKS = re.compile(r"(<!-- rows: ([^>]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write_page(results: Path, page: Path = PAGE) -> None:
    """Fill the tables anew; what stands around them stays."""
    with results.open(newline="") as file:
        lines = list(csv.DictReader(file))
    page.write_text(MARKS.sub(lambda found: found[1] + table(lines, found[2].split(", ")) + found[3], page.read_text()))


def table(lines: list[dict[str, str]], works: list[str]) -> str:
    """One row a figure: median with its quartiles, and the aim where there is one."""
    if not any(line["work"] in works for line in lines):
        return "Not measured yet.\n"
    rows = ["| work | what | median | quartiles | aim | |", "| --- | --- | --- | --- | --- | --- |"]
    for line in (line for work in works for line in lines if line["work"] == work):
        figure = f"{line['median']} {line['unit']}".strip() if line["median"] else "not run"
        spread = f"{line['low']} to {line['high']}" if line["low"] else ""
        verdict = {"met": "met", "missed": "**missed**"}.get(line["verdict"], "")
        what = line["what"] + (f" ({line['note']})" if line["note"] else "")
        rows.append(f"| {line['work']} | {what} | {figure} | {spread} | {line['aim']} | {verdict} |")
    return "\n".join(rows) + "\n"
