"""Where the state of clients lies: in memory while it is small beside what is available, else in the run's folder."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from fedaccord.core.errors import ConfigError
from fedaccord.core.state import num_bytes
from fedaccord.runtime.options import RuntimeOptions, StateKind
from fedaccord.runtime.states import ClientState, ClientStates, InMemory, OnDisk
from fedaccord.tasks import memory

ROOM = 3  # memory, where so many times the state would fit: a checkpoint holds it twice, and training wants some


def client_states(asked: RuntimeOptions, like: ClientState, most: int, folder: Path | None) -> tuple[ClientStates, RuntimeOptions]:
    """What keeps the state of up to `most` clients that are like this one, and the options with `state` settled.

    E208 where it is to lie in a folder and there is none, E307 where it would not fit in memory.
    """
    options = replace(asked, state=_chosen(most, num_bytes(like), folder)) if asked.state == "auto" else asked
    if options.state == "disk" and num_bytes(like):
        if folder is None:
            what, remedy = "client state on disk needs a folder", "Give the run a folder, or use state = 'memory'"
            raise ConfigError("E208", what, "runtime.state", remedy)
        return OnDisk(like, folder / "clients"), options
    remedy = "Give the run a folder, where it can lie" if folder is None else "Set runtime.state = 'disk'"
    memory.require_memory(most * num_bytes(like), f"the state of {most} clients", "runtime.state", remedy)
    return InMemory(like), options


def _chosen(most: int, num_bytes_each: int, folder: Path | None) -> StateKind:
    needed, available = most * num_bytes_each, memory.available_memory()
    if folder is None or ROOM * needed <= available:
        return "memory"
    figures = f"{needed / 2**30:.3g} GiB, and {available / 2**30:.3g} GiB of memory are available"
    logging.getLogger("fedaccord").info("client state lies in the run's folder: %d clients may come to keep %s", most, figures)
    return "disk"
