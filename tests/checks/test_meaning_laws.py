"""meaning_laws.py: what its author says of a method has to show something."""

from __future__ import annotations

from typing import Any

import pytest

import fedaccord as fa


def law(name: str, method: fa.Algorithm, **said: Any) -> Any:
    return next(each for each in fa.laws(method, **said) if each.name == name)


class Same(fa.FedProx):
    pass


def test_settings_that_are_neutral_themselves_show_nothing_and_that_is_said() -> None:
    with pytest.raises(fa.LawError, match="is FedAvg as well"):
        law("neutral", Same(mu=0.0), neutral=fa.FedProx(mu=0.0))()


def test_a_ledger_that_stays_at_zero_shows_nothing_and_that_is_said() -> None:
    with pytest.raises(fa.LawError, match="stayed at zero"):
        law("ledger", fa.Scaffold(), ledger=lambda server, kept: (0 * server.control, 0 * kept.control))()
