"""One run, from its order to its records on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaccord.api import execute
from fedaccord.config import Resolved, to_toml
from fedaccord.tasks import Task
from fedaccord.telemetry import Telemetry

_last_task: list[tuple[str, Task]] = []  # runs of one comparison share their data


def task_of(resolved: Resolved) -> Task:
    """The task, loaded once for runs one after another that ask for the same."""
    wanted = json.dumps(resolved.tables["task"], sort_keys=True)
    if not _last_task or _last_task[0][0] != wanted:
        _last_task[:] = [(wanted, resolved.task.make())]
    return _last_task[0][1]


def train(
    resolved: Resolved,
    sources: Mapping[str, str],
    folder: Path,
    resume: bool,
    telemetry: Sequence[Telemetry],
    should_stop: Callable[[], bool],
) -> dict[str, Any]:
    """Run or resume it; the status at its end. Errors: as `api.execute` raises them."""
    run = execute(
        resolved.experiment,
        task_of(resolved),
        resolved.tables,
        sources=dict(sources),
        folder=folder,
        resume=resume,
        telemetry=telemetry,
        should_stop=should_stop,
        to_toml=to_toml,
    )
    return dict(run.record.status)
