"""collector.py: what lives is set aside in a long run, and only until its end."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator

import pytest

import fedaccord as fa
from fedaccord.checks.trial import make_task, mlp
from fedaccord.runtime import collector
from fedaccord.runtime.collector import with_few_collections


@pytest.fixture(autouse=True)
def nothing_set_aside() -> Iterator[None]:
    assert not gc.get_freeze_count()
    yield
    assert not gc.get_freeze_count()


class Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


def test_a_short_run_is_left_alone() -> None:
    for _ in with_few_collections(range(3)):
        assert not gc.get_freeze_count()


def test_a_long_run_sets_aside_what_lives_and_not_what_is_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PATIENCE", 0.0)
    circle, counts = weakref.ref(Circle()), []
    for _ in with_few_collections(range(4)):
        counts.append(gc.get_freeze_count())
    assert circle() is None
    assert counts[0] == 0 and counts[1] > 10_000 and counts[1] == counts[2] == counts[3]


def test_what_somebody_else_has_set_aside_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PATIENCE", 0.0)
    gc.freeze()
    try:
        list(with_few_collections(range(3)))
        assert gc.get_freeze_count()
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_run_sets_aside_until_its_end_however_it_ends(is_interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PATIENCE", 0.0)
    counts: list[int] = []

    class Watching:
        def emit(self, event: object) -> None:
            counts.append(gc.get_freeze_count())
            if is_interrupted and len(counts) == 3:
                raise KeyboardInterrupt

    ending = pytest.raises(KeyboardInterrupt) if is_interrupted else contextlib.nullcontext()
    with ending:
        fa.run(make_task(mlp), fa.FedAvg(), partition=fa.IID(clients=3), cohort=3, rounds=4, telemetry=[Watching()])
    assert counts[1] == 0 and counts[2] > 10_000


def test_leaving_early_restores_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PATIENCE", 0.0)
    for each in with_few_collections(range(4)):
        if each == 2:
            assert gc.get_freeze_count()
            break
