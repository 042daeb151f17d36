"""suite.py: what is said at once, what is left out and why, and which arguments are none."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import fedaccord as fa
from fedaccord.checks import suite
from fedaccord.checks.law import Breach
from fedaccord.core.algorithm import Cohort
from fedaccord.core.errors import ConfigError


class AsksForANumber(fa.FedProx):
    def direction(self, grad: Any, w: Tensor, sent: Any, local: Any) -> Any:
        gradient = grad(w)
        return gradient / max(1.0, gradient.norm().item()), local


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """These laws stand for all of them, to save time."""
    monkeypatch.setattr(suite, "LAWS", {name: suite.LAWS[name] for name in names})


def test_all_that_is_broken_is_said_at_once_with_the_first_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(fa.Scaffold):
        def update(self, server: Any, cohort: Cohort) -> Any:
            moved = cohort.weighted.delta.norm().item() > 0
            return super().update(server, cohort._replace(uniform=cohort.weighted)) if moved else server

    only(monkeypatch, "state", "vectorisability", "ledger")
    with pytest.raises(fa.LawError, match=r"(?s)^Twice breaks 2 laws\nvectorisability: update .*\nledger: ") as caught:
        fa.check_algorithm(Twice(), ledger=lambda server, kept: (server.control, kept.control))
    assert [each.law for each in caught.value.broken] == ["vectorisability", "ledger"]
    assert isinstance(caught.value.__cause__, Breach) and isinstance(caught.value.__cause__.__cause__, RuntimeError)


def test_behind_a_broken_foundation_the_other_laws_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class InPlace(fa.FedProx):
        def upload(self, w: Tensor, sent: Any, local: Any, work: Any) -> Any:
            return super().upload(w.mul_(1.5), sent, local, work)

    def unreached(trial: Any) -> None:
        raise AssertionError

    monkeypatch.setitem(suite.LAWS, "vectorisability", unreached)
    with pytest.raises(fa.LawError, match="purity: upload writes into w") as caught:
        fa.check_algorithm(InPlace())
    assert len(caught.value.broken) == 1 and "not looked at" in caught.value.__notes__[0]


def test_what_is_not_given_is_not_checked_and_an_exemption_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "state", "vectorisability", "neutral", "ledger")
    verdicts = fa.check_algorithm(AsksForANumber(), exempt={"vectorisability": "its scale is a number of the host"})
    assert [tuple(verdict) for verdict in verdicts] == [
        ("state", "holds", ""),
        ("vectorisability", "exempt", "its scale is a number of the host"),
        ("neutral", "not checked", "give neutral=..."),
        ("ledger", "not checked", "give ledger=..."),
    ]


def test_an_exemption_from_a_law_that_holds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "state")
    with pytest.raises(fa.LawError, match="state: it holds, and the method is exempt from it"):
        fa.check_algorithm(fa.FedProx(), exempt={"state": "out of date"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"algorithm": fa.FedProx}, "E202 algorithm is a type.*Write FedProx"),
        ({"algorithm": "fedavg"}, "E202 algorithm is a str"),
        ({"algorithm": fa.FedProx(), "neutral": fa.FedProx}, "E202 neutral is a type"),
        ({"algorithm": fa.FedProx(), "exempt": {"vectorizability": "why"}}, "E205 unknown law 'vectorizability'.*vectorisability"),
    ],
    ids=["class", "name", "neutral", "exempt"],
)
def test_wrong_arguments_are_told_apart_from_broken_laws(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fa.check_algorithm(**arguments)


def test_each_law_has_a_name_and_says_what_it_is() -> None:
    laws = fa.laws(fa.FedProx(), neutral=fa.FedProx(mu=0.0), ledger=lambda server, kept: (server.w, server.w))
    assert [str(law) for law in laws] == [law.name for law in laws] == list(suite.LAWS)
    assert all(law.says.endswith(".") for law in laws)
    assert [law.name for law in fa.laws(fa.FedProx())] == list(suite.LAWS)[:-2]
