"""A resolved experiment as TOML: every value written out, where it came from beside it; and a run's own file read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from fedaccord.config.build import Resolved, resolve
from fedaccord.config.layers import read_settings
from fedaccord.core.errors import ConfigError


def to_toml(tables: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    """Nested tables as a TOML text; the comment behind a value is its source."""
    document = tomlkit.document()
    for name, value in tables.items():
        if isinstance(value, Mapping):
            document.add(name, _table(value, sources, name))
        else:
            document.add(name, value)
    return tomlkit.dumps(document)


def _table(values: Mapping[str, Any], sources: Mapping[str, str], path: str) -> Table:
    table = tomlkit.table()
    inner = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    for name, value in values.items():  # a table's own values come before its sub-tables
        if name in inner:
            continue
        item = tomlkit.item(value)
        source = sources.get(f"{path}.{name}")
        table.add(name, item.comment(source) if source else item)
    for name, value in inner.items():
        table.add(name, _table(value, sources, f"{path}.{name}"))
    return table


def from_run(folder: Path) -> Resolved:
    """The experiment of a run folder, with the sources it was started with. E212 where the run was started from Python."""
    sources = json.loads((folder / "sources.json").read_text())
    if not sources or "call" in sources.values():
        remedy = "Resume it from Python: fa.run(..., folder=..., resume=True)"
        raise ConfigError("E212", "the run was started from Python, whose task is not in its file", str(folder), remedy)
    return replace(resolve(read_settings(folder / "experiment.toml")), sources=sources)
