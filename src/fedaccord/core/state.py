"""State is a tree: a tensor, a NamedTuple of states, a dict of states, or () for none. These functions walk it.

The paths of the leaves ("server.w") name the arrays on disk and on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.errors import StorageError

State = Any  # a tree as above; each algorithm documents its own


def map_state(function: Callable[..., Tensor], first: State, *others: State) -> State:
    """Apply `function` leaf by leaf; all trees have the shape of the first."""
    if isinstance(first, Tensor):
        return function(first, *others)
    if isinstance(first, dict):
        return {key: map_state(function, value, *(o[key] for o in others)) for key, value in first.items()}
    parts = [map_state(function, *each) for each in zip(first, *others, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def tensors_of(state: State) -> list[Tensor]:
    """The tree's tensors, in the order in which `separated` has them."""
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def separated(state: State) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], State], tuple[Any, ...]]:
    """The tree's tensors; a function that puts others in their places; and what is no tensor (numbers that steer a method)."""
    tensors: list[Tensor] = []
    rest: list[Any] = []

    def place(part: State) -> Callable[[Sequence[Tensor]], State]:
        if isinstance(part, Tensor):
            tensors.append(part)
            return itemgetter(len(tensors) - 1)
        if isinstance(part, dict):
            named = {key: place(value) for key, value in part.items()}
            return lambda given: {key: each(given) for key, each in named.items()}
        if isinstance(part, tuple):
            kind, places = type(part), [place(each) for each in part]
            if hasattr(part, "_fields"):
                return lambda given: kind(*(each(given) for each in places))
            return lambda given: tuple(each(given) for each in places)
        rest.append(part)
        return lambda given: part

    rebuild = place(state)
    return tensors, rebuild, tuple(rest)


def where_state(condition: Tensor, first: State, second: State) -> State:
    """The first tree where `condition` [] holds, else the second; what is no tensor is taken from the first."""
    if isinstance(first, Tensor):
        return torch.where(condition, first, second)
    if isinstance(first, dict):
        return {key: where_state(condition, value, second[key]) for key, value in first.items()}
    if not isinstance(first, tuple):
        return first
    parts = [where_state(condition, *each) for each in zip(first, second, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def children(state: State) -> dict[str, State]:
    """The named parts of one level of the tree; empty for a leaf and for ()."""
    if isinstance(state, dict):
        return state
    if hasattr(state, "_asdict"):
        return dict(state._asdict())
    return {} if isinstance(state, Tensor) else {str(i): part for i, part in enumerate(state)}


def to_arrays(state: State, path: str = "") -> dict[str, Tensor]:
    """The tree's leaves by path."""
    if isinstance(state, Tensor):
        return {path: state}
    arrays: dict[str, Tensor] = {}
    for name, part in children(state).items():
        arrays |= to_arrays(part, f"{path}.{name}" if path else name)
    return arrays


def from_arrays(like: State, arrays: dict[str, Tensor], path: str = "") -> State:
    """The inverse of `to_arrays`, in the shape of `like` and on its device. E110 names a leaf that is missing or does not fit."""
    if isinstance(like, Tensor):
        found = arrays.get(path)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            seen = "missing" if found is None else f"{tuple(found.shape)} {found.dtype}"
            raise StorageError(
                "E110",
                f"{path!r} is {seen}, expected {tuple(like.shape)} {like.dtype}",
                remedy="The state belongs to another model or method",
            )
        return found.to(like.device)
    parts = {name: from_arrays(part, arrays, f"{path}.{name}" if path else name) for name, part in children(like).items()}
    if isinstance(like, dict):
        return parts
    return type(like)(**parts) if hasattr(like, "_fields") else tuple(parts.values())


def holds(state: Any, w: Tensor) -> bool:
    """Whether anything in the tree may lie in the memory of `w`; what cannot be looked into is said to."""
    if isinstance(state, Tensor):
        return state.untyped_storage().data_ptr() == w.untyped_storage().data_ptr()
    if isinstance(state, dict | list | tuple):
        return any(holds(part, w) for part in (state.values() if isinstance(state, dict) else state))
    return not isinstance(state, int | float | str | None)


def num_bytes(state: State) -> int:
    """Bytes of all leaves: what the tree costs in memory and, uncompressed, on the wire."""
    return sum(leaf.nbytes for leaf in tensors_of(state))
