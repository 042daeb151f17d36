"""Partitioners of other libraries: anything with `.dataset`, `.num_partitions` and `.load_partition` (flwr-datasets' protocol)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaccord.core.errors import ConfigError, PartitionError
from fedaccord.partition.natural import given
from fedaccord.partition.partition import Attributes, Column, Partition
from fedaccord.partition.shards import Int64, Shards

ROW = "fedaccord_row"


@dataclass(frozen=True, eq=False)
class FromPartitioner:
    """Wrap a foreign partitioner. It brings its own seed: `rng` is not used.

    How its parts become indices. A part that has `.indices` (a torch Subset) is taken at its word. Otherwise a deep copy of the
    partitioner gets a light Hugging Face dataset with a column of row numbers, and the parts' row numbers are read back; the caller's
    partitioner is untouched.
    - The partitioner has no dataset yet: the light one holds the task's labels, ids and sites under `label_column`, `id_column`,
      `site_column`, so `partition_by` must name one of them.
    - It has one: the light one holds its scalar columns. Its rows must be the task's, in the same order (flwr's FederatedDataset
      shuffles unless told not to): the number of rows and, where both have integer labels, the labels are compared, E302 if they
      differ.

    Rows that the partitioner leaves out are counted in a note. E314 if it gives a row twice, E311 if its parts lose the row numbers.
    """

    partitioner: Any
    label_column: str = "label"
    id_column: str = "id"
    site_column: str = "site"

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition:
        dataset = _dataset_of(self.partitioner)
        if dataset is not None and len(dataset) != attributes.num_examples:
            raise PartitionError(
                "E302",
                f"the partitioner's dataset has {len(dataset)} rows, the task {attributes.num_examples} examples",
                "FromPartitioner",
                "give the partitioner the split that the task trains on",
            )
        twin = self._with_rows(dataset, attributes)
        parts = [_rows_of(twin.load_partition(number), number) for number in range(int(twin.num_partitions))]
        return given(Shards.of(parts), attributes.num_examples, False, "FromPartitioner")

    def _with_rows(self, dataset: Any, attributes: Attributes) -> Any:
        """A copy of the partitioner whose dataset carries row numbers; the original keeps its dataset and its random state."""
        if dataset is None:
            light = _light(
                {self.label_column: attributes.labels, self.id_column: attributes.ids, self.site_column: attributes.site}, attributes
            )
            twin = copy.deepcopy(self.partitioner)
            twin.dataset = light
            return twin
        if not hasattr(dataset, "select_columns"):  # no Hugging Face dataset: its parts have to say their indices
            return copy.deepcopy(self.partitioner, {id(dataset): dataset})
        scalar = [name for name, feature in dataset.features.items() if type(feature).__name__ in ("Value", "ClassLabel")]  # no images
        if self.label_column in scalar:
            self._compare_labels(np.asarray(dataset[self.label_column][:]), attributes.labels)
        light = dataset.select_columns(scalar).add_column(ROW, np.arange(len(dataset))) if scalar else _light({}, attributes)
        # the memo makes the copy hold `light` wherever the original holds `dataset`, without knowing in which attribute
        return copy.deepcopy(self.partitioner, {id(dataset): light})

    def _compare_labels(self, theirs: Column, ours: Column | None) -> None:
        if ours is None or theirs.dtype.kind not in "iu" or ours.dtype.kind not in "iu":
            return
        if not np.array_equal(theirs, ours):
            row = int(np.flatnonzero(theirs != ours)[0])
            raise PartitionError(
                "E302",
                f"row {row} has label {theirs[row]} in the partitioner's dataset and {ours[row]} in the task",
                "FromPartitioner",
                "both must hold the same rows in the same order: load the dataset unshuffled, or build the task from the shuffled one",
            )


def _dataset_of(partitioner: Any) -> Any:
    """The dataset, or None; flwr's property raises AttributeError before one is set."""
    return getattr(partitioner, "dataset", None)


def _light(columns: dict[str, Column | None], attributes: Attributes) -> Any:
    try:
        from datasets import Dataset
    except ImportError as missing:
        raise ConfigError("E209", "`datasets` is not installed", "FromPartitioner", "pip install datasets") from missing
    filled = {name: values for name, values in columns.items() if values is not None and values.ndim == 1}
    return Dataset.from_dict({**filled, ROW: np.arange(attributes.num_examples)})


def _rows_of(part: Any, number: int) -> Int64:
    if not hasattr(part, "column_names") and hasattr(part, "indices"):
        return np.asarray(part.indices, dtype=np.int64)
    if ROW not in getattr(part, "column_names", ()):
        raise PartitionError(
            "E311",
            "the part does not say which rows it holds",
            f"FromPartitioner, part {number}",
            "use a partitioner that splits rows, not columns",
        )
    return np.asarray(part[ROW][:], dtype=np.int64)
