"""`fedaccord stop`: ask a run to finish its round, save and end."""

from __future__ import annotations

import time
from pathlib import Path

from fedaccord.cli.output import result, say
from fedaccord.cli.places import STOP, is_parent, locate, state_of
from fedaccord.core.errors import ConfigError
from fedaccord.runs import RunFolder, find, read, storage


def stop_run(name: str, wait: float, root: Path, as_json: bool) -> None:
    """Ask, wait for a while, and say what happened. E214 where nothing is running."""
    place = locate(name, root)
    folders = find(place) if is_parent(place) else [place]
    running = [folder for folder in folders if RunFolder(folder).is_running()]
    if not running:
        status = read(folders[0]).status if folders else {}
        at = "" if is_parent(place) or not folders else f" ({state_of(place, status)} at round {status.get('round')})"
        raise ConfigError("E214", f"{place.name} is not running{at}", str(place), "See: fedaccord ls")
    if is_parent(place):
        with storage(place):
            (place / STOP).touch()
    for folder in running:
        RunFolder(folder).ask_to_stop()
    deadline = time.monotonic() + wait
    while time.monotonic() < deadline and any(RunFolder(folder).is_running() for folder in running):
        time.sleep(0.1)
    ended = []
    for folder in running:
        status, still = read(folder).status, RunFolder(folder).is_running()
        state = "stopping" if still else str(status.get("state"))
        ended.append({"folder": str(folder), "state": state, "round": status.get("round"), "rounds": status.get("rounds")})
        if not as_json:
            said = (
                "asked; it stops when its round is over" if still else f"{state} after round {status.get('round')}/{status.get('rounds')}"
            )
            say(f"{folder.name}: {said}" + ("" if still or state == "finished" else f". Resume: fedaccord resume {place}"))
    if as_json:
        result({"stopped": ended})
