"""Turns, ratios and tables: contestants take turns round by round, and what is compared are neighbours in time.

A figure is the median over blocks with its quartiles; a block is one turn of each. Times are wall time with all cores.
"""

from __future__ import annotations

import csv
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from contestants import Contestant

from fedaccord.runtime.cores import cores


@dataclass(frozen=True)
class Aim:
    """Where a figure has to lie."""

    bound: float
    at_most: bool = False  # True: below the bound; False: above it

    def met(self, value: float) -> bool:
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {self.bound:g}"


def at_least(bound: float) -> Aim:
    return Aim(bound)


def at_most(bound: float) -> Aim:
    return Aim(bound, at_most=True)


@dataclass(frozen=True)
class Row:
    """One figure of the table; `values` has one number a block, none where it could not be measured."""

    work: str
    what: str
    values: Sequence[float] = ()
    aim: Aim | None = None
    unit: str = "x"
    note: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        if len(self.values) < 2:
            return None
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def verdict(self) -> str:
        if self.median is None:
            return "not run"
        return "" if self.aim is None else "met" if self.aim.met(self.median) else "missed"

    def __str__(self) -> str:
        figure, spread = "", ""
        if self.median is not None:
            figure = f"{self.median:.4g} {self.unit}"
        if self.quartiles:
            spread = f"[{self.quartiles[0]:.4g}, {self.quartiles[1]:.4g}]"
        aim = "" if self.aim is None else f"aim {self.aim}"
        return f"{self.work:11} {self.what:50} {figure:>12} {spread:>18}  {aim:13} {self.verdict:7} {self.note}".rstrip()


def taking_turns(contestants: Sequence[Contestant], blocks: int) -> dict[str, list[float]]:
    """Seconds of every contestant's rounds, by name; the first turn warms up and is left out.

    Raises Miscounted where one did not do its workload's steps, and for the first turn also where its model went elsewhere.
    """
    seconds: dict[str, list[float]] = {each.name: [] for each in contestants}
    moved: dict[str, float] = {}
    for block in range(blocks + 1):
        for each in contestants:
            taken = one_turn(each)
            outcome, work = each.outcome(), each.workload.name
            each.workload.check(each.name, outcome, moved.get(work) if not block else None)
            if outcome.moved is not None:
                moved.setdefault(work, outcome.moved)
            if block:
                seconds[each.name].append(taken)
    return seconds


def one_turn(contestant: Contestant) -> float:
    """Seconds of one round."""
    torch.set_num_threads(contestant.threads)
    started = time.perf_counter()
    contestant.work()
    return time.perf_counter() - started


def ratios(seconds: Mapping[str, Sequence[float]], upper: str, lower: str) -> list[float]:
    """upper / lower of each block; none where one of them is missing."""
    if not seconds.get(upper) or not seconds.get(lower):
        return []
    return [above / below for above, below in zip(seconds[upper], seconds[lower], strict=True)]


def versions(names: Iterable[str] = ("torch", "numpy")) -> dict[str, str]:
    """What a result depends on."""
    found = {"python": platform.python_version(), "cores": str(cores()), "processor": _processor()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


COLUMNS = ("work", "what", "median", "low", "high", "unit", "aim", "verdict", "blocks", "note", "cores", "processor", "versions", "command")


def write_rows(rows: Sequence[Row], path: Path, command: str) -> None:
    """Into a CSV file: rows of works that were not measured now stay as they were. low, high: quartiles."""
    kept: list[dict[str, str]] = []
    if path.exists():
        with path.open(newline="") as file:
            kept = [line for line in csv.DictReader(file) if line["work"] not in {row.work for row in rows}]
    own = versions()
    text = " ".join(f"{name} {version}" for name, version in own.items() if name not in ("cores", "processor"))
    load = f"load {os.getloadavg()[0]:.1f}"
    new = [
        {
            "work": row.work,
            "what": row.what,
            "median": "" if row.median is None else f"{row.median:.4g}",
            "low": f"{row.quartiles[0]:.4g}" if row.quartiles else "",
            "high": f"{row.quartiles[1]:.4g}" if row.quartiles else "",
            "unit": row.unit,
            "aim": "" if row.aim is None else str(row.aim),
            "verdict": row.verdict,
            "blocks": str(len(row.values)),
            "note": row.note,
            "cores": own["cores"],
            "processor": own["processor"],
            "versions": f"{text}, {load} at the end",
            "command": command,
        }
        for row in rows
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([*kept, *new])
