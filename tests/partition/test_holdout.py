"""Each client's own held-out examples."""

from __future__ import annotations

import numpy as np
import pytest

from fedaccord.core.errors import PartitionError
from fedaccord.core.rng import stream
from fedaccord.partition import Attributes, DirichletPerClass, Explicit, Partition, Shards, holdout, label_counts
from fedaccord.partition.quantity import IID


def test_classes_keep_their_shares_on_both_sides() -> None:
    labels = np.repeat([0, 1], [80, 20])
    train, test = IID(1).split(Attributes(100, labels), stream(0)).holdout(0.25, labels, stream(1))
    assert label_counts(train, labels, 2).tolist() == [[60, 15]]
    assert label_counts(test, labels, 2).tolist() == [[20, 5]]


def test_row_9_a_rare_class_with_two_examples_is_on_both_sides_at_every_client() -> None:
    labels = np.tile(np.repeat([0, 1], [38, 2]), 50)  # 5% positives, 50 clients; an unstratified fifth would often hold none
    partition = Explicit([np.arange(40) + 40 * client for client in range(50)]).split(Attributes(2000, labels), stream(0))
    for seed in range(5):
        train, test = partition.holdout(0.2, labels, stream(seed))
        assert np.all(label_counts(train, labels, 2) > 0) and np.all(label_counts(test, labels, 2) > 0)
        assert set(test.sizes.tolist()) == {8}


def test_a_class_with_one_example_stays_in_training() -> None:
    labels = np.repeat([0, 1], [9, 1])
    for seed in range(20):
        train, test = IID(1).split(Attributes(10, labels), stream(0)).holdout(0.5, labels, stream(seed))
        assert label_counts(train, labels, 2).tolist() == [[4, 1]] and label_counts(test, labels, 2).tolist() == [[5, 0]]


def test_one_example_of_each_class_still_gives_a_holdout() -> None:
    labels = np.arange(10)
    train, test = IID(1).split(Attributes(10, labels), stream(0)).holdout(0.3, labels, stream(1))
    assert (train.sizes[0], test.sizes[0]) == (7, 3)


def test_row_8_clients_with_one_or_no_example_hold_nothing_out() -> None:
    partition = Partition(Shards.of([[0], [], [1, 2]]))
    train, test = partition.holdout(0.9, np.zeros(3, dtype=int), stream(0))
    assert train.sizes.tolist() == [1, 0, 1] and test.sizes.tolist() == [0, 0, 1]


def test_a_fraction_of_zero_changes_nothing() -> None:
    shards = Shards.of([[5, 2, 4], [], [1]])
    train, test = Partition(shards).holdout(0.0, np.zeros(6, dtype=int), stream(0))
    assert train == shards and test == Shards.of([[], [], []])


def test_the_order_of_given_lists_is_kept() -> None:
    train, test = Partition(Shards.of([[9, 3, 7, 1, 5]])).holdout(0.4, None, stream(0))
    order = [9, 3, 7, 1, 5]
    assert train[0].tolist() == [index for index in order if index not in test[0]] and test.sizes[0] == 2


def test_targets_that_are_no_classes_are_held_out_uniformly() -> None:
    for labels in (None, np.linspace(0, 1, 40), np.zeros((40, 8, 8), dtype=int)):
        seen = np.zeros(40)
        for seed in range(200):
            _, test = IID(4).split(Attributes(40), stream(0)).holdout(0.2, labels, stream(seed))
            assert test.sizes.tolist() == [2, 2, 2, 2]
            seen[test.indices] += 1
        assert seen.min() > 15 and seen.max() < 75  # 40 expected each


def test_copies_of_one_example_stay_on_one_side_of_a_client() -> None:
    rows = np.repeat(np.arange(10), 3)
    partition = Explicit([rows, rows], duplicates=True).split(Attributes(10), stream(0))
    train, test = partition.holdout(0.3, None, stream(1))
    for kept, held in zip(train, test, strict=True):
        assert held.size == 9 and kept.size == 21 and not np.intersect1d(kept, held).size


@pytest.mark.parametrize("fraction", [1.0, -0.1, float("nan"), 7.0])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(PartitionError, match="E203"):
        Partition(Shards.of([[0, 1]])).holdout(fraction, None, stream(0))


def test_labels_that_are_too_few_are_refused() -> None:
    with pytest.raises(PartitionError, match="E302 2 labels"):
        Partition(Shards.of([[0, 5]])).holdout(0.5, np.zeros(2, dtype=int), stream(0))


def test_the_holdout_of_a_skewed_partition_shows_the_clients_own_classes() -> None:
    labels = np.arange(2000) % 10
    partition = DirichletPerClass(0.1, 100).split(Attributes(2000, labels), stream(3))
    train, test = partition.holdout(0.2, labels, stream(4))
    held, kept = label_counts(test, labels, 10), label_counts(train, labels, 10)
    classes = (held + kept > 0).sum(axis=1)
    room = test.sizes <= partition.shards.sizes - classes  # one example of each class can stay in training
    assert room.sum() > 80
    assert np.all(kept[room][held[room] > 0] > 0), "nothing is tested that the client never saw"


def test_many_clients_are_drawn_in_blocks_of_whole_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one client alone is larger than a block, and where clients are empty."""
    sizes = [3, 0, 40, 7, 0, 0, 12, 1, 9, 0]
    shards = Shards.of(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    labels = np.arange(sum(sizes)) % 3
    for block in (1, 10, 20, 1000):
        monkeypatch.setattr(holdout, "BLOCK", block)
        train, test = Partition(shards).holdout(0.25, labels, stream(3))
        assert test.sizes.tolist() == [1, 0, 10, 2, 0, 0, 3, 0, 2, 0]
        assert [sorted([*a, *b]) for a, b in zip(train, test, strict=True)] == [list(own) for own in shards]
        assert all(label_counts(side, labels, 3)[2].min() >= 3 for side in (train, test))
