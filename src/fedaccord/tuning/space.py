"""What may be moved: a field of the experiment, and the values that it may take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from fedaccord.config import check
from fedaccord.config.layers import parsed
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import Experiment
from fedaccord.tasks.nearest import did_you_mean

Point = dict[str, Any]  # dotted key -> value

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")


@dataclass(frozen=True)
class Range:
    """From `low` to `high`, drawn evenly in the logarithm; whole numbers where both bounds are written as such."""

    low: float
    high: float

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[float, ...]:
        """The values that stand for all when the axis is checked."""
        return self.low, self.high

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and self.low <= value <= self.high

    def rounded(self, value: float) -> float:
        """To three figures, within the bounds: nobody can read more into a trial."""
        return int(value) if self.is_whole else min(max(float(f"{value:.3g}"), self.low), self.high)


@dataclass(frozen=True)
class Choices:
    """One of `values`."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def __contains__(self, value: object) -> bool:
        return value in self.values

    def rounded(self, value: Any) -> Any:
        return value


Axis = Range | Choices


def axis_of(key: str, given: Any) -> Axis:
    """``"0.01..0.5"`` or (0.01, 0.5): a range; ``"0.01,0.03"`` or [0.01, 0.03]: a list. E203 or E206 for what is neither."""
    where, written = f"--set {key}", given
    if isinstance(given, Range | Choices):
        return _checked(given, where)
    if isinstance(given, str):
        bounds = RANGE.fullmatch(given.strip())
        given = (parsed(bounds[1]), parsed(bounds[2])) if bounds else _listed(given)
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(end, int | float) for end in given):
        return _checked(Range(*given), where)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _checked(Choices(tuple(given)), where)
    raise ConfigError("E206", f"{written!r} is neither a range nor a list", where, f"Write {key}=0.01..0.5 or {key}=0.01,0.03,0.1")


def _listed(text: str) -> Any:
    """A list, in brackets or without."""
    inner = text.strip()
    if inner.startswith("[") or "," not in inner:
        return parsed(inner)
    return [parsed(part.strip()) for part in inner.split(",") if part.strip()]


def _checked(axis: Axis, where: str) -> Axis:
    if isinstance(axis, Choices):
        if not axis.values:
            raise ConfigError("E203", "an empty list", where, "Give at least one value")
        return Choices(tuple(dict.fromkeys(axis.values)))
    if axis.low <= 0:
        raise ConfigError("E203", f"a range from {axis.low:g}", where, "It is drawn in the logarithm: begin above 0, or give a list")
    if axis.low >= axis.high:
        raise ConfigError("E203", f"a range from {axis.low:g} to {axis.high:g}", where, "Write the smaller number first")
    return axis


def is_axis(text: str) -> bool:
    """Whether the right-hand side of a ``--set`` names several values; all else is an override, as in the other verbs."""
    text = text.strip()
    return not text.startswith(("[", "{", '"', "'")) and (".." in text or "," in text)


def checked_axes(experiment: Experiment, axes: Mapping[str, Any]) -> dict[str, Axis]:
    """Every axis, each of its ends tried on the experiment. ConfigError with the place ``--set KEY`` for the first that does not fit."""
    found = {key: axis_of(key, given) for key, given in axes.items()}
    for key, axis in found.items():
        for value in axis.ends:
            try:
                check(with_values(experiment, {key: value}))
            except ConfigError as error:
                raise ConfigError(error.code, error.what, f"--set {key}", error.remedy) from None
    return found


def with_values(experiment: Experiment, point: Mapping[str, Any]) -> Experiment:
    """The experiment with these fields changed. E201 for a field that is not there."""
    for key, value in point.items():
        experiment = _replaced(experiment, key.split("."), value, key)
    return experiment


def value_of(experiment: Experiment, key: str) -> Any:
    """The present value of a field."""
    place: Any = experiment
    for part in key.split("."):
        place = getattr(place, part)
    return place


def _replaced(holder: Any, path: Sequence[str], value: Any, key: str) -> Any:
    name, *rest = path
    if key.split(".")[0] == "task":
        raise ConfigError("E208", "the task is data and model, which tuning leaves alone", f"--set {key}", "Run a sweep: fedaccord run")
    if not is_dataclass(holder):
        raise ConfigError("E201", f"unknown key '{name}': {key.rpartition('.')[0]} is {holder!r}", f"--set {key}", "Set that one first")
    names = [each.name for each in fields(holder) if each.init]
    if name not in names:
        owner = "" if isinstance(holder, Experiment) else f" of {type(holder).__name__}"
        raise ConfigError("E201", f"unknown key '{name}'{owner}", f"--set {key}", did_you_mean(name, names))
    inner = getattr(holder, name)
    return replace(holder, **{name: _replaced(inner, rest, value, key) if rest else value})  # type: ignore[type-var]
