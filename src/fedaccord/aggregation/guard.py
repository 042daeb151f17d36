"""The guard: what must hold before anybody looks at an upload. It refuses, with a reason, and never changes an accepted upload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedaccord.aggregation.chunks import chunks, stacks
from fedaccord.core.errors import UploadError
from fedaccord.core.reports import ClientReport, number
from fedaccord.core.state import children
from fedaccord.core.vector import Buffers, Layout

CLOSE = 0.01  # relative: as far as a client's arithmetic may differ from the server's


class Answered(Protocol):
    """What a client sent, with who it is and what it says of itself."""

    @property
    def client(self) -> int: ...
    @property
    def upload(self) -> Any: ...
    @property
    def buffers(self) -> Buffers: ...
    @property
    def report(self) -> ClientReport: ...


@dataclass(frozen=True, eq=False)
class Guard:
    """Holds uploads against the fields, shapes and dtypes that this model and method give, and counts against the task's maximum."""

    template: Any  # an `Upload` of this method for this model
    buffers: Buffers  # of this model
    layout: Layout
    max_examples: float  # the largest count that a client may report

    def refusals(self, answers: Sequence[Answered], round: int) -> list[UploadError | None]:
        """Why each upload is refused in this round, or None."""
        found = [self._form(each) or self._belongs(each, round) for each in answers]
        fit = [i for i, problem in enumerate(found) if problem is None]
        uploads, buffers = [children(answers[i].upload) for i in fit], [answers[i].buffers for i in fit]
        for expected, tables in ((children(self.template), uploads), (self.buffers, buffers)):
            for name in (name for name, like in expected.items() if like.is_floating_point()):
                values = [table[name] for table in tables]
                for i, value, is_finite in zip(fit, values, _are_finite(values), strict=True):
                    if not is_finite and found[i] is None:
                        found[i] = self._non_finite(name, value, f"client {answers[i].client}")
        for i in (i for i in fit if found[i] is None):
            found[i] = self._claims(answers[i])
        return found

    def _belongs(self, answer: Answered, round: int) -> UploadError | None:
        """Whether it is this client's answer to this round."""
        where, report = f"client {answer.client}", answer.report
        if report.round != round:
            what = f"the upload is an answer to round {_shown(report.round)}, this is round {round}"
            return UploadError("E117", "stale", what, where, "The client has to train from the present model")
        if report.client != answer.client:
            return UploadError("E118", "contradiction", f"the report is signed by client {_shown(report.client)}", where)
        return None

    def _claims(self, answer: Answered) -> UploadError | None:
        """What a client says of its upload against the upload."""
        report, where = answer.report, f"client {answer.client}"
        if (number(report.gradients) or 0) < report.steps:
            what = f"the client says it took {report.steps} steps with {_shown(report.gradients)} gradients"
            return UploadError("E118", "contradiction", what, where, "A step needs a gradient")
        if report.update_norm is not None:
            said, found = number(report.update_norm), float(answer.upload.delta.double().norm())
            if said is None or abs(said - found) > CLOSE * max(found, 1e-12):
                what = f"the client says its update is {_shown(report.update_norm)} long, it is {found:.3g}"
                return UploadError("E118", "contradiction", what, where)
        return None

    def _form(self, answer: Answered) -> UploadError | None:
        """Everything but the numbers in the tensors."""
        where = f"client {answer.client}"
        return (
            self._count(answer.report.num_examples, answer.report.steps, where)
            or self._signals(answer.report, where)
            or self._fields(answer.upload, where)
            or self._tensors(children(self.template), children(answer.upload), where)
            or self._tensors(self.buffers, answer.buffers, where)
        )

    def _fields(self, upload: Any, where: str) -> UploadError | None:
        if type(upload) is type(self.template):
            return None
        what = f"the upload is a {type(upload).__name__}, expected {sorted(children(self.template))}"
        return UploadError("E104", "wrong_fields", what, where, "Likely another method")

    def _signals(self, report: ClientReport, where: str) -> UploadError | None:
        if not isinstance(report.signals, dict):
            return UploadError(
                "E104", "wrong_fields", f"the signals are a {type(report.signals).__name__}, expected a table of numbers", where
            )
        odd = [name for name, value in report.signals.items() if value is not None and number(value) is None]
        return UploadError("E101", "non_finite", f"the reported {odd[0]!r} is {_shown(report.signals[odd[0]])}", where) if odd else None

    def _count(self, count: Any, steps: Any, where: str) -> UploadError | None:
        if (number(count) or 0) <= 0:
            return UploadError("E105", "bad_count", f"the sample count is {_shown(count)}", where, "Report a positive number of examples")
        if count > self.max_examples:
            return UploadError(
                "E106", "count_too_large", f"the sample count is {count:g}, the task has {self.max_examples:g} examples", where
            )
        if not isinstance(steps, int) or (number(steps) or 0) <= 0:
            what = f"the client says it took {_shown(steps)} local steps"
            return UploadError("E109", "no_steps", what, where, "An update needs at least one step")
        return None

    def _tensors(self, expected: dict[str, Tensor], found: Any, where: str) -> UploadError | None:
        if not isinstance(found, dict):
            return UploadError("E104", "wrong_fields", f"the buffers are a {type(found).__name__}, expected {sorted(expected)}", where)
        if expected.keys() != found.keys():
            odd = sorted(map(str, expected.keys() ^ found.keys()))
            return UploadError(
                "E104", "wrong_fields", f"fields {odd} are missing or unknown", where, "Likely another method or model version"
            )
        for name, like in expected.items():
            value = found[name]
            if not isinstance(value, Tensor):
                return UploadError("E103", "wrong_dtype", f"{name!r} is a {type(value).__name__}, expected a {like.dtype} tensor", where)
            if value.dtype != like.dtype:
                return UploadError(
                    "E103", "wrong_dtype", f"{name!r} is {value.dtype}, expected {like.dtype}", where, "Likely another model version"
                )
            if value.shape != like.shape or value.layout != torch.strided:
                shapes = f"{tuple(value.shape)}, expected {tuple(like.shape)}"
                return UploadError("E102", "wrong_shape", f"{name!r} is {shapes}", where, "Likely another model version")
        return None

    def _non_finite(self, name: str, value: Tensor, where: str) -> UploadError:
        bad = ~torch.isfinite(value)
        place = self.layout.name_of(int(bad.nonzero()[0, 0])) if value.shape == (self.layout.size,) else name
        kind = "NaN" if torch.isnan(value).any() else "Inf"
        remedy = "Lower the learning rate, clip the gradients, or run with debug on to see the first step that went wrong"
        return UploadError(
            "E101", "non_finite", f"{int(bad.sum())} non-finite numbers ({kind}) in {name!r}, first in {place!r}", where, remedy
        )


def _are_finite(values: Sequence[Tensor]) -> list[bool]:
    """Of tensors of one shape. A sum is one pass; finite numbers whose sum is not are looked at one by one."""
    found = [True] * len(values)
    flat = [value.reshape(-1) for value in values]
    for chunk in chunks(flat[0].numel()) if flat else ():
        for some, rows in stacks(flat, chunk):
            sums = rows.sum(1).isfinite().tolist()
            found[some] = [known and now for known, now in zip(found[some], sums, strict=True)]
    return [is_finite or bool(value.isfinite().all()) for is_finite, value in zip(found, values, strict=True)]


def _shown(value: Any) -> str:
    """The value for a message: short, and safe to make whatever it is."""
    shown = isinstance(value, float | bool | str | None) or (isinstance(value, int) and abs(value) < 2**63)
    return f"{value!r:.60}" if shown else f"a {type(value).__name__}"
