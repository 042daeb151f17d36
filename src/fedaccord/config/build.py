"""A tree of values as written -> an experiment and its task, every fault of the tree named with its place and its remedy."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from fedaccord.aggregation.policy import Policy
from fedaccord.aggregation.screen import Screen
from fedaccord.attacks import Attack
from fedaccord.config.fields import checked, choice_of, crossed, hints_of, section_of
from fedaccord.config.layers import DEFAULT, Key, Settings, as_table, dotted, shown
from fedaccord.core.algorithm import Algorithm
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import CHOICES, Experiment, plain
from fedaccord.tasks import TASKS, Task, load_user_task, user_factory
from fedaccord.tasks.nearest import did_you_mean

SECTIONS = ("task", *(each.name for each in dataclasses.fields(Experiment)))
COMPARE = "compare"  # settings of `fedaccord compare`, read there


class ConfigErrors(ConfigError):
    """Several faults of one configuration; it reads as the first, `others` are the rest."""

    def __init__(self, errors: list[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.code, first.what, first.where, first.remedy)
        self.others = tuple(errors[1:])


@dataclass(frozen=True)
class TaskOrder:
    """Which task, with which keywords; `make()` loads its data."""

    name: str
    options: Mapping[str, Any]

    def make(self) -> Task:
        """The task. Errors: as the task's factory raises them."""
        if ":" in self.name:
            return load_user_task(self.name, self.options)
        return TASKS[self.name](**self.options)


@dataclass(frozen=True)
class Resolved:
    """One run, every value known: what `api.execute` needs."""

    experiment: Experiment
    task: TaskOrder
    tables: dict[str, Any]  # nested by section, defaults written out
    sources: dict[str, str]  # "algorithm.rho" -> default | file | environment | command line
    varied: tuple[tuple[str, Any], ...] = ()  # what a sweep changed in this run: (dotted key, value)


def resolve(settings: Settings, varied: tuple[tuple[str, Any], ...] = ()) -> Resolved:
    """Check every value and build the experiment. ConfigError (2xx); several faults come as one `ConfigErrors`."""
    builder = Builder(settings)
    experiment, order, options = builder.everything()
    if builder.errors:
        raise builder.errors[0] if len(builder.errors) == 1 else ConfigErrors(builder.errors)
    assert experiment is not None and order is not None
    tables = {"task": {"name": order.name, **_plain_options(options)}, **plain(experiment)}
    return Resolved(experiment, order, tables, {dotted(key): settings.source(key) for key in leaves(tables)}, varied)


def leaves(tables: Mapping[str, Any], path: Key = ()) -> list[Key]:
    """The keys of all values of nested tables."""
    found: list[Key] = []
    for name, value in tables.items():
        found += leaves(value, (*path, name)) if isinstance(value, Mapping) else [(*path, name)]
    return found


class Builder:
    """Walks the tree beside the annotations; faults are collected in `errors`."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.errors = settings, list[ConfigError]()

    def everything(self) -> tuple[Experiment | None, TaskOrder | None, Mapping[str, Any]]:
        tree = self.settings.tree
        for name in tree:
            if name not in (*SECTIONS, COMPARE):
                self._unknown((name,), (*SECTIONS, COMPARE))
        order, options = self._task(tree.get("task"))
        hints, values = hints_of(Experiment), dict[str, Any]()
        for section, hint in hints.items():
            if section in tree:
                values[section] = self.value(hint, (section,), tree[section], _default(Experiment, section))
        return (None if self.errors else Experiment(**values)), order, options

    def value(self, hint: Any, key: Key, raw: Any, default: Any) -> Any:
        """The value of one field; None where it has a fault."""
        kind, section = choice_of(hint), section_of(hint)
        if kind is not None:
            return self._choice(kind, key, raw, default)
        if section is not None:
            return self._table(section, key, raw)
        try:
            return checked(hint, raw, key[-1], self.settings.where(key))
        except ConfigError as error:
            self.errors.append(error)
            return None

    def _table(self, kind: type, key: Key, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            self._fault("E202", f"{dotted(key)} = {shown(raw)} is no table", key, f"Write [{dotted(key)}] and its keys below")
            return None
        return self._made(kind, key, raw, {})

    def _choice(self, kind: type, key: Key, raw: Any, default: Any) -> Any:
        table = raw if isinstance(raw, Mapping) else as_table(raw, key)
        known = CHOICES[kind]
        if not table and not isinstance(raw, Mapping):
            self._fault(
                "E202", f"{dotted(key)} = {shown(raw)} is no name", key, f"{did_you_mean('', known)}. Or a table: name = ..., and its keys"
            )
            return None
        name = table.get("name", next((own for own, each in known.items() if each is type(default)), None))
        if name is None:
            self._fault("E204", f"{dotted(key)} has no name", key, f"Add name = ... to it. {did_you_mean('', known)}")
            return None
        chosen = self._class(kind, (*key, "name"), name)
        own = {part: value for part, value in table.items() if part != "name"}
        others = {other: each for other, each in known.items() if each is not chosen}
        return None if chosen is None else self._made(chosen, key, own, others, str(name))

    def _class(self, kind: type, key: Key, name: Any) -> type | None:
        known = CHOICES[kind]
        if not isinstance(name, str):
            self._fault("E202", f"name = {shown(name)} is no string", key, did_you_mean("", known))
        elif name in known:
            return known[name]
        elif ":" not in name:
            self._fault("E205", f"{shown(name)} is not known", key, f"{did_you_mean(name, known)}. Your own: name = 'my_module:MyClass'")
        else:
            try:
                chosen = user_factory(name)
                check_kind(kind, chosen, name, self.settings.where(key))
                return chosen
            except ConfigError as error:
                self.errors.append(error)
        return None

    def _made(self, kind: type, key: Key, given: Mapping[str, Any], others: Mapping[str, type], name: str = "") -> Any:
        hints, values, before = hints_of(kind), dict[str, Any](), len(self.errors)
        for part, raw in given.items():
            if part in hints:
                values[part] = self.value(hints[part], (*key, part), raw, _default(kind, part))
            else:
                owners = [other for other, each in others.items() if part in hints_of(each)]
                hint = f". It belongs to {', '.join(owners)}: set name" if owners else ""
                self._unknown((*key, part), list(hints), f" of {name}" if name else "", hint)
        for part in hints:
            if part not in given and _required(kind, part):
                self._fault(
                    "E204", f"{dotted((*key, part))} is missing", key, f"Give {part}: {name or kind.__name__} has no default for it"
                )
        if len(self.errors) > before:
            return None
        made = kind(**values)
        for what, remedy in crossed(made):
            self._fault("E203", what, key, remedy)
        return made

    def _task(self, raw: Any) -> tuple[TaskOrder | None, Mapping[str, Any]]:
        table = {"name": raw} if isinstance(raw, str) else raw
        key = ("task", "name")
        if not isinstance(table, Mapping) or "name" not in table:
            self._fault(
                "E204",
                "there is no task",
                ("task",),
                f"Add [task] name = ... {did_you_mean('', TASKS)}. Your own: name = 'my_module:make_task'",
            )
            return None, {}
        name = table["name"]
        if not isinstance(name, str) or (name not in TASKS and ":" not in name):
            self._fault(
                "E205", f"{shown(name)} is not known", key, f"{did_you_mean(str(name), TASKS)}. Your own: name = 'my_module:make_task'"
            )
            return None, {}
        try:
            factory = TASKS[name] if name in TASKS else user_factory(name)
        except ConfigError as error:
            self.errors.append(error)
            return None, {}
        own = {part: value for part, value in table.items() if part != "name"}
        options = self._options(factory, own)
        values = {part: value for part, value in options.items() if part in own}
        return TaskOrder(name, values), options

    def _options(self, factory: Callable[..., Any] | Task, given: Mapping[str, Any]) -> dict[str, Any]:
        """The factory's keywords with their values, defaults included."""
        if isinstance(factory, Task):
            for part in given:
                self._unknown(("task", part), [], " of a finished Task")
            return {}
        hints, defaults, takes_all = keywords_of(factory)
        options = dict[str, Any]()
        for part, raw in given.items():
            if part in hints:
                options[part] = self.value(hints[part], ("task", part), raw, None)
            elif takes_all:
                options[part] = raw
            else:
                self._unknown(("task", part), list(hints))
        for part in hints:
            if part in given:
                continue
            if part in defaults:
                options[part] = defaults[part]
            else:
                self._fault("E204", f"task.{part} is missing", ("task",), f"Give {part}: the task has no default for it")
        return options

    def _unknown(self, key: Key, known: Any, owner: str = "", hint: str = "") -> None:
        where = self.settings.where(key)
        near = did_you_mean(key[-1], known) or "It has no keys"
        self.errors.append(ConfigError("E201", f"unknown key '{key[-1]}'{owner}", where, near + hint))

    def _fault(self, code: str, what: str, key: Key, remedy: str) -> None:
        where = self.settings.where(key) if self.settings.get(key[:1]) is not None else self.settings.file
        self.errors.append(ConfigError(code, what, where, remedy))


def keywords_of(factory: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """(keyword -> annotation, keyword -> default, whether it takes any keyword) of a task's factory."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return {}, {}, True
    try:
        hints = get_type_hints(factory, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    return (
        {each.name: hints.get(each.name, Any) for each in named},
        {each.name: each.default for each in named if each.default is not each.empty},
        any(each.kind is each.VAR_KEYWORD for each in parameters),
    )


BASES = (Algorithm, Attack, Policy, Screen)  # choices that are subclasses
METHODS: dict[str, tuple[str, ...]] = {  # what an object must have to stand in for a choice that is a protocol
    "Partitioner": ("split",),
    "LocalOptimizer": ("init", "step", "effective_steps"),
    "Schedule": ("factor",),
    "ServerOptimizer": ("init", "step"),
    "Sampler": ("draw",),
}


def check_kind(kind: type, found: Any, name: str, where: str) -> None:
    """E202 unless the class, or the object, can stand in for this choice."""
    cls = found if isinstance(found, type) else type(found)
    if kind in BASES:
        missing = [] if issubclass(cls, kind) else [f"a subclass of fedaccord.{kind.__name__}"]
    else:
        missing = [f"a method '{method}'" for method in METHODS[kind.__name__] if not callable(getattr(cls, method, None))]
    if missing:
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(
            "E202",
            f"{name} is not {article} {kind.__name__}",
            where,
            f"It must be {missing[0]}" if kind in BASES else f"It lacks {', '.join(missing)}",
        )
    if isinstance(found, type) and not dataclasses.is_dataclass(found):
        raise ConfigError("E202", f"{name} is no dataclass", where, "Decorate it with @dataclass(frozen=True)")


def _default(kind: type, name: str) -> Any:
    each = next(each for each in dataclasses.fields(kind) if each.name == name)
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return None if each.default is dataclasses.MISSING else each.default


def _required(kind: type, name: str) -> bool:
    each = next(each for each in dataclasses.fields(kind) if each.name == name)
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def _plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in options.items() if value is not None}


__all__ = ["DEFAULT", "ConfigErrors", "Resolved", "TaskOrder", "check_kind", "keywords_of", "leaves", "resolve"]
