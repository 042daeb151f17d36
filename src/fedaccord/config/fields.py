"""One value against the annotation of its field, strictly: "0.3" is not 0.3, true is not 1, and 1 is a fine float."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from fedaccord.config.layers import shown
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import CHOICES
from fedaccord.tasks.nearest import did_you_mean

STRICT = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
RANGES = {"greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number", "multiple_of", "too_short", "too_long"}


@cache
def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(hint, config=STRICT)
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None  # a type of the user's own, which only the user can check


def checked(hint: Any, value: Any, name: str, where: str) -> Any:
    """`value` as the field holds it. E202 (type), E203 (range), E205 (not one of the names), each with what is allowed."""
    adapter = _adapter(hint)
    if adapter is None:
        return value
    value = _tuples(value) if _takes(hint, tuple) or _takes(hint, Sequence) else value
    try:
        return adapter.validate_python(value)
    except ValidationError as problem:
        raise _error(problem, value, name, where) from None


def accepts(hint: Any, value: Any) -> bool:
    """Whether the value could stand in a field of this type."""
    try:
        checked(hint, value, "", "")
    except ConfigError:
        return False
    return True


def _error(problem: ValidationError, value: Any, name: str, where: str) -> ConfigError:
    """Of a union's complaints, the one about the kind of value that was meant: words are held against names, numbers against ranges."""
    found = problem.errors(include_url=False)
    names = [each for each in found if each["type"] == "literal_error"]
    ranges = [each for each in found if each["type"] in RANGES]
    if ranges:
        each = ranges[0]
        inside = "".join(f"[{part}]" for part in each["loc"] if isinstance(part, int))
        remedy = each["msg"].replace("Input should", "It must")
        return ConfigError("E203", f"{name}{inside} = {shown(each['input'])} is out of range", where, remedy)
    if names and isinstance(value, str):
        known = [str(known) for each in names for known in _names_of(each)]
        return ConfigError("E205", f"{name} = {shown(value)} is not one of its values", where, did_you_mean(value, known))
    wanted = " or ".join(dict.fromkeys(_wanted(each["msg"]) for each in found if each["type"] != "none_required"))
    remedy = f"Give {wanted}"
    if isinstance(value, str) and any(each["type"] in {"float_type", "int_type", "bool_type"} for each in found):
        remedy += ", without quotes" if value.strip() else ""
    return ConfigError("E202", f"{name} = {shown(value)} is {_kind(value)}", where, remedy)


def _names_of(each: Any) -> list[str]:
    expected = str(each.get("ctx", {}).get("expected", ""))
    return [word.strip("' ") for word in expected.replace(" or ", ",").split(",") if word.strip()]


def _wanted(message: str) -> str:
    return (
        message.removeprefix("Input should be ").replace("a valid ", "a ").replace("a integer", "an integer").replace("a tuple", "a list")
    )


def _kind(value: Any) -> str:
    kinds = {
        bool: "true or false",
        int: "an integer",
        float: "a number with a fraction",
        str: "a string",
        list: "a list",
        tuple: "a list",
        dict: "a table",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def members(hint: Any) -> list[Any]:
    """The alternatives of a type, without None and without annotations."""
    if get_origin(hint) is Annotated:
        return members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [member for each in get_args(hint) if each is not NoneType for member in members(each)]
    return [hint]


def _takes(hint: Any, kind: type) -> bool:
    for member in members(hint):
        origin = get_origin(member) or member
        if isinstance(origin, type) and origin is not Any and issubclass(origin, kind) and origin is not str:
            return True
    return False


def takes_lists(hint: Any) -> bool:
    """Whether a list is one value of this type, so that it does not sweep."""
    return any(member is Any or (_takes(member, Collection) and not _takes(member, Mapping)) for member in members(hint))


def choice_of(hint: Any) -> type | None:
    """The key of CHOICES where a field holds one of several classes."""
    return next((member for member in members(hint) if isinstance(member, type) and member in CHOICES), None)


def section_of(hint: Any) -> type | None:
    """The dataclass that a field holds, where it is always the same one."""
    return next((member for member in members(hint) if isinstance(member, type) and dataclasses.is_dataclass(member)), None)


def crossed(holder: Any) -> Iterator[tuple[str, str]]:
    """(what is wrong, the remedy) for each pair of fields NAME_min and NAME_max of which the smaller is the larger."""
    for name in hints_of(type(holder)):
        other = f"{name.removesuffix('_min')}_max"
        if name.endswith("_min") and hasattr(holder, other) and getattr(holder, name) > getattr(holder, other):
            yield f"{name} = {getattr(holder, name)} is above {other} = {getattr(holder, other)}", f"Lower {name}, or raise {other}"


def hints_of(kind: type) -> dict[str, Any]:
    """Field -> annotation of a dataclass; Any where the annotations cannot be resolved."""
    fields = [each.name for each in dataclasses.fields(kind) if each.init]
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    return {name: hints.get(name, Any) for name in fields}


def has_none(hint: Any) -> bool:
    return hint is Any or hint is NoneType or NoneType in get_args(hint)


def literals(hint: Any) -> list[Any]:
    """The names that a field allows, where it allows a few only."""
    return [value for member in members(hint) if get_origin(member) is Literal for value in get_args(member)]
