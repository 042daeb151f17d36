"""What a partitioner sees and gives: `Attributes` in, `Partition` out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fedaccord.core.errors import PartitionError
from fedaccord.partition.holdout import held_out
from fedaccord.partition.shards import Float64, Int64, Shards

Column = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Attributes:
    """What a partitioner may look at: one row an example, no inputs."""

    num_examples: int
    labels: Column | None = None  # [n] integers
    ids: Column | None = None  # [n] natural client (writer, patient, author) of each example
    site: Column | None = None  # [n] source of each example (hospital, scanner, style)


@dataclass(frozen=True, eq=False)
class Partition:
    """Who owns which example.

    `noise` is the standard deviation of the Gaussian noise on each client's inputs (`FeatureNoise`), `notes` say in words what was
    repaired or left out, `duplicates` that the convention samples with replacement, so that an example may have several owners.
    """

    shards: Shards
    noise: Float64 | None = None  # [N]
    notes: tuple[str, ...] = ()
    duplicates: bool = False

    def holdout(self, fraction: float, labels: Column | None, rng: np.random.Generator) -> tuple[Shards, Shards]:
        """Each client's own (train, test): about `fraction` of its examples are held out, at least one stays for training.

        Stratified by `labels` [n]: a class of which the client has two or more examples is on both sides as far as the held-out count
        allows, and beyond that the classes keep their shares; without labels (None, or targets that are not classes) the draw is
        uniform. A client with one example keeps it for training. `fraction` 0 gives the same train shards and empty test shards. Where
        the partition holds duplicates, the copies that one client owns stay on one side (another client may own a further copy).

        Raises PartitionError E203 for a fraction outside [0, 1), E302 for labels of another length.
        """
        if not 0.0 <= fraction < 1.0:
            raise PartitionError("E203", f"held-out fraction {fraction} is not in [0, 1)", "Partition.holdout", "choose e.g. 0.2")
        shards = self.shards
        if labels is not None and shards.indices.size and int(shards.indices.max()) >= len(labels):
            raise PartitionError(
                "E302", f"{len(labels)} labels for shards that reach example {int(shards.indices.max())}", "Partition.holdout"
            )
        if fraction == 0:
            return shards, Shards(np.zeros(0, dtype=np.int64), np.zeros_like(shards.offsets))
        owners = shards.owners()
        strata = _strata(labels, shards.indices)
        if self.duplicates:
            pairs = owners * (int(shards.indices.max(initial=0)) + 1) + shards.indices
            _, first, copies = np.unique(pairs, return_index=True, return_inverse=True)
            test = held_out(owners[first], strata[first], len(shards), fraction, rng)[copies.reshape(-1)]
        else:
            test = held_out(owners, strata, len(shards), fraction, rng)
        return shards.where(~test), shards.where(test)


@runtime_checkable
class Partitioner(Protocol):
    """Any object with this method is a scheme; all randomness comes from `rng`."""

    def split(self, attributes: Attributes, rng: np.random.Generator) -> Partition: ...


def _strata(labels: Column | None, indices: Int64) -> Int64:
    """The class of each owned example, or one class for all where labels are no classes (regression, masks)."""
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iub":
        return np.zeros(indices.size, dtype=np.int64)
    return labels[indices].astype(np.int64)
