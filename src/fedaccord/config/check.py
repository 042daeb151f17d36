"""An experiment that was built from Python objects, held to the same rules as one from a file."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedaccord.config.build import check_kind
from fedaccord.config.fields import checked, choice_of, crossed, has_none, hints_of, section_of
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import CHOICES, Experiment

OURS = {kind for registry in CHOICES.values() for kind in registry.values()}


def check(experiment: Experiment) -> None:
    """E202, E203 or E205 for the first value that a file could not hold either. Classes that are not ours are taken as they are."""
    _check(experiment, "")


def _check(holder: Any, path: str) -> None:
    for name, hint in hints_of(type(holder)).items():
        value, where = getattr(holder, name), f"{path}.{name}" if path else name
        choice = choice_of(hint)
        if value is None and has_none(hint):
            continue
        if choice is not None:
            _check_choice(choice, value, where)
        elif section_of(hint) is not None:
            if not isinstance(value, section_of(hint)):  # type: ignore[arg-type]
                raise ConfigError("E202", f"{where} is a {type(value).__name__}", where, f"Give a {section_of(hint).__name__}(...)")  # type: ignore[union-attr]
            _check(value, where)
        else:
            checked(hint, value, where, where)
    for what, remedy in crossed(holder):
        raise ConfigError("E203", what, path, remedy)


def _check_choice(choice: type, value: Any, where: str) -> None:
    if isinstance(value, type):
        raise ConfigError("E202", f"{where} is the class {value.__name__}, not an object of it", where, f"Write {value.__name__}(...)")
    if isinstance(value, str):
        known = CHOICES[choice].get(value)
        raise ConfigError(
            "E202", f"{where} = {value!r} is a string", where, f"Give an object: fa.{known.__name__}(...)" if known else "Give an object"
        )
    if hasattr(value, "load_partition") and not hasattr(value, "split"):
        raise ConfigError("E202", f"{where} is a partitioner of another library", where, "Wrap it: fa.FromPartitioner(...)")
    check_kind(choice, value, where, where)
    if type(value) in OURS and dataclasses.is_dataclass(value):
        _check(value, where)
