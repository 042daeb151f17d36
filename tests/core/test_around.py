"""around.py: a method around another one has all of its rules, and what it transforms."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from fedaccord.core.algorithm import Algorithm
from fedaccord.core.around import Around, Transformed
from fedaccord.core.gradient import sam

RULES = sorted(
    name for name, rule in vars(Algorithm).items() if not name.startswith("_") and (callable(rule) or isinstance(rule, property))
)


class Recorder(Algorithm):
    """Answers every rule with the rule's name and what it was given."""

    def __getattribute__(self, name: str) -> Any:
        if isinstance(vars(Algorithm).get(name), property):
            return (name,)
        return (lambda *given: (name, *given)) if name in RULES else super().__getattribute__(name)


class Outer(Around):
    @property
    def inner(self) -> Algorithm:
        return Recorder()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_the_contract_is_the_inner_methods(rule: str) -> None:
    """A rule that is added to the contract and forgotten here would silently be FedAvg's."""
    own = getattr(Outer(), rule)
    if isinstance(vars(Algorithm)[rule], property):
        assert own == (rule,)
    else:
        given = tuple(f"argument {i}" for i in range(len(inspect.signature(getattr(Algorithm, rule)).parameters) - 1))
        assert own(*given) == (rule, *given)


class Bowl:
    step = 3

    def __init__(self) -> None:
        self.points: list[list[float]] = []

    def with_loss(self, w: Tensor) -> tuple[Tensor, Tensor]:
        self.points.append(w.tolist())
        return w.square().sum() / 2, w

    def __call__(self, w: Tensor) -> Tensor:
        return self.with_loss(w)[1]

    def hessian_product(self, w: Tensor, v: Tensor) -> Tensor:
        return 7 * v


def test_a_transformed_gradient_has_the_batchs_step_the_clean_loss_and_the_transforms_gradient() -> None:
    grad = Bowl()
    seen = Transformed(grad, lambda plain: sam(plain, 5.0))
    w = torch.tensor([3.0, 4.0])
    assert seen.step == 3 and seen.hessian_product(w, w).tolist() == [21.0, 28.0]
    loss, gradient = seen.with_loss(w)
    assert float(loss) == 12.5 and gradient.tolist() == pytest.approx([6.0, 8.0])
    assert torch.equal(seen(w), gradient) and len(grad.points) == 4


class Distilling(Around):
    @property
    def inner(self) -> Algorithm:
        return Plain()

    def objective(self, batch: Any, sent: Any, local: Any) -> Any:
        return lambda w: 2 * batch.loss_of(batch.outputs(w))


class Wrapped(Around):
    @property
    def inner(self) -> Algorithm:
        return Distilling()


class Plain(Algorithm):
    """FedAvg's objective."""


def test_a_method_around_another_differentiates_the_loss_if_neither_changes_it() -> None:
    class PlainInside(Around):
        @property
        def inner(self) -> Algorithm:
            return Plain()

    said = [method.objective_is_loss for method in (Plain(), PlainInside(), Distilling(), Wrapped())]
    assert said == [True, True, False, False]


def test_a_method_around_nothing_is_no_method() -> None:
    with pytest.raises(NotImplementedError):
        Around().init_server(torch.zeros(1))
