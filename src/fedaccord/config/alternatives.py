"""What `compare` puts each method under: attacks, screens and policies by name, each with the keys that are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedaccord.aggregation.policy import Policy
from fedaccord.aggregation.screen import Screen
from fedaccord.attacks import Attack
from fedaccord.config.fields import hints_of
from fedaccord.config.layers import COMMAND_LINE, ENVIRONMENT, Key, Settings, as_table, dotted
from fedaccord.config.sweep import Point
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import CHOICES
from fedaccord.tasks.nearest import did_you_mean

SECTIONS: dict[str, tuple[Key, type]] = {
    "--attack": (("attack",), Attack),
    "--screens": (("aggregation", "screen"), Screen),
    "--policies": (("aggregation", "policy"), Policy),
}
ALWAYS = {"--attack": "none"}  # what the others are compared with


def alternatives(settings: Settings, asked: Mapping[str, Sequence[str]]) -> list[Point]:
    """The settings under every combination of the names that each option asks for, and what varies.

    E204, E205 and E208 for no, unknown or repeated names. The keys that a section gives belong to the name that it gives, but for those
    that all have (`attack.share`); those of the command line go to every name that has them, E201 where none has.
    """
    points: list[Point] = [(settings, ())]
    for option, names in asked.items():
        chosen = _checked(option, names)
        _known_to_one(settings, option, chosen)
        points = [(_under(each, option, name), (*varied, *_label(option, name, chosen))) for each, varied in points for name in chosen]
    return points


def _checked(option: str, names: Sequence[str]) -> list[str]:
    registry = CHOICES[SECTIONS[option][1]]
    if not names:
        raise ConfigError("E204", f"{option} names nothing", option, did_you_mean("", registry))
    for name in names:
        if name not in registry and ":" not in name:
            raise ConfigError("E205", f"{name!r} is not known", option, did_you_mean(name, registry))
        if names.count(name) > 1:
            raise ConfigError("E208", f"{name} is named twice", option, "Name each once")
    always = ALWAYS.get(option)
    return [*([] if always is None or always in names else [always]), *names]


def _under(settings: Settings, option: str, name: str) -> Settings:
    """The settings with this name, and those of the section's keys that are meant for it."""
    key, kind = SECTIONS[option]
    table, found = _table(settings, key), settings.set(key, {"name": name}, COMMAND_LINE)
    for part, value in table.items():
        source = settings.source((*key, part))
        if part == "name":
            continue
        if _is_its_own(name, kind, part) if source in (COMMAND_LINE, ENVIRONMENT) else name == table.get("name") or part in hints_of(kind):
            found = found.set((*key, part), value, source)
    return found


def _known_to_one(settings: Settings, option: str, names: Sequence[str]) -> None:
    key, kind = SECTIONS[option]
    for part in _table(settings, key):
        is_ordered = settings.source((*key, part)) in (COMMAND_LINE, ENVIRONMENT)
        if part != "name" and is_ordered and not any(_is_its_own(name, kind, part) for name in names):
            known = {each for name in names if name in CHOICES[kind] for each in hints_of(CHOICES[kind][name])}
            what = f"none of {', '.join(names)} has the key '{part}'"
            raise ConfigError("E201", what, settings.where((*key, part)), did_you_mean(part, sorted(known)))


def _is_its_own(name: str, kind: type, part: str) -> bool:
    return name not in CHOICES[kind] or part in hints_of(CHOICES[kind][name])


def _table(settings: Settings, key: Key) -> dict[str, object]:
    found = settings.get(key)
    return found if isinstance(found, dict) else as_table(found, key)


def _label(option: str, name: str, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return ((f"{dotted(SECTIONS[option][0])}.name", name),) if len(names) > 1 else ()
