"""run_laws.py: the laws see a runtime at fault, and leave no trace themselves."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import fedaccord as fa
from fedaccord.runtime.sequential import Sequential


def law(name: str, method: fa.Algorithm) -> Any:
    return next(each for each in fa.laws(method) if each.name == name)


def test_the_law_of_refusals_sees_a_runtime_that_commits_what_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_all(self: Any, accepted: Any) -> None:
        self._states.settle(self._pending)

    law("refusals", fa.Scaffold())()
    monkeypatch.setattr(Sequential, "settle", commit_all)
    with pytest.raises(fa.LawError, match="round 2 is not the one in which the refused client was never asked"):
        law("refusals", fa.Scaffold())()


def test_the_law_of_repetition_leaves_the_global_generators_as_they_were() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    law("repetition", fa.FedAvg())()
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
