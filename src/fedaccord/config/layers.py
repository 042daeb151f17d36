"""Where values come from: the file, the environment, the command line; merged into one tree that remembers the origin of each value.

Command line > environment > file > default.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedaccord.core.errors import ConfigError

PREFIX = "FEDACCORD__"  # FEDACCORD__ALGORITHM__RHO=0.05 sets algorithm.rho

Key = tuple[str, ...]  # ("algorithm", "rho")
DEFAULT, FILE, ENVIRONMENT, COMMAND_LINE = "default", "file", "environment", "command line"


@dataclass(frozen=True)
class Settings:
    """A tree of values as written, not yet checked, and the source of each; every change gives a new object."""

    tree: dict[str, Any]
    file: str = ""  # its name, for messages
    sources: dict[Key, str] = field(default_factory=dict)  # where a value, and all below it, came from; the file where nothing is noted

    def set(self, key: Key, value: Any, source: str) -> Settings:
        """`key` holds `value`, which came from `source`. A choice that was written as a bare name becomes a table to hold the key."""
        tree = copy.deepcopy(self.tree)
        place = tree
        for part in key[:-1]:
            inner = place.get(part)
            place[part] = inner if isinstance(inner, dict) else as_table(inner, key[:-1])
            place = place[part]
        place[key[-1]] = value
        below = {old: source_of for old, source_of in self.sources.items() if old[: len(key)] != key}
        return replace(self, tree=tree, sources={**below, key: source})

    def without(self, key: Key) -> Settings:
        """The same without `key`."""
        tree = copy.deepcopy(self.tree)
        place: Any = tree
        for part in key[:-1]:
            place = place.get(part) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place.pop(key[-1], None)
        return replace(self, tree=tree, sources={old: source for old, source in self.sources.items() if old[: len(key)] != key})

    def get(self, key: Key) -> Any:
        """The value as written, or None."""
        place: Any = self.tree
        for part in key:
            place = place.get(part) if isinstance(place, dict) else None
        return place

    def source(self, key: Key) -> str:
        """Where the value of `key` came from; a shorthand such as `cohort = 10` gives the keys that it stands for."""
        place: Any = self.tree
        for depth, part in enumerate(key):
            table = place if isinstance(place, dict) else as_table(place, key[:depth])
            if part not in table:
                return DEFAULT
            place = table[part]
        return next((self.sources[key[:length]] for length in range(len(key), 0, -1) if key[:length] in self.sources), FILE)

    def _only(self, inner: Key, outer: Key) -> bool:
        """Whether the table `outer` holds nothing but `inner`."""
        return all(
            isinstance(self.get(inner[:depth]), dict) and len(self.get(inner[:depth])) == 1 for depth in range(len(outer), len(inner))
        )

    def where(self, key: Key) -> str:
        """The place of a value, in words."""
        below = [other for other in self.sources if other[: len(key)] == key]
        if len(below) == 1 and self._only(below[0], key):  # a table that one override made
            key = below[0]
        source = self.source(key)
        if source == COMMAND_LINE:
            return f"-s {dotted(key)}"
        if source == ENVIRONMENT:
            return PREFIX + "__".join(key).upper()
        section = f"[{dotted(key[:-1])}] {key[-1]}" if len(key) > 1 else f"[{key[0]}]"
        return f"{section} in {self.file}" if self.file else section


def as_table(value: Any, key: Key) -> dict[str, Any]:
    """A choice that is written short, as the table it stands for: a name, or (cohorts) a number of clients or a share of them."""
    if isinstance(value, str):
        return {"name": value}
    if key != ("run", "cohort") or isinstance(value, bool):
        return {}
    if isinstance(value, int):
        return {"name": "uniform", "size": value}
    return {"name": "coin", "rate": value} if isinstance(value, float) else {}


def dotted(key: Key) -> str:
    return ".".join(key)


def read_settings(path: Path, overrides: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> Settings:
    """A TOML file, then the environment, then ``key=value`` overrides. E206 where the file is missing or no TOML, with its line."""
    settings = Settings(_toml(path), path.name)
    for name, text in sorted((environment or {}).items()):
        if name.startswith(PREFIX):
            key = tuple(part.lower() for part in name.removeprefix(PREFIX).split("__"))
            settings = settings.set(key, parsed(text), ENVIRONMENT)
    return with_overrides(settings, overrides)


def with_overrides(settings: Settings, overrides: Iterable[str]) -> Settings:
    """Apply ``-s section.key=value``."""
    for override in overrides:
        name, equals, text = override.partition("=")
        key = tuple(name.strip().split("."))
        if not equals or not all(key):
            raise ConfigError("E206", f"{override!r} is not key=value", f"-s {override}", "Write for instance: -s algorithm.rho=0.05")
        settings = settings.set(key, parsed(text.strip()), COMMAND_LINE)
    return settings


def parsed(text: str) -> Any:
    """A value as TOML reads it; what TOML cannot read is a bare word, or a list of bare words."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"\[[^\[\]{}]*\]", text):
            return [parsed(part.strip()) for part in text[1:-1].split(",") if part.strip()]
        return text


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("E206", "no such file", str(path), "Start one with: fedaccord new NAME") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError("E206", f"the file cannot be read ({problem})", str(path)) from problem
    except tomllib.TOMLDecodeError as problem:
        line = re.search(r"line (\d+)", str(problem))
        place = f"{path}, line {line[1]}" if line else str(path)
        what = re.sub(r" \(at (line.*|end of document)\)", "", str(problem))
        raise ConfigError("E206", what, place, "Strings need quotes; a table starts with [name]") from problem


def shown(value: Any) -> str:
    """A value in a message."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)
