"""tools/paper_index.py: every method says where it comes from, and what it costs is counted."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fedaccord as fa
from fedaccord.algorithms import REGISTRY

TOOL = Path(__file__).resolve().parents[1] / "tools" / "paper_index.py"

# (client state, down, up, gradients a step), from the papers' own lists of what is kept and sent
EXPECTED = {
    "fedavg": ("0", "d", "d", 1),
    "fedprox": ("0", "d", "d", 1),
    "fednova": ("0", "d", "d + 1", 1),
    "scaffold": ("d", "2d", "2d", 1),
    "feddyn": ("d", "d", "d", 1),
    "fedcm": ("0", "2d", "d + 1", 1),
    "moon": ("d", "d", "d", 1),
    "fedsam": ("0", "d", "d", 2),
    "fedgamma": ("d", "2d", "2d", 2),
    "fedspeed": ("d", "d", "d", 2),
    "fedsmoo": ("2d", "2d", "2d", 2),
    "fedlesam": ("d", "d", "d", 1),
    "fedlesam_s": ("2d", "2d", "2d", 1),
    "fedlesam_d": ("2d", "d", "d", 1),
    "fedgmt": ("d", "2d", "d", 1),
    "fedgloss": ("d", "d + 1", "d", 2),
    "fedwmsam": ("d", "3d + 1", "2d + 2", 1),
}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("paper_index", TOOL)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["paper_index"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_names_paper_place_code_read_and_deviations_and_counts_nothing_itself(tool: Any, name: str) -> None:
    assert tool.lacking(REGISTRY[name]) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_method_costs_is_what_the_papers_say(tool: Any, name: str) -> None:
    found = tool.costs(REGISTRY[name]())
    assert (found.client_state, found.down, found.up, found.gradients) == EXPECTED[name]


def test_forward_passes_of_other_models_are_counted_too(tool: Any) -> None:
    assert [tool.costs(REGISTRY[name]()).forwards for name in ("fedavg", "fedsam", "moon", "fedgmt")] == [1, 2, 3, 2]


def test_half_of_the_steps_with_two_passes_are_one_and_a_half_gradients_a_step(tool: Any) -> None:
    assert tool.costs(fa.NoiseAdaptiveSAM(sam_fraction=0.5)).gradients == 1.5


def test_vectors_and_other_numbers_are_told_apart(tool: Any) -> None:
    class State(NamedTuple):
        a: Tensor
        b: tuple[Tensor, Tensor]

    vector, pair = torch.zeros(7), torch.zeros(2)
    assert tool.in_units_of_d(State(vector, (vector, pair)), 7) == "2d + 2"
    assert tool.in_units_of_d((vector,), 7) == "d" and tool.in_units_of_d((pair,), 7) == "2" and tool.in_units_of_d((), 7) == "0"


@dataclass(frozen=True)
class Nameless(fa.Algorithm):
    """Two gradients a step; traffic 2d."""


def test_a_method_that_says_nothing_is_found_out(tool: Any) -> None:
    assert tool.lacking(Nameless) == [
        "no paper",
        "no place",
        "no reference",
        "no deviations",
        "counts by itself: Two gradients a step",
        "counts by itself: traffic 2d",
    ]


def test_fields_go_on_until_the_next_and_papers_may_be_several(tool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = """Name (A 2020, arXiv:2001.00001, eq. 1; B et al. 2021, ICML, doi:10.1000/xyz): in words.

Reference code read: this
and that.
Deviation: one,
on two lines.
Deviation: two.

Other words.
"""
    monkeypatch.setattr(sys.modules[__name__], "__doc__", said)
    found = tool.facts(Nameless)
    assert found == (
        "A 2020, arXiv:2001.00001; B et al. 2021, ICML, doi:10.1000/xyz",
        "eq. 1",
        "this and that.",
        ("one, on two lines.", "two."),
    )
    page = "\n".join(tool._section("nameless", Nameless, found))
    assert "Other words." in page and page.count("on two lines") == 1 and inspect.getdoc(Nameless) in page
