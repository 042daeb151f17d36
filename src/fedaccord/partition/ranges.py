"""What every scheme checks before it draws: its own fields' declared ranges, and the columns that it needs."""

from __future__ import annotations

import math
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from fedaccord.core.errors import PartitionError
from fedaccord.partition.partition import Attributes, Column
from fedaccord.partition.shards import Int64

Clients = Annotated[int, Ge(1)]
Concentration = Annotated[float, Ge(1e-6), Le(1e9)]
Count = Annotated[int, Ge(0)]
Share = Annotated[float, Gt(0), Lt(1)]


def check_fields(scheme: object) -> None:
    """PartitionError E202 or E203 for the first field that breaks its annotation (the configuration reads the same annotations)."""
    for name, hint in get_type_hints(type(scheme), include_extras=True).items():
        _check_field(hint, getattr(scheme, name), f"{type(scheme).__name__}.{name}")


def _check_field(hint: Any, value: Any, where: str) -> None:
    if get_origin(hint) is not Annotated:
        union = get_origin(hint) in (Union, UnionType)
        alternatives = [part for part in get_args(hint) if get_origin(part) is Annotated] if union else []
        if value is None or not alternatives:
            return
        hint = alternatives[0]
    kind, *limits = get_args(hint)
    numeric = (int, np.integer) if kind is int else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, numeric):
        raise PartitionError("E202", f"{value!r} is not {'an integer' if kind is int else 'a number'}", where, "give a plain number")
    fits = math.isfinite(value) and all(_fits(value, limit) for limit in limits)
    if not fits:
        raise PartitionError("E203", f"{value} is out of range", where, "it must be " + " and ".join(_words(limit) for limit in limits))


def _fits(value: Any, limit: Any) -> bool:
    match limit:
        case Ge(ge=bound):
            return bool(value >= bound)
        case Gt(gt=bound):
            return bool(value > bound)
        case Le(le=bound):
            return bool(value <= bound)
        case Lt(lt=bound):
            return bool(value < bound)
    return True


def _words(limit: Any) -> str:
    match limit:
        case Ge(ge=bound):
            return f"at least {bound:g}"
        case Gt(gt=bound):
            return f"more than {bound:g}"
        case Le(le=bound):
            return f"at most {bound:g}"
        case Lt(lt=bound):
            return f"less than {bound:g}"
    return str(limit)


def check_clients(scheme: object, clients: int, attributes: Attributes, min_size: int = 0) -> None:
    """The fields' ranges; E312 where clients outnumber examples; E311 where `min_size` for everybody needs more examples than there are."""
    check_fields(scheme)
    where, num_examples = type(scheme).__name__, attributes.num_examples
    if clients > num_examples:
        raise PartitionError("E312", f"{clients} clients but {num_examples} examples", where, f"ask for at most {num_examples} clients")
    if clients * min_size > num_examples:
        raise PartitionError(
            "E311",
            f"min_size {min_size} for each of {clients} clients needs {clients * min_size} examples, there are {num_examples}",
            where,
            f"lower min_size to {num_examples // clients} or take at most {num_examples // min_size} clients",
        )


def class_members(scheme: object, attributes: Attributes) -> list[Int64]:
    """The examples of each class that occurs, in ascending order of the label. E313 without labels, E306 where they are no classes."""
    where, labels = type(scheme).__name__, attributes.labels
    if labels is None:
        raise PartitionError(
            "E313", "the scheme needs labels and the task has none", where, "choose iid, quantity_dirichlet, by_site or natural_ids"
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise PartitionError(
            "E306",
            f"labels of shape {labels.shape} and type {labels.dtype} are no classes",
            where,
            "give one integer an example (bin a continuous target first), or choose a scheme that needs no labels",
        )
    return groups_of(checked(labels, attributes, where, "labels"))[1]


def column(scheme: object, attributes: Attributes, name: str, remedy: str) -> Column:
    """The column `ids` or `site`, as something that sorts. E313 where the task lacks it."""
    values: Column | None = getattr(attributes, name)
    if values is None:
        raise PartitionError("E313", f"the scheme needs `{name}` and the task has none", type(scheme).__name__, remedy)
    values = checked(values, attributes, type(scheme).__name__, name)
    return values.astype(str) if values.dtype.kind == "O" else values


def checked(values: Column, attributes: Attributes, where: str, name: str) -> Column:
    """E302 unless there is one value an example."""
    if values.shape != (attributes.num_examples,):
        raise PartitionError(
            "E302", f"`{name}` has shape {values.shape} for {attributes.num_examples} examples", where, "give one value an example"
        )
    return values


def groups_of(values: Column) -> tuple[Column, list[Int64]]:
    """The distinct values, sorted, and the ascending positions of each, in O(n log n)."""
    distinct, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = np.argsort(inverse.reshape(-1), kind="stable").astype(np.int64, copy=False)
    return distinct, np.split(order, np.cumsum(counts)[:-1])
