"""toml.py: what is written is read back as it was, by Python's own reader."""

from __future__ import annotations

import math
import time
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.core.toml import to_toml

# No lone surrogates: no file can hold them.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=12)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_is_read_back_type_for_type(tables: dict[str, Any]) -> None:
    assert repr(_sorted(tomllib.loads(to_toml(tables)))) == repr(_sorted(tables))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def test_not_a_number_is_written_as_toml_has_it() -> None:
    assert math.isnan(tomllib.loads(to_toml({"a": math.nan}))["a"])


def test_tables_are_laid_out_for_people() -> None:
    tables = {"task": {"name": "x", "options": {}}, "a": 1.5, "e": {"sub": {"z": True}}, "list": [[1, 2], [{"b c": "ü\n"}]]}
    assert to_toml(tables, {"task.name": "file", "e.sub.z": "default", "a": ""}) == (
        'a = 1.5\nlist = [[1, 2], [{"b c" = "ü\\n"}]]\n\n[task]\nname = "x" # file\n\n[task.options]\n\n[e.sub]\nz = true # default\n'
    )


def test_what_toml_cannot_say_is_a_type_error() -> None:
    for value in (None, object(), {1, 2}):
        with pytest.raises(TypeError, match="TOML has no"):
            to_toml({"a": value})


def test_the_time_is_linear_in_the_length_of_a_list() -> None:
    def seconds(length: int) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            to_toml({"rows": [[i, i + 1] for i in range(length)]})
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(40_000) < 25 * seconds(4_000)  # ten times in theory; a quadratic writer takes a hundred times
