"""A method whose rules are looked at while they run, in the real loops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fedaccord.checks.trial import bits_of
from fedaccord.core.algorithm import Algorithm

Around = Callable[[str, Callable[..., Any], Mapping[str, Any]], Any]  # (name of the rule, the rule, its arguments by name) -> its result


class Watched:
    """Stands in for a method: each call of a rule goes through `around`, everything else is the method's own."""

    def __init__(self, algorithm: Algorithm, around: Around) -> None:
        self.algorithm, self.around = algorithm, around

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.algorithm, name)
        if name.startswith("_") or not callable(value):
            return value
        signature = inspect.signature(value)

        def rule(*arguments: Any, **named: Any) -> Any:
            return self.around(name, value, signature.bind(*arguments, **named).arguments)

        self.__dict__[name] = rule  # found at once the next time
        return rule


class Notes:
    """What a rule was given, as it was: its tensors, and those that its gradients gave it."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, Tensor, bytes]] = []

    def of(self, value: Any, path: str) -> Any:
        """Note every tensor inside; the value comes back with its callables replaced by ones whose results are noted too."""
        if isinstance(value, Tensor):
            self._seen.append((path, value, bits_of(value)))
            return value
        if isinstance(value, dict):
            return {name: self.of(part, f"{path}.{name}") for name, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.of(part, f"{path}.{name}") for name, part in zip(value._fields, value, strict=True)))
        if isinstance(value, tuple | list):
            return type(value)(self.of(part, f"{path}[{i}]") for i, part in enumerate(value))
        return Observed(value, path, self) if callable(value) else value

    def changed(self) -> str | None:
        """The first of them that is not any more as it was."""
        return next((path for path, tensor, before in self._seen if bits_of(tensor) != before), None)


class Observed:
    """A gradient, or a source of random directions, whose results are noted."""

    def __init__(self, inner: Any, path: str, notes: Notes) -> None:
        self._inner, self._path, self._notes = inner, path, notes

    def __call__(self, *arguments: Any) -> Any:
        return self._notes.of(self._inner(*arguments), f"the result of {self._path}")

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return Observed(value, f"{self._path}.{name}", self._notes) if callable(value) else value


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Where two results differ in type, shape, dtype or a bit; None where they do not. Functions are not compared."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        same = one.shape == other.shape and one.dtype == other.dtype and bits_of(one) == bits_of(other)
        return None if same else path
    if type(one) is not type(other):
        return path
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return path
        parts = [(str(name), one[name], other[name]) for name in one]
    elif isinstance(one, tuple | list):
        if len(one) != len(other):
            return path
        names = getattr(one, "_fields", range(len(one)))
        parts = [(str(name), a, b) for name, a, b in zip(names, one, other, strict=True)]
    else:
        return None if callable(one) or one == other else path
    for name, a, b in parts:
        found = first_difference(a, b, f"{path}.{name}" if path else name)
        if found is not None:
            return found
    return None
