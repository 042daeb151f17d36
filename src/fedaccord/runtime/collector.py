"""Python's garbage collector, told to leave alone what lives as long as a run does."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Round = TypeVar("Round")
PATIENCE = 5.0  # seconds that a run has to take before it is worth it


def with_few_collections(rounds: Iterable[Round]) -> Iterator[Round]:
    """The rounds, one by one.

    With torch imported some 300,000 objects live in a process, and a full collection, which every few rounds of many clients bring about,
    looks through all of them: 0.2 s each. Once a run has taken some seconds, what is left after one more collection is set aside until
    the run is over.
    """
    started, has_set_aside = time.monotonic(), False
    try:
        for each in rounds:
            yield each
            is_due = not has_set_aside and time.monotonic() - started >= PATIENCE
            if is_due and gc.isenabled() and not gc.get_freeze_count():  # else somebody has set objects aside who means them to stay
                gc.collect()
                gc.freeze()
                has_set_aside = True
    finally:
        if has_set_aside:
            gc.unfreeze()
