"""Laws about whole runs: order, repetition, refusals, small clients, extreme gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from fedaccord.algorithms import FedAvg
from fedaccord.checks.law import Breach
from fedaccord.checks.trial import (
    PLAN,
    SCRIPT,
    SIZES,
    Arrange,
    Trace,
    Trial,
    examples,
    make_task,
    mlp,
    poisoned,
    run_traced,
    with_batch_norm_and_dropout,
)
from fedaccord.core.local import LocalPlan
from fedaccord.core.rng import disturbed_generators, stream
from fedaccord.core.state import to_arrays
from fedaccord.partition import Explicit
from fedaccord.runtime.base import ClientUpload

HIDDEN = "Keep all state in what init_server and init_client give: nothing in modules, classes or closures"


def order(trial: Trial) -> None:
    """The order in which clients train and answer changes no bit."""
    for seed in (1, 2):
        other = run_traced(trial.algorithm, make_task(with_batch_norm_and_dropout), arrange=shuffled(seed))
        _require_equal(other, trial.straight, "with the clients in another order", HIDDEN)


def repetition(trial: Trial) -> None:
    """A run alone is the run after another method's in the same process, with every global generator disturbed in between."""
    task = make_task(with_batch_norm_and_dropout)
    options: dict[str, Any] = {"cohorts": None, "client_validation": 0.2}
    alone = run_traced(trial.algorithm, task, **options)
    run_traced(FedAvg(), task, seed=11)
    with disturbed_generators():
        again = run_traced(trial.algorithm, task, **options)
    _require_equal(again, alone, "in a second run of the same seed", f"{HIDDEN}; draw random numbers from start.random_direction alone")


def refusals(trial: Trial) -> None:
    """A refused client leaves no trace: not in the model, not in what it keeps, not in later rounds."""
    method, task = trial.algorithm, make_task(with_batch_norm_and_dropout)
    refused = run_traced(method, task, change=poisoned(2, 2))
    report = refused.results[1].report
    found = [(each["client"], each["code"], each["reason"]) for each in report.refused]
    if report.accepted != (1, 4, 6) or found != [(2, "E101", "non_finite")] or "0.weight" not in report.refused[0]["message"]:
        raise Breach(f"of clients 1, 2, 4 and 6, 2 sending a NaN, {report.accepted} were accepted: {report.refused}", HIDDEN)
    if refused.settled[1] != {1, 4, 6}:
        raise Breach(f"the new state of clients {sorted(refused.settled[1])} was committed, accepted were 1, 4 and 6", HIDDEN)
    never_asked = [[c for c in cohort if (c, t) != (2, 2)] for t, cohort in enumerate(SCRIPT, start=1)]
    absent = run_traced(method, task, cohorts=never_asked)
    for round, (mine, theirs) in enumerate(zip(refused.bits(), absent.bits(), strict=True), start=1):
        if mine[:2] != theirs[:2]:
            raise Breach(f"round {round} is not the one in which the refused client was never asked", HIDDEN)
    _all_refused(trial)
    _surplus_answers(trial)


def _all_refused(trial: Trial) -> None:
    def ruin(answer: ClientUpload, round: int) -> ClientUpload:
        return answer._replace(upload=answer.upload._replace(delta=answer.upload.delta * float("nan"))) if round == 2 else answer

    trace = run_traced(trial.algorithm, make_task(with_batch_norm_and_dropout), change=ruin)
    before, after = trace.bits()[:2]
    report = trace.results[1].report
    if before[:2] != after[:2] or not report.model_kept or report.reason != "no usable upload" or len(report.refused) != 4:
        raise Breach("a round in which all were refused changed something", HIDDEN)
    if (report.test is None) != (trace.results[0].report.test is None):  # where statistics are local, no round is
        raise Breach("a round in which all were refused was not evaluated", HIDDEN)
    if trace.results[2].report.accepted != SCRIPT[2]:
        raise Breach(f"after a round in which all were refused, {trace.results[2].report.accepted} of {SCRIPT[2]} were accepted", HIDDEN)


def _surplus_answers(trial: Trial) -> None:
    """A stranger's answer and a second, different one of client 2 arrive behind the others."""

    def with_surplus(answers: Sequence[Any]) -> list[Any]:
        if isinstance(answers[0], int):  # the clients to train, not their answers
            return list(answers)
        second = answers[1]._replace(upload=answers[1].upload._replace(delta=answers[1].upload.delta * 5))
        return [*answers, second, answers[0]._replace(client=6)]

    cohorts = [(0, 2, 3, 5), (1, 2, 4, 5)]
    plain = run_traced(trial.algorithm, cohorts=cohorts, rounds=2)
    crowded = run_traced(trial.algorithm, cohorts=cohorts, rounds=2, arrange=with_surplus)
    report = crowded.results[0].report
    found = [(each["client"], each["code"], each["reason"]) for each in report.refused]
    if report.accepted != cohorts[0] or found != [(2, "E114", "duplicate"), (6, "E114", "not_asked")]:
        raise Breach(f"with a second and an uncalled answer, {report.accepted} were accepted and {found} refused", HIDDEN)
    if [mine[:2] for mine in plain.bits()] != [theirs[:2] for theirs in crowded.bits()]:
        raise Breach("an answer that did not count changed something", HIDDEN)


def small_clients(trial: Trial) -> None:
    """Clients of no example, of one example, of one class and of one step stop nothing."""
    partition = Explicit([[], [0], list(range(1, 20)), [40, 41]])
    cohorts = [[0, 1, 2, 3], [0], [1, 3], [0, 1]]
    for plan in (PLAN, LocalPlan(lr=0.1, epochs=1, batch_size="full")):
        trace = run_traced(trial.algorithm, partition=partition, cohorts=cohorts, local=plan)
        accepted = [result.report.accepted for result in trace.results]
        if accepted != [(1, 2, 3), (), (1, 3), (1,)]:
            others = [each["message"] for result in trace.results for each in result.report.refused if each["reason"] != "no_data"]
            why = others[0] if others else "see RoundReport.refused"
            remedy = "No division by steps - 1, no standard deviation of one number: a client may have one example and take one step"
            raise Breach(f"clients of 1, 19 and 2 examples were not all accepted: {accepted}, {why}", remedy)
        if trace.results[0].report.refused[0]["reason"] != "no_data" or not trace.results[1].report.model_kept:
            raise Breach("a client without examples was not refused for that", HIDDEN)
        _require_finite(trace, "with clients of one example and one step")


def finite(trial: Trial) -> None:
    """Gradients of 0, 1e-30 and 1e+30, and one client of huge inputs: no NaN is sent where none must be, and none is ever kept."""
    for scale in (0.0, 1e-30, 1e30):
        trace = run_traced(trial.algorithm, make_task(mlp, loss=_scaled_loss(scale)))
        if scale < 1:
            remedy = "Add core.gradient.EPS to a norm before you divide by it, or choose by torch.where"
            _require_accepted(trace, f"with gradients of {scale:g}", (), remedy)
        _require_finite(trace, f"with gradients of {scale:g}")
    x, _ = examples()
    start = sum(SIZES[:2])
    x[start : start + SIZES[2]] *= 1e30
    trace = run_traced(trial.algorithm, make_task(mlp, x=x))
    _require_accepted(trace, "with client 2's inputs of 1e30", (2,), "A client's numbers must not reach another's state")
    _require_finite(trace, "with client 2's inputs of 1e30")


def _scaled_loss(scale: float) -> Any:
    return lambda outputs, y: scale * F.cross_entropy(outputs, y)


def _require_accepted(trace: Trace, when: str, but: Sequence[int], remedy: str) -> None:
    """Nobody is refused `but` these; where such a one's numbers make the sum overflow, the round itself is."""
    for result in trace.results:
        # Without gradients nothing tells two clients' uploads apart, and one of equal ones counts.
        refused = [each for each in result.report.refused if each["client"] not in but and each["reason"] not in ("copied", "replayed")]
        if refused and not (but and result.report.reason == "the aggregate is not finite"):
            raise Breach(f"{when}, an upload was refused in round {result.report.round}: {refused[0]['message']}", remedy)


def _require_finite(trace: Trace, when: str) -> None:
    """The model, the server's state, and whatever a client keeps."""
    for result, states in zip(trace.results, trace.states, strict=True):
        trees = {"the server's state": (result.state.server, result.state.buffers)}
        trees |= {f"what client {client} keeps": state for client, state in states.items()}
        for what, tree in trees.items():
            bad = [name for name, leaf in to_arrays(tree).items() if leaf.is_floating_point() and not torch.isfinite(leaf).all()]
            if bad:
                seen = f"{when}, {what} is not finite after round {result.report.round}: {bad[0]!r}"
                raise Breach(seen, "An upload that is accepted must leave finite state: send what would show, or choose by torch.where")


def _require_equal(mine: Trace, theirs: Trace, when: str, remedy: str) -> None:
    for round, (a, b) in enumerate(zip(mine.bits(), theirs.bits(), strict=True), start=1):
        for what, one, other in zip(("the server's state", "what the clients keep", "the reports"), a, b, strict=True):
            if one != other:
                raise Breach(f"{what} of round {round} is another {when}", remedy)


def shuffled(seed: int) -> Arrange:
    """Puts clients, and their answers, into another order each time."""
    rng = stream(seed, "order")

    def arrange(items: Sequence[Any]) -> list[Any]:
        return [items[i] for i in rng.permutation(len(items))]

    return arrange
