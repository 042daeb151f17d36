"""The [compare] section: which methods, how many seeds, which target, and each method's own keys in [compare.METHOD]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from fedaccord.algorithms import REGISTRY
from fedaccord.config.fields import checked, hints_of
from fedaccord.config.layers import COMMAND_LINE, ENVIRONMENT, Settings
from fedaccord.core.errors import ConfigError
from fedaccord.tasks.nearest import did_you_mean

HINTS: dict[str, Any] = {"algorithms": tuple[str, ...], "seeds": Annotated[int, Ge(1)], "target": float}


@dataclass(frozen=True)
class Comparison:
    """Each method's settings, in the order asked for."""

    methods: tuple[Settings, ...]
    seeds: int | None
    target: float | None


def comparison(settings: Settings, algorithms: Sequence[str] = (), seeds: int | None = None, target: float | None = None) -> Comparison:
    """What to compare; arguments count more than the [compare] section. E204 without methods, E201, E202 and E203 for the section's faults.

    The keys of [algorithm] belong to the method that it names; those of `-s algorithm.key=...` go to every method that has the key.
    """
    section = settings.get(("compare",)) or {}
    found = checked_section(settings)
    names = tuple(algorithms) or tuple(found.get("algorithms", ()))
    if not names:
        raise ConfigError(
            "E204", "no methods to compare", settings.file, "Give --algorithms fedavg,fedsmoo, or [compare] algorithms = [...]"
        )
    for name in names:
        if name not in REGISTRY and ":" not in name:
            raise ConfigError(
                "E205", f"{name!r} is not known", "--algorithms" if algorithms else "[compare] algorithms", did_you_mean(name, REGISTRY)
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            "E208", f"{', '.join(twice)} is named twice", "--algorithms" if algorithms else "[compare] algorithms", "Name each method once"
        )
    for name in section:
        if isinstance(section[name], Mapping) and name not in names and name not in REGISTRY:
            raise ConfigError("E201", f"unknown key '{name}'", settings.where(("compare", name)), did_you_mean(name, [*HINTS, *names]))
    shared, source = _shared(settings, names), COMMAND_LINE if algorithms else settings.source(("compare", "algorithms"))
    methods = tuple(_method(settings, name, shared, source) for name in names)
    return Comparison(methods, seeds or found.get("seeds"), found.get("target") if target is None else target)


def checked_section(settings: Settings) -> dict[str, Any]:
    """algorithms, seeds and target of the section, as far as it gives them."""
    section = settings.get(("compare",))
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise ConfigError("E202", "compare is no table", settings.where(("compare",)), "Write [compare] and its keys below")
    found = {}
    for name, value in section.items():
        where = settings.where(("compare", name))
        if name in HINTS:
            found[name] = checked(HINTS[name], value, name, where)
        elif not isinstance(value, Mapping):
            raise ConfigError("E201", f"unknown key '{name}'", where, did_you_mean(name, [*HINTS, *REGISTRY]))
    return found


def _shared(settings: Settings, names: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Keys that the command line or the environment give to [algorithm]: name -> (value, source). E201 where no method has the key."""
    table = settings.get(("algorithm",))
    given = {} if not isinstance(table, Mapping) else {key: settings.source(("algorithm", key)) for key in table if key != "name"}
    shared = {key: (table[key], source) for key, source in given.items() if source in (COMMAND_LINE, ENVIRONMENT)}
    known = {key for name in names for key in (hints_of(REGISTRY[name]) if name in REGISTRY else shared)}
    for key in shared:
        if key not in known:
            raise ConfigError(
                "E201", f"none of {', '.join(names)} has the key '{key}'", settings.where(("algorithm", key)), did_you_mean(key, known)
            )
    return shared


def _method(settings: Settings, name: str, shared: Mapping[str, tuple[Any, str]], source: str) -> Settings:
    table = settings.get(("algorithm",))
    named = table if isinstance(table, str) else (table or {}).get("name", "fedavg")
    own = (
        {key: (value, settings.source(("algorithm", key))) for key, value in table.items() if key != "name"}
        if isinstance(table, Mapping)
        else {}
    )
    from_section = own if named == name else {}
    keys = hints_of(REGISTRY[name]) if name in REGISTRY else shared
    given = {**from_section, **_own_table(settings, name), **{key: value for key, value in shared.items() if key in keys}}
    method = settings.without(("compare",)).set(("algorithm",), {"name": name}, source)
    for key, (value, source_of) in given.items():
        method = method.set(("algorithm", key), value, source_of)
    return method


def _own_table(settings: Settings, name: str) -> dict[str, tuple[Any, str]]:
    table = settings.get(("compare", name)) or {}
    if name in REGISTRY:
        known = list(hints_of(REGISTRY[name]))
        for key in table:
            if key not in known:
                where = settings.where(("compare", name, key))
                raise ConfigError("E201", f"unknown key '{key}' of {name}", where, did_you_mean(key, known) or f"{name} has no keys")
    return {key: (value, settings.source(("compare", name, key))) for key, value in table.items()}


__all__ = ["Comparison", "checked_section", "comparison"]
