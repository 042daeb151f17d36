"""Runs of a study, side by side in processes: each is one line of a file, and one whose line is there is not done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from multiprocessing.pool import AsyncResult, Pool
from pathlib import Path
from typing import Any

Line = dict[str, Any]


def lines(path: Path) -> dict[str, Line]:
    """The lines that are there, by key."""
    return {line["key"]: line for line in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


def do_all(
    pool: Pool,
    run: Callable[[Any], Line],
    ready: Callable[[dict[str, Line]], Iterable[Any]],
    path: Path,
    deadline: float,
    most: int,
    told: Callable[[Line], None] = lambda line: None,
) -> dict[str, Line]:
    """`run` of every job that `ready` names, given the lines so far, until it names no other; at most `most` at a time.

    A job has a `key`, and so has its line. No job begins after `deadline`, in seconds of the monotonic clock.
    """
    done, waiting = lines(path), dict[str, AsyncResult[Line]]()
    while True:
        for job in ready(done):
            if len(waiting) >= most or time.monotonic() > deadline:
                break
            if job.key not in done and job.key not in waiting:
                waiting[job.key] = pool.apply_async(run, (job,))
        if not waiting:
            return done
        for key, pending in list(waiting.items()):
            if pending.ready():
                done[key] = pending.get()
                del waiting[key]
                with path.open("a") as file:
                    file.write(json.dumps(done[key]) + "\n")
                told(done[key])
        time.sleep(0.05)
