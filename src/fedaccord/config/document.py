"""A run's own file read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from fedaccord.config.build import Resolved, resolve
from fedaccord.config.layers import read_settings
from fedaccord.core.errors import ConfigError


def from_run(folder: Path) -> Resolved:
    """The experiment of a run folder, with the sources it was started with. E212 where the run was started from Python."""
    sources = json.loads((folder / "sources.json").read_text())
    if not sources or "call" in sources.values():
        remedy = "Resume it from Python: fa.run(..., folder=..., resume=True)"
        raise ConfigError("E212", "the run was started from Python, whose task is not in its file", str(folder), remedy)
    return replace(resolve(read_settings(folder / "experiment.toml")), sources=sources)
