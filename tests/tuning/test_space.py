from __future__ import annotations

from typing import Any

import pytest

import fedaccord as fa
from fedaccord.core.errors import ConfigError
from fedaccord.experiment import Experiment
from fedaccord.tuning.space import Choices, Range, axis_of, checked_axes, is_axis, value_of, with_values

SAM = Experiment(algorithm=fa.FedSAM(rho=0.1))


@pytest.mark.parametrize(
    ("given", "axis"),
    [
        ("0.01..0.5", Range(0.01, 0.5)),
        ("1e-3..1", Range(0.001, 1)),
        ((0.01, 0.5), Range(0.01, 0.5)),
        ("0.01,0.03, 0.1", Choices((0.01, 0.03, 0.1))),
        ([0.01, 0.01, 0.1], Choices((0.01, 0.1))),
        ("[1, 2]", Choices((1, 2))),
        ("direction,reference", Choices(("direction", "reference"))),
    ],
)
def test_a_range_and_a_list_are_read(given: Any, axis: Range | Choices) -> None:
    assert axis_of("algorithm.rho", given) == axis


def test_bounds_without_a_point_give_whole_numbers() -> None:
    epochs, rho = axis_of("local.epochs", "1..10"), axis_of("algorithm.rho", "1.0..10")
    assert isinstance(epochs, Range) and epochs.is_whole and epochs.rounded(3.0) == 3 and isinstance(epochs.rounded(3.0), int)
    assert isinstance(rho, Range) and not rho.is_whole


def test_a_drawn_value_has_three_figures_and_stays_inside() -> None:
    axis = Range(0.012345, 0.54321)
    assert axis.rounded(0.123456) == 0.123
    assert (axis.rounded(0.012345), axis.rounded(0.54321)) == (0.0123450, 0.543)
    assert axis.rounded(0.0123451) in axis


def test_what_is_overridden_is_no_axis() -> None:
    assert [text for text in ("0.1", "[1, 2]", '"a,b"', "{ size = 3, name = 'x' }", "0.1..1", "1,2") if is_axis(text)] == ["0.1..1", "1,2"]


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        ("algorithm.roh", "0.1..1", "E201 unknown key 'roh' of FedSAM. --set algorithm.roh. Did you mean 'rho'?"),
        ("algorihm.rho", "0.1..1", "E201 unknown key 'algorihm'. --set algorihm.rho. Did you mean 'algorithm'?"),
        ("algorithm.rho.x", "0.1..1", "E201 unknown key 'x': algorithm.rho is 0.1. --set algorithm.rho.x"),
        ("algorithm.rho", "0..1", "E203 a range from 0. --set algorithm.rho. It is drawn in the logarithm: begin above 0, or give a list."),
        ("algorithm.rho", "1..0.1", "E203 a range from 1 to 0.1"),
        ("algorithm.rho", "0.1", "E206 '0.1' is neither a range nor a list. --set algorithm.rho. Write algorithm.rho=0.01..0.5 or"),
        ("algorithm.rho", "low..high", "E206 'low..high' is neither a range nor a list"),
        ("algorithm.rho", [], "E203 an empty list. --set algorithm.rho"),
        ("algorithm.rho", "0.1,high", 'E202 algorithm.rho = "high" is a string. --set algorithm.rho'),
        ("local.lr", [-1.0, 1.0], "E203 local.lr = -1.0 is out of range. --set local.lr"),
        ("local.epochs", "0.5..3", "E202 local.epochs = 0.5 is a number with a fraction. --set local.epochs"),
        ("task.hidden", "1..3", "E208 the task is data and model, which tuning leaves alone. --set task.hidden"),
        ("server_optimizer.lr", "0.1..1", "E201 unknown key 'lr': server_optimizer is None. --set server_optimizer.lr"),
    ],
)
def test_what_cannot_be_searched_is_named_with_its_place(key: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        checked_axes(SAM, {key: given})
    assert message in str(caught.value)


def test_values_go_to_their_place_and_nowhere_else() -> None:
    changed = with_values(SAM, {"algorithm.rho": 0.3, "local.optimizer.momentum": 0.9, "run.cohort.size": 3})
    assert (changed.algorithm, changed.local.optimizer, changed.run.cohort) == (fa.FedSAM(rho=0.3), fa.Sgd(momentum=0.9), fa.Uniform(3))
    assert SAM.algorithm == fa.FedSAM(rho=0.1) and value_of(changed, "local.optimizer.momentum") == 0.9
    back = with_values(changed, {"algorithm.rho": 0.1, "local.optimizer.momentum": 0.0, "run.cohort.size": 10})
    assert back == SAM
