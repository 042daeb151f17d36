"""balance.py: parts that shrink; cores.py: how many workers there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.runtime import cores as module
from fedaccord.runtime.balance import Blocks, Queue
from fedaccord.runtime.cores import cores

SIZES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 500)), max_size=40)


@given(SIZES, st.integers(1, 8), st.integers(1, 10), st.floats(0, 100))
def test_everyone_is_handed_out_once_and_most_work_first(steps: list[tuple[int, int]], workers: int, most: int, least: float) -> None:
    queue, taken = Queue(steps, workers, most, least), list[int]()
    while len(queue):
        part = queue.take()
        assert 0 < len(part) <= most
        taken += part
    assert sorted(taken) == list(range(len(steps))) and queue.take() == []
    assert [steps[position] for position in taken] == sorted(steps, reverse=True)


def test_parts_shrink_to_single_clients() -> None:
    queue, sizes = Queue([(1, 1)] * 100, 2, 100), list[int]()
    while len(queue):
        sizes.append(len(queue.take()))
    assert sizes[0] == 25 and sizes == sorted(sizes, reverse=True) and sizes[-3:] == [1, 1, 1]


def test_a_large_client_fills_a_part_alone() -> None:
    queue = Queue([(1, 1), (40, 1), (1, 1), (3, 1)], 2, 10)
    assert queue.take() == [1] and queue.take() == [3]


def test_parts_of_less_work_than_a_message_costs_are_not_made() -> None:
    assert len(Queue([(1, 1)] * 100, 2, 100, least=60).take()) == 60


def test_near_the_end_a_busy_worker_gets_nothing_ahead() -> None:
    queue = Queue([(1, 1)] * 4, 2, 10)
    assert queue.take(ahead=True) and queue.take(ahead=True), "4 are left, then 3"
    assert queue.take(ahead=True) == [] and len(queue) == 2
    assert queue.take() and queue.take() and not len(queue)


def test_after_a_problem_only_earlier_clients_are_still_asked() -> None:
    queue = Queue([(1, 1), (2, 1), (3, 1), (4, 1)], 1, 10)
    queue.keep_before(2)
    assert queue.take() + queue.take() == [1, 0]


def test_blocks_go_out_whole_and_a_busy_worker_gets_one_while_enough_are_left() -> None:
    blocks = Blocks([[0, 3], [1], [2, 4]], 2)
    assert blocks.take(ahead=True) == [0, 3] and blocks.take(ahead=True) == [] and len(blocks) == 2
    blocks.keep_before(4)
    assert blocks.take() == [1] and blocks.take() == [2] and blocks.take() == [] and not len(blocks)


def test_cores_are_those_that_we_are_bound_to_and_no_more_than_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.CORES, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    new, quota, period = tmp_path / "cpu.max", tmp_path / "quota", tmp_path / "period"
    monkeypatch.setattr(module, "_QUOTAS", ((str(new),), (str(quota), str(period))))
    assert cores() == 8
    for text, expected in (("150000 100000", 2), ("max 100000", 8), ("1000 100000", 1), ("1600000 100000", 8)):
        new.write_text(text + "\n")
        assert cores() == expected
    new.unlink()
    quota.write_text("-1\n")
    period.write_text("100000\n")
    assert cores() == 8
    quota.write_text("300000\n")
    assert cores() == 3
