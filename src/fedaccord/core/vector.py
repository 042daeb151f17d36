"""A module <-> a flat vector w [d] and its buffers.

Everything above this file sees one array a model: rules read like their papers, and clipping, noise, similarity and storage need no
loop over layers. Trainable parameters are in w, each once however often it is shared; frozen parameters stay inside the module;
persistent buffers (batch-norm statistics and their integer counters) ride beside w under their own names, shapes and dtypes. Parameters
that stay with each client (`own`) are no part of w: they are trained, and otherwise treated as buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from fedaccord.core.errors import ConfigError, DataError

Buffers = dict[str, Tensor]  # name -> tensor in its own shape and dtype


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lives inside w, in the order of `module.named_parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    sizes: tuple[int, ...]
    dtype: torch.dtype
    kinds: tuple[str, ...]  # class of the layer that holds it: "Linear", "Embedding", ...

    @classmethod
    def of(cls, module: nn.Module, own: Collection[str] = ()) -> Layout:
        """The layout of a module's trainable parameters, but for those named in `own`. E112 where there are none, or of several dtypes."""
        named = {name: p for name, p in module.named_parameters() if p.requires_grad and name not in own}
        if any(isinstance(p, UninitializedParameter) for p in named.values()):
            raise ConfigError("E112", "the model has lazy layers without shapes", type(module).__name__, "Run one batch through it first")
        if not named:
            raise ConfigError(
                "E112", "the model has no trainable parameter", type(module).__name__, "Set requires_grad on what is to be trained"
            )
        dtypes = {p.dtype for p in named.values()}
        if len(dtypes) > 1:
            raise ConfigError(
                "E112", f"trainable parameters have several dtypes: {sorted(map(str, dtypes))}", remedy="Cast the model to one dtype"
            )
        shapes = tuple(p.shape for p in named.values())
        kinds = tuple(type(module.get_submodule(name.rpartition(".")[0])).__name__ for name in named)
        return cls(tuple(named), shapes, tuple(s.numel() for s in shapes), dtypes.pop(), kinds)

    @property
    def size(self) -> int:
        """d, the number of trainable weights."""
        return sum(self.sizes)

    def slices(self) -> dict[str, slice]:
        """Parameter name -> its slice of w."""
        out, start = {}, 0
        for name, size in zip(self.names, self.sizes, strict=True):
            out[name] = slice(start, start + size)
            start += size
        return out

    def layers(self) -> tuple[str, ...]:
        """The path of the layer that each parameter belongs to: its weight and its bias share one."""
        return tuple(name.rpartition(".")[0] for name in self.names)

    def where(self, chosen: Callable[[str, str], bool]) -> Tensor:
        """True [d] for the parameters that `chosen(name, kind)` says."""
        each = [torch.full((size,), chosen(*which)) for *which, size in zip(self.names, self.kinds, self.sizes, strict=True)]
        return torch.cat(each)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Views of w [d], not copies, by name and in their shapes."""
        return {n: part.view(s) for n, s, part in zip(self.names, self.shapes, w.split(self.sizes), strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `unflatten`: named tensors -> w [d]. E112 names the first that does not fit."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if name not in tensors:
                raise DataError(
                    "E112", f"the model has {name!r} {tuple(shape)}, the weights lack it", remedy="Give weights of the same model"
                )
            if tensors[name].shape != shape:
                raise DataError("E112", f"{name!r} is {tuple(shape)} in the model and {tuple(tensors[name].shape)} in the weights")
        return torch.cat([tensors[name].detach().reshape(-1).to(self.dtype) for name in self.names])

    def name_of(self, index: int) -> str:
        """The parameter that weight number `index` belongs to."""
        return next(name for name, part in self.slices().items() if part.start <= index < part.stop)


def vector_of(module: nn.Module, own: Collection[str] = ()) -> Tensor:
    """The module's trainable weights, but for `own`, as a new flat vector w [d]."""
    return Layout.of(module, own).flatten(dict(module.named_parameters()))


def batch_norm_parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of the trainable weights and biases of all batch-norm layers."""
    parts = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    named = [f"{name}.{key}" if name else key for name, part in parts for key, p in part.named_parameters() if p.requires_grad]
    return tuple(name for name, _ in module.named_parameters() if name in named)


def buffers_of(module: nn.Module) -> Buffers:
    """Copies of the module's persistent buffers."""
    persistent = module.state_dict().keys()
    return {name: b.detach().clone() for name, b in module.named_buffers() if name in persistent}


def load_into(module: nn.Module, w: Tensor, buffers: Buffers) -> nn.Module:
    """Write w [d] and buffers (a client's own parameters among them) into a module, in place; returns the module."""
    layout = Layout.of(module, own=buffers.keys())
    if w.shape != (layout.size,):
        raise DataError("E112", f"the model has {layout.size} trainable weights, the vector has shape {tuple(w.shape)}")
    parameters, own = dict(module.named_parameters()), dict(module.named_buffers())
    with torch.no_grad():
        for name, value in layout.unflatten(w).items():
            parameters[name].copy_(value)
        for name, value in buffers.items():
            (own if name in own else parameters)[name].copy_(value)
    return module


class FlatModel:
    """A module as a function: (w [d], buffers, x [B, ...]) -> outputs [B, ...]. Owns a private copy of the module.

    Parameters are swapped for views of w, so the backward pass of w is one concatenation. Buffers are used in place: in training mode a
    batch-norm layer moves the tensors given to it. Parameters named in `own` are taken from the buffers.
    """

    def __init__(self, module: nn.Module, own: Collection[str] = ()) -> None:
        self.layout = Layout.of(module, own)
        self.own = Layout.of(module, self.layout.names) if own else None
        self.module = copy.deepcopy(module)
        self.initial_w = vector_of(module, own)
        self.initial_buffers = buffers_of(module)
        self._parameter_slots = _slots(self.module, "_parameters", self.layout.names)
        names = tuple(self.initial_buffers)
        self._buffer_slots = dict(zip(names, _slots(self.module, "_buffers", names), strict=True))
        if self.own:
            self.initial_buffers |= {name: p.detach().clone() for name, p in module.named_parameters() if name in self.own.names}
            self._buffer_slots |= dict(zip(self.own.names, _slots(self.module, "_parameters", self.own.names), strict=True))
        others = {name: b.detach().clone() for name, b in self.module.named_buffers() if name not in names}
        self._passing = list(zip(others.values(), _slots(self.module, "_buffers", tuple(others)), strict=True))  # not persistent
        self._modes = [(part, part.training) for part in self.module.modules()]
        self.channels_last = False  # pictures [B, C, H, W] are laid out so before they go in

    def train(self, mode: bool) -> None:
        """Before each client and each evaluation: the mode, and buffers that are not persistent as they were at first.

        A part that the user froze in evaluation mode stays in it.
        """
        for first, slots in self._passing:
            fresh = first.clone()
            for place, key in slots:
                place[key] = fresh
        for part, was_training in self._modes:
            if part.training != (mode and was_training):  # setting costs a module as much as a small operation
                part.training = mode and was_training

    def release(self) -> None:
        """Hold weights of its own again, and not those of the last call: vmap's must not outlive it, nor travel to another process."""
        with torch.no_grad():
            self._hold(self.initial_w, self.initial_buffers)

    def __call__(self, w: Tensor, buffers: Buffers, x: Tensor) -> Tensor:
        self._hold(w, buffers)
        if self.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        outputs: Tensor = self.module(x)
        return outputs

    def _hold(self, w: Tensor, buffers: Buffers) -> None:
        layout = self.layout
        for slots, part, shape in zip(self._parameter_slots, w.split_with_sizes(layout.sizes), layout.shapes, strict=True):
            view = part.view(shape)
            for place, key in slots:
                place[key] = view
        for name, slots in self._buffer_slots.items():
            for place, key in slots:
                place[key] = buffers[name]

    def with_features(self, w: Tensor, buffers: Buffers, x: Tensor) -> tuple[Tensor, Tensor]:
        """(outputs [B, ...], features [B, F]): what the last layer that has weights of its own sees, flattened."""
        seen: list[Tensor] = []
        hook = self._last_layer().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            outputs = self(w, buffers, x)
        finally:
            hook.remove()
        return outputs, seen[-1].flatten(1)

    def _last_layer(self) -> nn.Module:
        """The last layer in the order of definition, as `named_parameters` has it."""
        return [part for part in self.module.modules() if part._parameters][-1]


def _slots(module: nn.Module, kind: str, names: tuple[str, ...]) -> list[list[tuple[dict[str, Tensor], str]]]:
    """For each name, every (dictionary, key) of the module tree that holds this very tensor: more than one where it is shared."""
    by_identity: dict[int, list[tuple[dict[str, Tensor], str]]] = {}
    for part in module.modules():
        place: dict[str, Tensor] = getattr(part, kind)
        for key, tensor in place.items():
            by_identity.setdefault(id(tensor), []).append((place, key))
    named = dict(module.named_parameters() if kind == "_parameters" else module.named_buffers())
    return [by_identity[id(named[name])] for name in names]
