"""A recorded step -> one flat Python function that makes the same calls with less around them, and so returns the same bits.

Calls go to torch's own functions in C where those make exactly the recorded call, which is tried, not looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.recording import Recording, Tape, tensors_in
from fedaccord.core.steps import INTO, Constants, Held, Needed, Step, needed

Program = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # (w, x, y) -> (loss [], gradient [d]), both fresh


def program(recording: Recording, constants: Constants) -> Program:
    """The recorded step as a function, its source as the docstring. Writes to the recording's own intermediate tensors."""
    return _Writer(recording, constants, needed(recording, constants)).function()


@dataclass(eq=False)
class _Writer:
    """Writes the source line by line, and collects what its names stand for: p, d views of w and of the gradient, v temporaries."""

    recording: Recording
    constants: Constants
    needed: Needed
    names: dict[int, str] = field(default_factory=dict)  # of recorded tensors, by id
    globals: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def function(self) -> Program:
        recording, result = self.recording, self.needed
        self.names |= {id(recording.w): "w", id(recording.x): "x", id(recording.y): "y"}
        self.names |= {id(p): f"p{number}" for number, p in enumerate(recording.parameters)}
        for number, step in enumerate(result.steps):
            self._write(step, number)
        self._copy(result.copies or {})
        self.lines.append(f"return {self._text(result.loss)}, {self._text(result.gradient) if result.copies is None else 'd'}")
        # Below autograd: nothing here is differentiated again, and each call is spared looking whether it is.
        # The guard acts from the moment it is made, so it is made anew for each pass and only by `with`.
        below_autograd = self._global(getattr(torch._C, "_AutoDispatchBelowAutograd", torch.no_grad), "below_autograd")
        body = "".join(f"        {line}\n" for line in [*self._views(), *_freed(self.lines)])
        source = f"def step(w, x, y):\n    with {below_autograd}():\n{body}"
        exec(compile(source, "<captured step>", "exec"), self.globals)
        written: Program = self.globals["step"]
        written.__doc__ = source
        return written

    def _views(self) -> list[str]:
        """One call for the views of w, and one for those of the gradient."""
        parameters = self.recording.parameters
        unflatten = self._global(torch._C._nn.unflatten_dense_tensors, "unflatten")
        shapes = self._global([p.new_empty(()).expand(p.shape) for p in parameters], "like")
        lines = ["".join(f"p{i}, " for i in range(len(parameters))) + f"= {unflatten}(w, {shapes})"]
        if self.needed.copies is not None:
            empty_like = self._global(torch.empty_like, "empty_like")
            lines.append(f"d = {empty_like}(w)")
            lines.append("".join(f"d{i}, " for i in range(len(parameters))) + f"= {unflatten}(d, {shapes})")
        return lines

    def _write(self, step: Step, number: int) -> None:
        args = [self._text(a) for a in step.args] + [f"{key}={self._text(value)}" for key, value in step.kwargs.items()]
        word, outputs = step.call.packet.rpartition(":")[2], step.call.outputs
        if step.into is not None:
            if step.name == "aten::sum.dim_IntList":
                args = args[:2]
            self.names[id(outputs[0])] = f"d{step.into}"
            self.lines.append(f"{self._global(INTO[step.name], word)}({', '.join(args)}, out=d{step.into})")
            return
        written = {id(t) for t in step.call.written}
        new = [t for t in outputs if id(t) not in written]
        self.names |= {id(t): f"v{number}_{position}" for position, t in enumerate(new)}
        call = f"{self._global(_function(step), word)}({', '.join(args)})"
        self.lines.append(f"{self._pattern(step.call.result)} = {call}" if new else call)

    def _copy(self, parts: dict[int, Tensor]) -> None:
        copy, view = self._global(torch.Tensor.copy_, "copy"), self._global(torch.Tensor.view, "view")
        for number, part in parts.items():
            target = f"d{number}" if part.shape == self.recording.parameters[number].shape else f"{view}(d{number}, -1)"
            self.lines.append(f"{copy}({target}, {self._text(part)})")

    def _pattern(self, result: Any) -> str:
        """The left side of an assignment: names in the shape of what the call returns."""
        if isinstance(result, list | tuple):
            return "(" + "".join(f"{self._pattern(part)}, " for part in result) + ")"
        return "_" if result is None else self.names[id(result)]

    def _text(self, value: Any) -> str:
        """An argument."""
        if isinstance(value, Tensor):
            if id(value) not in self.names:
                known = self.needed.fixed.get(id(value), self.constants.get(id(value)))
                self.names[id(value)] = f"{self._global(known.place)}[{known.key!r}]" if isinstance(known, Held) else self._global(known)
            return self.names[id(value)]
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, list | tuple) and any(True for _ in tensors_in(value)):
            return "[" + ", ".join(map(self._text, value)) + "]"
        return self._global(tuple(value) if isinstance(value, list) else value)

    def _global(self, value: Any, word: str = "k") -> str:
        for name, known in self.globals.items():
            if known is value:
                return name
        name = f"{word}_{len(self.globals)}"
        self.globals[name] = value
        return name


def _function(step: Step) -> Callable[..., Any]:
    """The cheapest function that makes exactly this call: torch's own in C where there is one, else the operator itself."""
    name = step.call.packet.removeprefix("aten::")
    for place in (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase):
        candidate: Callable[..., Any] | None = getattr(place, name, None)
        if candidate is not None and _calls(candidate, step):
            return candidate
    operator: Callable[..., Any] = getattr(step.call.op, "_op", step.call.op)
    return operator


def _calls(candidate: Callable[..., Any], step: Step) -> bool:
    """Whether `candidate`, given the same, makes the recorded call and no other; tried on the recorded tensors."""
    try:
        with Tape() as tape:
            candidate(*step.args, **step.kwargs)
    except (TypeError, RuntimeError, ValueError, IndexError):
        return False
    if [call.op for call in tape.calls] != [step.call.op]:
        return False
    (call,) = tape.calls
    return bool(_comparable((call.args, call.kwargs)) == _comparable((step.args, step.kwargs)))


def _comparable(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return id(tree)
    if isinstance(tree, list | tuple):
        return tuple(map(_comparable, tree))
    if isinstance(tree, dict):
        return {key: _comparable(value) for key, value in tree.items()}
    return repr(tree)


def _freed(lines: list[str]) -> list[str]:
    """The lines, each temporary deleted after its last use, so that its memory serves the next."""
    names = [set(re.findall(r"\bv\d+_\d+\b", line)) for line in lines]
    last = {name: number for number, found in enumerate(names) for name in found}
    freed = []
    for number, line in enumerate(lines[:-1]):
        ends = sorted(name for name in names[number] if last[name] == number)
        freed.append(f"{line}; del {', '.join(ends)}" if ends else line)
    return [*freed, lines[-1]]
