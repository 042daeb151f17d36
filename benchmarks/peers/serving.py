"""How a peer talks to the benchmark: one JSON line when it stands ready, then one for each line that it is sent, after one round.

The benchmark sends "round"; the answer says seconds, steps, examples (sample passes) and how far the model moved. Whatever else a library
prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor
from workloads import Workload, load

_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


@cache
def workload(path: str) -> Workload:
    """The work, read once in a process."""
    return load(Path(path))


def part(work: Workload, client: int) -> tuple[Tensor, Tensor]:
    """One client's (x, y)."""
    start, end = work.bounds()[client]
    x, y = work.tensors()
    return x[start:end], y[start:end]


def say(**told: Any) -> None:
    _ANSWERS.write(json.dumps(told) + "\n")
    _ANSWERS.flush()


class Turns:
    """For frameworks that have the loop themselves: `wait` before a round, `done` after it."""

    def __init__(self) -> None:
        say(ready=True)
        self._started = 0.0

    def wait(self) -> None:
        """Until the next round is asked for; ends the process where none is."""
        if not sys.stdin.readline():
            os._exit(0)
        self._started = time.perf_counter()

    def done(self, **told: Any) -> None:
        say(seconds=time.perf_counter() - self._started, **told)


def serve(round: Callable[[], dict[str, Any]]) -> None:
    """Answer until there is nothing more to read."""
    say(ready=True)
    while sys.stdin.readline():
        started = time.perf_counter()
        found = round()
        say(seconds=time.perf_counter() - started, **found)
