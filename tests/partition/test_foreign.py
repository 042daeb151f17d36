"""Partitioners of other libraries, with the real ones of flwr-datasets where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from fedaccord.core.errors import PartitionError
from fedaccord.core.rng import stream
from fedaccord.partition import Attributes, FromPartitioner

NUM_EXAMPLES = 120
LABELS = stream(0, "labels").integers(0, 4, NUM_EXAMPLES)
IDS = np.array([f"w{number}" for number in stream(0, "ids").integers(0, 6, NUM_EXAMPLES)])
ATTRIBUTES = Attributes(NUM_EXAMPLES, LABELS, IDS)


@dataclass
class Subset:
    indices: list[int]


@dataclass
class Halves:
    """A partitioner as torch users write it: parts that say their indices."""

    dataset: list[int] = field(default_factory=lambda: list(range(NUM_EXAMPLES)))
    num_partitions: int = 2

    def load_partition(self, number: int) -> Subset:
        return Subset([index for index in self.dataset if index % 2 == number])


def test_parts_that_say_their_indices_are_taken_at_their_word() -> None:
    shards = FromPartitioner(Halves()).split(ATTRIBUTES, stream(0)).shards
    assert [own.tolist() for own in shards] == [list(range(0, NUM_EXAMPLES, 2)), list(range(1, NUM_EXAMPLES, 2))]


def test_a_dataset_of_another_length_and_a_row_given_twice_are_refused() -> None:
    with pytest.raises(PartitionError, match="E302 the partitioner's dataset has 5 rows, the task 120"):
        FromPartitioner(Halves(dataset=[0, 1, 2, 3, 4])).split(ATTRIBUTES, stream(0))
    with pytest.raises(PartitionError, match="E314"):
        FromPartitioner(Halves(dataset=[0] * NUM_EXAMPLES)).split(ATTRIBUTES, stream(0))


@pytest.fixture(scope="module")
def flwr() -> Any:
    return pytest.importorskip("flwr_datasets.partitioner", reason="needs flwr-datasets")


MAKERS: dict[str, Callable[[Any], Any]] = {
    "iid": lambda flwr: flwr.IidPartitioner(num_partitions=7),
    "dirichlet": lambda flwr: flwr.DirichletPartitioner(num_partitions=5, partition_by="label", alpha=0.5, min_partition_size=2),
    "natural": lambda flwr: flwr.NaturalIdPartitioner(partition_by="id"),
    "pathological": lambda flwr: flwr.PathologicalPartitioner(num_partitions=5, partition_by="label", num_classes_per_partition=2),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_partitioner_without_data_gets_the_tasks_columns(flwr: Any, name: str) -> None:
    partitioner = MAKERS[name](flwr)
    partition = FromPartitioner(partitioner).split(ATTRIBUTES, stream(0))
    assert np.array_equal(np.sort(partition.shards.indices), np.arange(NUM_EXAMPLES)) and partition.notes == ()
    assert not partitioner.is_dataset_assigned(), "the caller's object is as it was"
    if name == "natural":
        assert [set(IDS[own].tolist()) for own in partition.shards] == [{f"w{number}"} for number in range(6)]
    if name == "pathological":
        assert all(np.unique(LABELS[own]).size <= 2 for own in partition.shards)


@pytest.mark.parametrize("reordered", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_the_indices_are_the_rows_that_the_partitioner_itself_hands_out(flwr: Any, name: str, reordered: bool) -> None:
    from datasets import Dataset

    step = -1 if reordered else 1  # a selection of a dataset keeps its own map of indices
    columns = {"label": LABELS[::step], "id": IDS[::step], "x": np.arange(NUM_EXAMPLES * 2).reshape(NUM_EXAMPLES, 2)[::step]}
    dataset = Dataset.from_dict(columns)
    partitioner = MAKERS[name](flwr)
    partitioner.dataset = dataset.select(range(NUM_EXAMPLES - 1, -1, -1)) if reordered else dataset
    shards = FromPartitioner(partitioner).split(ATTRIBUTES, stream(0)).shards
    assert len(shards) == partitioner.num_partitions
    for number, own in enumerate(shards):
        part = partitioner.load_partition(number)
        assert np.array_equal(np.asarray(part["x"][:])[:, 0] // 2, own)


def test_a_dataset_in_another_order_than_the_task_is_refused(flwr: Any) -> None:
    from datasets import Dataset

    partitioner = flwr.IidPartitioner(num_partitions=3)
    partitioner.dataset = Dataset.from_dict({"label": LABELS}).shuffle(seed=1)
    with pytest.raises(PartitionError, match=r"E302 row \d+ has label .* unshuffled"):
        FromPartitioner(partitioner).split(ATTRIBUTES, stream(0))


def test_rows_that_the_partitioner_leaves_out_are_counted(flwr: Any) -> None:
    with pytest.warns(UserWarning, match="smaller than the size"):
        partition = FromPartitioner(flwr.SizePartitioner([10, 20, 30])).split(ATTRIBUTES, stream(0))
    assert partition.shards.sizes.tolist() == [10, 20, 30] and partition.notes == ("60 of 120 examples belong to nobody",)


def test_a_partitioner_of_columns_is_refused(flwr: Any) -> None:
    with pytest.raises(PartitionError, match="E311 the part does not say which rows it holds"):
        FromPartitioner(flwr.VerticalEvenPartitioner(num_partitions=2)).split(ATTRIBUTES, stream(0))
