"""storage_laws.py: the laws see a bit that is lost."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import fedaccord as fa
from fedaccord.checks import storage_laws
from fedaccord.runtime.sequential import Sequential


def law(name: str, method: fa.Algorithm) -> Any:
    return next(each for each in fa.laws(method) if each.name == name)


@pytest.mark.parametrize(("way", "reader"), [("disk", "load_file"), ("wire", "load")])
def test_the_law_of_the_round_trip_sees_a_bit_that_is_lost(way: str, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = getattr(storage_laws, reader)

    def lossy(source: Any) -> dict[str, Tensor]:
        return {name: array.bfloat16().to(array.dtype) for name, array in whole(source).items()}

    law("round_trip", fa.Scaffold())()
    monkeypatch.setattr(storage_laws, reader, lossy)
    with pytest.raises(fa.LawError, match=f"the server's state comes back from the {way} with another w"):
        law("round_trip", fa.Scaffold())()


def test_the_law_of_the_resume_sees_clients_whose_state_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequential, "restore", lambda self, folder: None)
    with pytest.raises(fa.LawError, match=r"resumed after round 2 .* in memory, round 3 is another one"):
        law("resume", fa.Scaffold())()
