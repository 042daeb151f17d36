"""Nested tables as TOML text, in time linear in what they hold: index lists of many clients are long."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

NOTHING: Mapping[str, str] = {}


def to_toml(tables: Mapping[str, Any], comments: Mapping[str, str] = NOTHING) -> str:
    """Strings, booleans, numbers, lists and tables of these. comments: what stands behind the value of a dotted name.

    TypeError for anything else; a table's own values come before its sub-tables.
    """
    return "\n".join(_lines(tables, (), comments)).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]) -> list[str]:
    inner = {name: value for name, value in table.items() if isinstance(value, Mapping)}
    lines = []
    for name, value in table.items():
        if name not in inner:
            comment = comments.get(".".join((*path, name)))
            lines.append(f"{_key(name)} = {_value(value)}" + (f" # {comment}" if comment else ""))
    if path and (lines or not inner):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    if lines:
        lines.append("")
    for name, value in inner.items():
        lines += _lines(value, (*path, name), comments)
    return lines


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return repr(float(value)) if math.isfinite(value) else ("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(_value, value)) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)
