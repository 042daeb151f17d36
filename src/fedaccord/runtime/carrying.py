"""Objects on their way between the processes of one run: the clients with their data, methods, errors, messages.

The only file that pickles: it opens no file, and what it makes is read by processes of the same run alone.

Code goes as a reference where a worker can import it, and as itself where it cannot (a script, a notebook, a task beside a TOML file).
Tensors and arrays of the clients go into shared memory, whatever they belong to: examples, shards, frozen parameters, a table in a loss.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from fedaccord.core.errors import ConfigError, UploadError
from fedaccord.core.state import State
from fedaccord.runtime.shared import ALIGNED, Forms, Memory, Place, Unfit, span_of

LARGE = 1 << 20  # bytes; tensors from this size on move into the shared memory, smaller ones are copied


class Loose(NamedTuple):
    """Where a tree lies that has no form: as bytes."""

    offset: int
    length: int


Written = Place | Loose
Reference = tuple[str, int, int, Any]  # (tensor | parameter | array, which one, offset, how it lies)


def message(parts: Any) -> bytes:
    """Plain parts (numbers, bytes, reports, our own NamedTuples of them) for a socket."""
    return pickle.dumps(parts, protocol=5)


def parts_of(data: bytes) -> Any:
    """The inverse of `message`."""
    return pickle.loads(data)


def packed(value: Any, what: str) -> bytes:
    """The value as bytes. E217, with `what` it is, where something in it cannot travel."""
    return _pickled(value, what, lambda _: None)


def packed_with_arrays(value: Any, what: str) -> tuple[bytes, Memory]:
    """The value as bytes, its tensors and arrays in a memory beside them. Large tensors of ours move there, so that they lie there once."""
    found: dict[int, tuple[Any, Reference]] = {}  # by identity; the object is kept, so that no other takes its identity
    end = 0

    def reference(thing: Any) -> Reference | None:
        nonlocal end
        if id(thing) not in found:
            how = _how_it_lies(thing)
            if how is None:
                return None
            kind, lies, nbytes = how
            found[id(thing)] = thing, (kind, len(found), end, lies)
            end += -(-nbytes // ALIGNED) * ALIGNED
        return found[id(thing)][1]

    data, memory = _pickled(value, what, reference), Memory()
    memory.reach(end)
    for thing, (kind, _, offset, _) in found.values():
        if kind == "array":
            memory.flat(torch.uint8, offset, thing.nbytes).numpy()[:] = np.frombuffer(thing, dtype=np.uint8)
        else:
            _move(thing, memory, offset)
    return data, memory


def unpacked(data: bytes, memory: Memory | None = None) -> Any:
    """The value again. Its tensors and arrays lie in the memory."""
    return _Unpickler(io.BytesIO(data), memory).load()


def packed_error(problem: BaseException) -> bytes:
    """An exception with its cause and both tracebacks; what is left of it where it cannot travel itself."""
    if type(problem) is UploadError and problem.__cause__ is None:  # never raised: it says why a client sent nothing
        return pickle.dumps((pickle.dumps((problem, None)), ""))
    text = "".join(traceback.format_exception(problem))
    plain = RuntimeError(f"{type(problem).__name__}: {problem}")
    for error, cause in ((problem, problem.__cause__), (problem, None), (plain, None)):
        with contextlib.suppress(Exception):
            data = cloudpickle.dumps((error, cause))
            pickle.loads(data)
            return pickle.dumps((data, text))
    raise AssertionError("a RuntimeError with a text can always travel")


def unpacked_error(data: bytes) -> BaseException:
    """The exception with its cause; a note says where it was raised."""
    inner, text = pickle.loads(data)
    error: BaseException
    try:
        error, error.__cause__ = pickle.loads(inner)
    except Exception:  # its class cannot be imported here
        error = RuntimeError(text.splitlines()[-1])
    if text:
        error.add_note(f"\nRaised in a worker process:\n{text}")
    return error


def write_tree(forms: Forms, memory: Memory, offset: int, tree: State) -> tuple[Written, int]:
    """Write a tree of tensors; (where it is, the next free offset). What has no form goes as bytes."""
    try:
        return forms.write(memory, offset, tree)
    except Unfit:
        data = packed(tree, "an upload or a state")
        memory.reach(offset + len(data))
        memory.flat(torch.uint8, offset, len(data)).numpy()[:] = np.frombuffer(data, dtype=np.uint8)
        return Loose(offset, len(data)), offset + -(-len(data) // ALIGNED) * ALIGNED


def read_tree(forms: Forms, memory: Memory, written: Written, *, copy: bool) -> State:
    """The inverse; see `Form.read`."""
    if not isinstance(written, Loose):
        return forms.read(memory, written, copy=copy)
    memory.reach(sum(written))
    return unpacked(memory.flat(torch.uint8, *written).numpy().tobytes())


def _how_it_lies(thing: Any) -> tuple[str, Any, int] | None:
    """(kind, how it lies, bytes) of a tensor or an array that can lie in shared memory."""
    if type(thing) is np.ndarray:
        plain = not thing.dtype.hasobject and thing.flags.c_contiguous and thing.nbytes > 0
        return ("array", (thing.dtype, thing.shape), thing.nbytes) if plain else None
    if type(thing) not in (Tensor, torch.nn.Parameter):
        return None
    if thing.layout != torch.strided or thing.device.type != "cpu" or thing.is_conj() or thing.is_neg():
        return None
    kind = "tensor" if type(thing) is Tensor else "parameter"
    # what a model was last called with may be views of a vector that has been written over since, and those do not say what they are
    is_leaf = thing.requires_grad and not thing._is_view() and thing.is_leaf
    lies = thing.dtype, tuple(thing.shape), thing.stride(), is_leaf
    return kind, lies, span_of(thing.shape, thing.stride()) * thing.dtype.itemsize


def _move(tensor: Tensor, memory: Memory, offset: int) -> None:
    """Copy it to this place; a large one of ours lies there from now on."""
    span = span_of(tensor.shape, tensor.stride())
    place = memory.flat(tensor.dtype, offset, span)
    place.copy_(tensor.detach().as_strided((span,), (1,)))
    if place.nbytes >= LARGE and not tensor.requires_grad and not tensor.is_inference():
        tensor.data = place.as_strided(tensor.shape, tensor.stride())


def _pickled(value: Any, what: str, reference: Callable[[Any], Reference | None]) -> bytes:
    into = io.BytesIO()
    try:
        with _by_value() as send_along:
            _Pickler(into, reference, send_along).dump(value)
    except Exception as problem:  # a lock, an open file, a generator: as many kinds as there are libraries
        text = f"{what} cannot be sent to worker processes: {type(problem).__name__}: {problem}"
        remedy = "Make what it names inside the function that uses it, or train in this process: runtime.name = 'sequential'"
        raise ConfigError("E217", text, "runtime", remedy) from problem
    return into.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, into: io.BytesIO, reference: Callable[[Any], Reference | None], send_along: Callable[[str], None]) -> None:
        super().__init__(into, protocol=5)
        self._reference, self._send_along = reference, send_along

    def persistent_id(self, thing: Any) -> Reference | None:
        return self._reference(thing)

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, type | FunctionType):
            self._send_along(getattr(thing, "__module__", None) or "")
        elif isinstance(thing, ModuleType):
            self._send_along(thing.__name__)
        return super().reducer_override(thing)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, memory: Memory | None) -> None:
        super().__init__(data)
        self._memory, self._made = memory, dict[int, Any]()

    def persistent_load(self, reference: Reference) -> Any:
        number = reference[1]
        if number not in self._made:
            self._made[number] = self._make(*reference)
        return self._made[number]

    def _make(self, kind: str, number: int, offset: int, lies: Any) -> Any:
        assert self._memory is not None
        if kind == "array":
            dtype, shape = lies
            nbytes = dtype.itemsize * int(np.prod(shape))
            self._memory.reach(offset + nbytes)
            return self._memory.flat(torch.uint8, offset, nbytes).numpy().view(dtype).reshape(shape)
        dtype, size, stride, requires_grad = lies
        span = span_of(size, stride)
        self._memory.reach(offset + span * dtype.itemsize)
        tensor = self._memory.flat(dtype, offset, span).as_strided(size, stride)
        return torch.nn.Parameter(tensor, requires_grad) if kind == "parameter" else tensor.requires_grad_(requires_grad)


@contextmanager
def _by_value() -> Iterator[Callable[[str], None]]:
    """Inside, the modules that are named to what this gives, and that a worker could not import, are sent along."""
    sent: dict[str, ModuleType | None] = {}

    def send_along(name: str) -> None:
        if name in sent or name.partition(".")[0] in _EVERYWHERE:
            return
        module = sys.modules.get(name)
        sent[name] = module if module is not None and not _is_importable(module) else None
        if sent[name] is not None:
            cloudpickle.register_pickle_by_value(module)

    try:
        yield send_along
    finally:
        for module in sent.values():
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)


_EVERYWHERE = {"", "__main__", "builtins", "fedaccord", "numpy", "torch", *sys.stdlib_module_names}  # __main__ always goes as itself


def _is_importable(module: ModuleType) -> bool:
    """Whether another process with our search path gets this very module by its name, without running a script that is still running."""
    spec = getattr(module, "__spec__", None)
    if spec is None or getattr(spec, "_initializing", False):
        return False
    package, _, _ = spec.name.rpartition(".")
    path = None
    if package:
        parent = sys.modules.get(package)
        if parent is None or not _is_importable(parent):
            return False
        path = list(parent.__path__)
    for finder in sys.meta_path:
        found = finder.find_spec(spec.name, path) if hasattr(finder, "find_spec") else None
        if found is not None:
            return bool(found.origin == spec.origin)
    return False
