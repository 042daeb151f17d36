"""Laws about single rules, looked at while the real loops run them: what they give back, and that they are pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedaccord.checks.law import Breach
from fedaccord.checks.trial import SCRIPT, Trial, make_task, mlp, prepare_trial, run_traced
from fedaccord.checks.watched import Notes, Watched, first_difference
from fedaccord.core.state import children, to_arrays
from fedaccord.runtime.options import RuntimeOptions

ROUNDS = len(SCRIPT) + 1  # warm-ups end, and clients come back
PURE = "Return new values: kept._replace(dual=...), torch.add instead of add_"


def _watch(trial: Trial, around: Any) -> None:
    """A run with client validation, whose rules go through `around`. What a rule raises ends it."""
    watched: Any = Watched(trial.algorithm, around)
    options: dict[str, Any] = {"rounds": ROUNDS, "cohorts": (*SCRIPT, SCRIPT[0]), "client_validation": 0.2}
    run_traced(watched, make_task(mlp), runtime=RuntimeOptions("sequential", debug=True), **options)
    if around.breaches:
        raise around.breaches[0]


def state(trial: Trial) -> None:
    """State is a tree of tensors that keeps its names, shapes and dtypes; an upload has a `delta`; signals are scalars."""
    prepare_trial(trial.algorithm)  # what is wrong by then is said in the method's own name
    _watch(trial, _Forms())


class _Forms:
    """Looks at what each rule gives back."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self._server: Any = None
        self._kept: Any = None
        self._upload: Any = None

    def __call__(self, name: str, rule: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        result = rule(**given)
        look = getattr(self, f"_look_at_{name}", None)
        if look and not self.breaches:
            try:
                look(result, given)
            except Breach as breach:
                self.breaches.append(breach)
        return result

    def _look_at_init_server(self, server: Any, given: Mapping[str, Any]) -> None:
        _require_tree(server, "init_server", "the server's state")
        if next(iter(children(server)), None) != "w":
            raise Breach(
                f"init_server gives {type(server).__name__}, whose first field is not w", "Make the model w [d] the state's first field"
            )
        self._server = server

    def _look_at_init_client(self, kept: Any, given: Mapping[str, Any]) -> None:
        _require_tree(kept, "init_client", "a client's state")
        self._kept = kept

    def _look_at_broadcast(self, sent: Any, given: Mapping[str, Any]) -> None:
        _require_tree(sent, "broadcast", "what is sent")
        if "w" not in children(sent):
            raise Breach(f"broadcast sends {sorted(children(sent))}, and no w", "Send the model, in a field called w")

    def _look_at_direction(self, result: Any, given: Mapping[str, Any]) -> None:
        _require_pair(result, "direction", "(direction, local)")
        w = next(value for value in list(given.values())[1:] if isinstance(value, Tensor))
        _require_like(result[0], w, "direction", "the direction")

    def _look_at_upload(self, result: Any, given: Mapping[str, Any]) -> None:
        _require_pair(result, "upload", "(upload, kept)")
        upload, kept = result
        _require_tree(upload, "upload", "the upload")
        if not hasattr(upload, "_fields") or not isinstance(getattr(upload, "delta", None), Tensor):
            raise Breach(f"upload sends a {type(upload).__name__} without a tensor called delta", "Send a NamedTuple with delta [d]")
        w = next(value for value in given.values() if isinstance(value, Tensor))
        _require_like(upload.delta, w, "upload", "delta")
        self._upload = upload if self._upload is None else self._upload
        _require_like(upload, self._upload, "upload", "the upload")
        _require_like(kept, self._kept, "upload", "what is kept")

    def _look_at_update(self, server: Any, given: Mapping[str, Any]) -> None:
        _require_like(server, self._server, "update", "the server's state")

    def _look_at_observe(self, server: Any, given: Mapping[str, Any]) -> None:
        _require_like(server, self._server, "observe", "the server's state")

    def _look_at_signals(self, signals: Any, given: Mapping[str, Any]) -> None:
        for name, value in signals.items():
            if not isinstance(value, Tensor) or value.shape != ():
                shown = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise Breach(f"signals gives {name!r} as {shown}", "A signal is a tensor []")

    def _look_at_confidence(self, factors: Any, given: Mapping[str, Any]) -> None:
        (reports,) = given.values()
        if not isinstance(factors, Tensor) or factors.shape != (len(reports),):
            shown = list(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
            raise Breach(f"confidence gives {shown} for {len(reports)} clients", "Give one factor a client, [C]")


def _require_pair(result: Any, rule: str, what: str) -> None:
    if not isinstance(result, tuple) or len(result) != 2:
        raise Breach(f"{rule} gives a {type(result).__name__}", f"Return {what}")


def _require_tree(tree: Any, rule: str, what: str) -> None:
    """A dense tensor, a NamedTuple or dict of such trees, or ()."""
    if isinstance(tree, Tensor) and tree.layout != torch.strided:
        raise Breach(f"{rule} puts a {tree.layout} tensor into {what}", "Keep dense tensors: they are what disk and wire take")
    if isinstance(tree, Tensor) or tree == ():
        return
    if not isinstance(tree, dict) and not hasattr(tree, "_fields"):
        raise Breach(f"{rule} puts a {type(tree).__name__} into {what}", "State is a tensor, a NamedTuple or dict of states, or ()")
    for part in children(tree).values():
        _require_tree(part, rule, what)


def _require_like(found: Any, like: Any, rule: str, what: str) -> None:
    """The same tree: types, names, shapes, dtypes."""
    _require_tree(found, rule, what)
    ours, theirs = _form(found), _form(like)
    if type(found) is not type(like) or ours.keys() != theirs.keys():
        seen = f"{rule} changes {what} from {type(like).__name__} {sorted(theirs)} to {type(found).__name__} {sorted(ours)}"
        raise Breach(seen, "Keep the type and the fields that it began with")
    for name, form in ours.items():
        if form != theirs[name]:
            place = f"{name!r} in {what}" if name else what
            raise Breach(f"{rule} gives {place} as {form}, expected {theirs[name]}", "Keep shapes and dtypes, which follow those of w")


def _form(tree: Any) -> dict[str, str]:
    return {name: f"{list(leaf.shape)} {leaf.dtype}" for name, leaf in to_arrays(tree).items()}


def purity(trial: Trial) -> None:
    """Rules change nothing that they are given, give the same bits again, and leave the instance as it was."""
    algorithm = trial.algorithm
    names = {each.name for each in fields(algorithm)}
    before = _snapshot(algorithm)
    around = _Pure()
    try:
        _watch(trial, around)
    finally:
        after = _snapshot(algorithm)
        hidden = sorted(after.keys() - names)
        if hidden:
            raise Breach(f"the instance holds {hidden[0]!r}, which is no field", "Keep state in what init_server and init_client give")
        changed = first_difference(before, after)
        if changed is not None:
            remedy = "Keep state in what init_server and init_client give: fields are hyper-parameters"
            raise Breach(f"the field {changed.split('.')[0]!r} of the instance changed during a run", remedy)


def _snapshot(algorithm: Any) -> dict[str, Any]:
    return {name: value if callable(value) else copy.deepcopy(value) for name, value in vars(algorithm).items()}


class _Pure:
    """Calls each rule twice, on the same arguments, and holds these against what they were."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []

    def __call__(self, name: str, rule: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        if self.breaches:
            return rule(**given)
        notes = Notes()
        arguments = {parameter: notes.of(value, parameter) for parameter, value in given.items()}
        result = rule(**arguments)
        if self._is_unchanged(notes, name):
            difference = first_difference(result, rule(**arguments))
            if difference is not None:
                place = f" in {difference}" if difference else ""
                seen = f"{name} gives other numbers{place} when it is called again on the same arguments"
                remedy = "Let a rule depend on its arguments alone: no counters, no caches, no random numbers but start.random_direction"
                self.breaches.append(Breach(seen, remedy))
        return self._objective(result, notes, name) if callable(result) else result

    def _objective(self, objective: Callable[..., Any], notes: Notes, name: str) -> Callable[..., Any]:
        def watched(w: Tensor) -> Any:
            value = objective(w)
            self._is_unchanged(notes, name)
            return value

        return watched

    def _is_unchanged(self, notes: Notes, name: str) -> bool:
        changed = notes.changed()
        if changed is not None and not self.breaches:
            self.breaches.append(Breach(f"{name} writes into {changed}", PURE))
        return changed is None
