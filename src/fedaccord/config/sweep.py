"""A list on a field that is no list stands for several runs: the cartesian product of all such lists, the first outermost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedaccord.config.build import Resolved, keywords_of, resolve
from fedaccord.config.fields import accepts, choice_of, hints_of, section_of, takes_lists
from fedaccord.config.layers import COMMAND_LINE, Key, Settings, dotted
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import CHOICES, Experiment
from fedaccord.tasks import TASKS, Task, user_factory

Point = tuple[Settings, tuple[tuple[str, Any], ...]]


def runs_of(
    settings: Settings, seeds: int | None = None, seed: int | None = None, varied: tuple[tuple[str, Any], ...] = ()
) -> list[Resolved]:
    """Every run that the settings ask for. seeds: that many, from `seed` (default: the configured one) upwards. varied: what told these
    settings from others already."""
    if seed is not None:
        settings = settings.set(("run", "seed"), seed, COMMAND_LINE)
    if seeds is not None:
        if seeds < 1:
            raise ConfigError("E203", f"{seeds} seeds", "--seeds", "Ask for 1 or more")
        first = settings.get(("run", "seed"))
        if isinstance(first, list):
            raise ConfigError("E208", "run.seed is a list already", "--seeds", "Leave one of the two out")
        first = 0 if first is None else first
        if isinstance(first, int) and not isinstance(first, bool):
            settings = settings.set(
                ("run", "seed"), list(range(first, first + seeds)), settings.source(("run", "seed")) if seeds == 1 else COMMAND_LINE
            )
    return [resolve(*point) for point in expanded(settings, varied)]


def expanded(settings: Settings, varied: tuple[tuple[str, Any], ...] = ()) -> list[Point]:
    """One point for each combination of the swept values."""
    key = _first_axis(settings)
    if key is None:
        return [(settings, varied)]
    values = settings.get(key)
    if not values:
        raise ConfigError("E203", "an empty list sweeps nothing", settings.where(key), "Give at least one value")
    source, points = settings.source(key), list[Point]()
    for value in values:
        points += expanded(settings.set(key, value, source), (*varied, (dotted(key), value)))
    return points


def _first_axis(settings: Settings) -> Key | None:
    tree = settings.tree
    task = _in_task(tree.get("task"))
    if task is not None:
        return task
    for section, hint in hints_of(Experiment).items():
        if section in tree:
            found = _in_value(hint, (section,), tree[section])
            if found is not None:
                return found
    return None


def _in_value(hint: Any, key: Key, value: Any) -> Key | None:
    choice, section = choice_of(hint), section_of(hint)
    if choice is None and section is None:
        return key if _sweeps(hint, value) else None
    if isinstance(value, list):
        return key
    if not isinstance(value, Mapping):
        return None
    if choice is not None and isinstance(value.get("name"), list):
        return (*key, "name")
    if choice is not None:
        name = value.get("name")
        section = _class(choice, name) if isinstance(name, str) else None
        hints = _union(choice) if section is None else hints_of(section)
    else:
        assert section is not None
        hints = hints_of(section)
    return _in_table(hints, key, value)


def _in_table(hints: Mapping[str, Any], key: Key, table: Mapping[str, Any]) -> Key | None:
    for part, value in table.items():
        if part in hints:
            found = _in_value(hints[part], (*key, part), value)
            if found is not None:
                return found
    return None


def _in_task(value: Any) -> Key | None:
    if isinstance(value, list):
        return ("task",)
    if not isinstance(value, Mapping):
        return None
    name = value.get("name")
    if isinstance(name, list):
        return ("task", "name")
    try:
        factory = TASKS.get(str(name)) or (user_factory(str(name)) if ":" in str(name) else None)
    except ConfigError:
        return None  # told when the task is built
    if factory is None or isinstance(factory, Task):
        return None
    return _in_table(keywords_of(factory)[0], ("task",), value)


def _sweeps(hint: Any, value: Any) -> bool:
    if not isinstance(value, list):
        return False
    if not takes_lists(hint):
        return True
    lists = bool(value) and all(isinstance(each, list) for each in value)
    return lists and not accepts(hint, value) and all(accepts(hint, each) for each in value)


def _class(choice: type, name: str) -> type | None:
    if name in CHOICES[choice]:
        return CHOICES[choice][name]
    try:
        found = user_factory(name) if ":" in name else None
    except ConfigError:
        return None
    return found if isinstance(found, type) and hasattr(found, "__dataclass_fields__") else None


def _union(choice: type) -> dict[str, Any]:
    """Without a name the default class is meant; a key that it lacks is told when the run is built."""
    return {name: hint for each in CHOICES[choice].values() for name, hint in hints_of(each).items()}
