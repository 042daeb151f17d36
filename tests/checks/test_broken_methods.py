"""checks: a sound method passes; a broken one hears of the law that it breaks, and of nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.checks.suite import LAWS
from fedaccord.core.algorithm import Algorithm, BatchGrad, Cohort, Objective, RoundStart, Server, Upload, Work


class Dual(NamedTuple):
    dual: Tensor  # [d], sum of the client's accepted moves


class WithMean(NamedTuple):
    w: Tensor  # [d]
    mean: Tensor  # [d], of all clients' duals


@dataclass(frozen=True)
class Sound(Algorithm):
    """Keeps to every law: clients sum their moves, the server keeps the mean over all of them, and a pull that is off at mu = 0."""

    mu: float = 0.1

    def init_server(self, w: Tensor) -> Any:
        return WithMean(w, torch.zeros_like(w))

    def init_client(self, w: Tensor) -> Any:
        return Dual(torch.zeros_like(w))

    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        return torch.add(grad(w), w - sent.w, alpha=self.mu), local

    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        delta = w - sent.w
        return Upload(delta), Dual(local.dual + delta)

    def update(self, server: Any, cohort: Cohort) -> Any:
        return WithMean(server.w + cohort.weighted.delta, server.mean + cohort.size / cohort.population * cohort.uniform.delta)


class WritesIntoKept(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        local.dual.add_(w - sent.w)
        return Upload(w - sent.w), local


class WritesIntoGradient(Sound):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        _, gradient = grad.with_loss(w)
        half = gradient.clone()
        gradient.mul_(0.5)
        return half, local


class WritesIntoServer(Sound):
    def update(self, server: Any, cohort: Cohort) -> Any:
        server.w.add_(cohort.weighted.delta)
        return server._replace(mean=server.mean + cohort.size / cohort.population * cohort.uniform.delta)


class WritesInsideItsObjective(Sound):
    def objective(self, batch: Any, sent: Any, local: Any) -> Objective:
        def objective(w: Tensor) -> Tensor:
            local.dual.mul_(0.5)
            loss: Tensor = batch.loss_of(batch.outputs(w))
            return loss

        return objective


@dataclass(frozen=True)
class HiddenList(Sound):
    seen: list[float] = field(default_factory=list, hash=False, compare=False)

    def begin(self, start: RoundStart, sent: Any, kept: Any) -> Any:
        self.seen.append(start.lr)
        return kept


class HiddenAttribute(Sound):
    def begin(self, start: RoundStart, sent: Any, kept: Any) -> Any:
        object.__setattr__(self, "last", start.round)
        return kept


COUNTED = [0]


class CountsCalls(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        COUNTED[0] += 1
        delta = (w - sent.w) / COUNTED[0]
        return Upload(delta), Dual(local.dual + delta)


class DrawsOnItsOwn(Sound):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        return grad(w) + 0.01 * torch.randn_like(w), local


class AsksForANumber(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        delta = w - sent.w
        delta = delta / max(1.0, delta.norm().item())
        return Upload(delta), Dual(local.dual + delta)


class BranchesOnAValue(Sound):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        gradient = grad(w)
        if gradient.norm() > 1:
            gradient = gradient / gradient.norm()
        return gradient, local


class BranchesInItsObjective(Sound):
    def objective(self, batch: Any, sent: Any, local: Any) -> Objective:
        def objective(w: Tensor) -> Tensor:
            loss: Tensor = batch.loss_of(batch.outputs(w))
            return loss if loss > 0.5 else 2 * loss

        return objective


class BranchesOnTheServer(Sound):
    def update(self, server: Any, cohort: Cohort) -> Any:
        return server if cohort.weighted.delta.norm() > 1e9 else super().update(server, cohort)


class LooksAtAllAtOnce(Sound):
    """Runs under vmap, and does there something else: the batch dimension leaks."""

    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        is_one_by_one = not torch._C._functorch.is_batchedtensor(w)
        delta = (w - sent.w) * (1.0 if is_one_by_one else 0.5)
        return Upload(delta), Dual(local.dual + delta)


class MovesTheMeanByWeights(Sound):
    def update(self, server: Any, cohort: Cohort) -> Any:
        return super().update(server, cohort._replace(uniform=cohort.weighted))


class ForgetsTheAbsent(Sound):
    def update(self, server: Any, cohort: Cohort) -> Any:
        return super().update(server, cohort._replace(population=cohort.size))


class NeverNeutral(Sound):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        return grad(w) + self.mu * (w - sent.w) + 1e-6 * w, local


class StatisticsOfTheSecondPass(Sound):
    """The perturbed pass comes first, so batch norm sees the wrong weights."""

    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        grad(w + 1e-3)
        return torch.add(grad(w), w - sent.w, alpha=self.mu), local


class DividesByANorm(Sound):
    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        gradient = grad(w)
        return gradient / gradient.norm(), local


class Square(NamedTuple):
    square: Tensor  # [d], of the last gradient


class KeepsASquare(Algorithm):
    """The upload is finite where the state is not."""

    def init_client(self, w: Tensor) -> Any:
        return Square(torch.zeros_like(w))

    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        gradient = grad(w)
        return gradient.clamp(-1, 1), Square(gradient**2)


class WantsTwoSteps(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        delta = (w - sent.w) / (torch.as_tensor(work.steps) - 1)
        return Upload(delta), Dual(local.dual + delta)


class ChangesItsDtype(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        upload, kept = super().upload(w, sent, local, work)
        return upload, Dual(kept.dual.double())


class KeepsAList(Sound):
    def init_client(self, w: Tensor) -> Any:
        return [torch.zeros_like(w)]

    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        return Upload(w - sent.w), local


class UploadsNoDelta(Sound):
    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        return Dual(w - sent.w), local


class Stumbles(Sound):
    def begin(self, start: RoundStart, sent: Any, kept: Any) -> Any:
        if start.round == 3:
            raise IndexError("no third element")
        return kept


FIRST: dict[str, Any] = {"round": 0, "steps": None}


class FollowsTheFirst(Sound):
    """The client that happens to train first in a round sets the length of all of its updates."""

    def begin(self, start: RoundStart, sent: Any, kept: Any) -> Any:
        if FIRST["round"] != start.round:
            FIRST.update(round=start.round, steps=1.0 if start.round == 1 else None)
        return kept

    def upload(self, w: Tensor, sent: Any, local: Any, work: Work) -> tuple[Any, Any]:
        FIRST["steps"] = FIRST["steps"] or float(work.steps)
        delta = (w - sent.w) * (FIRST["steps"] / 100)
        return Upload(delta), Dual(local.dual + delta)


LAST: dict[str, Any] = {"round": 0, "w": None, "before": None}


class RemembersTheLastModel(Sound):
    """The pull leads to the model of the round before, which a module keeps."""

    def begin(self, start: RoundStart, sent: Any, kept: Any) -> Any:
        if LAST["round"] != start.round:
            LAST.update(round=start.round, before=sent.w if start.round == 1 else LAST["w"], w=sent.w)
        return kept

    def direction(self, grad: BatchGrad, w: Tensor, sent: Any, local: Any) -> tuple[Tensor, Any]:
        return torch.add(grad(w), w - LAST["before"], alpha=self.mu), local


class FollowsTheGlobalSeed(Algorithm):
    def update(self, server: Any, cohort: Cohort) -> Any:
        return Server(server.w + cohort.weighted.delta * (1 + random.Random(torch.initial_seed()).random()))


def ledger(server: Any, kept: Any) -> tuple[Tensor, Tensor]:
    return server.mean, kept.dual


BROKEN: list[tuple[Algorithm, str, str]] = [  # method, law, what is said
    (ChangesItsDtype(), "state", r"upload gives 'dual' in what is kept as \[83\] torch.float64, expected \[83\] torch.float32"),
    (KeepsAList(), "state", "init_client puts a list into a client's state"),
    (UploadsNoDelta(), "state", "E216 UploadsNoDelta uploads .*delta"),
    (Stumbles(), "state", "a rule raised IndexError: no third element, client 0, round 3"),
    (WritesIntoKept(), "purity", r"upload writes into local\.dual\. Return new values"),
    (WritesIntoGradient(), "purity", r"direction writes into the result of grad\.with_loss"),
    (WritesIntoServer(), "purity", r"update writes into server\.w"),
    (WritesInsideItsObjective(), "purity", r"objective writes into local\.dual"),
    (HiddenList(), "purity", "the field 'seen' of the instance changed"),
    (HiddenAttribute(), "purity", "the instance holds 'last', which is no field"),
    (CountsCalls(), "purity", r"upload gives other numbers in 0\.delta when it is called again"),
    (DrawsOnItsOwn(), "purity", r"direction gives other numbers in 0 when .*start\.random_direction"),
    (AsksForANumber(), "vectorisability", r"upload cannot run for many clients at once: .*\.item\(\)"),
    (BranchesOnAValue(), "vectorisability", "direction cannot run for many clients at once: .*control flow.*torch.where"),
    (BranchesInItsObjective(), "vectorisability", "direction cannot run for many clients at once: .*control flow"),
    (BranchesOnTheServer(), "vectorisability", "update cannot run for many clients at once: .*control flow"),
    (LooksAtAllAtOnce(), "vectorisability", "the upload's 'delta' of client 0 in round 1 differs by"),
    (FollowsTheFirst(), "order", r"of round \d is another with the clients in another order"),
    (RemembersTheLastModel(), "resume", "resumed after round 2 with clients' state in memory, round 3 is another one"),
    (FollowsTheGlobalSeed(), "repetition", "the server's state of round 1 is another in a second run"),
    (DividesByANorm(), "finite", "with gradients of 0, an upload was refused in round 1: E101 .*torch.where"),
    (KeepsASquare(), "finite", r"with gradients of 1e\+30, what client \d keeps is not finite after round 1: '\w+\.square'"),
    (WantsTwoSteps(), "small_clients", "clients of 1, 19 and 2 examples were not all accepted"),
    (MovesTheMeanByWeights(), "ledger", r"after round 1 the server's vector is .*cohort\.uniform"),
    (ForgetsTheAbsent(), "ledger", "after round 1 the server's vector is"),
    (NeverNeutral(), "neutral", "with plain SGD, the model of round 1 is .* away from FedAvg's"),
    (StatisticsOfTheSecondPass(), "neutral", "with batch norm, the buffer '1.running_mean' of round 1 is not FedAvg's"),
]


def said_of(method: Algorithm, law: str) -> dict[str, Any]:
    """What the author of a method above would say of it."""
    neutral = {"neutral": type(method)(mu=0.0)} if isinstance(method, Sound) and law == "neutral" else {}
    return neutral | ({"ledger": ledger} if isinstance(method, Sound) else {})


def names(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Algorithm) else ""


def test_a_sound_method_holds_every_law() -> None:
    verdicts = fa.check_algorithm(Sound(), neutral=Sound(mu=0.0), ledger=ledger)
    assert [verdict.law for verdict in verdicts] == list(LAWS) and {verdict.outcome for verdict in verdicts} == {"holds"}


@pytest.mark.parametrize(("method", "law", "said"), BROKEN, ids=names)
def test_a_broken_method_hears_of_its_law(method: Algorithm, law: str, said: str) -> None:
    (broken,) = [each for each in fa.laws(method, **said_of(method, law)) if each.name == law]
    with pytest.raises(fa.LawError, match=f"(?s)^{type(method).__name__} breaks the law\n{law}: .*{said}") as caught:
        broken()
    assert isinstance(caught.value, AssertionError) and all(caught.value.broken[0])


ALONE = (WritesIntoKept, HiddenList, ChangesItsDtype, AsksForANumber, MovesTheMeanByWeights)


@pytest.mark.parametrize(
    ("method", "law"),
    [pytest.param(method, law, marks=() if isinstance(method, ALONE) else pytest.mark.slow) for method, law, _ in BROKEN],
    ids=names,
)
def test_a_broken_method_hears_of_no_other_law(method: Algorithm, law: str) -> None:
    with pytest.raises(fa.LawError) as caught:
        fa.check_algorithm(method, **said_of(method, law))
    assert [each.law for each in caught.value.broken] == [law]
