"""Laws of every scheme over thousands of drawn cases: each example once, class totals, sizes, ends, repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.core.errors import PartitionError
from fedaccord.core.rng import stream
from fedaccord.partition import (
    IID,
    Attributes,
    ByModality,
    BySite,
    DirichletPerClass,
    DirichletPerClient,
    FeatureNoise,
    FewHoldMost,
    LabelShards,
    NaturalIds,
    Partition,
    Partitioner,
    PathologicalLabels,
    QuantityDirichlet,
    label_counts,
)

ALPHAS = st.floats(-3, 6).map(lambda exponent: 10.0**exponent)


@dataclass(frozen=True)
class Case:
    """Data, a number of clients from 1 to n, and the free parameters of the schemes."""

    labels: np.ndarray
    clients: int
    alpha: float
    few: int  # shards or labels per client
    min_size: int
    seed: int

    @property
    def attributes(self) -> Attributes:
        rows = np.arange(self.labels.size)
        return Attributes(self.labels.size, self.labels, ids=rows % 7, site=np.array(["a", "b", "c"])[rows % 3])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_examples, num_classes, seed = draw(st.integers(1, 60)), draw(st.integers(1, 8)), draw(st.integers(0, 2**16))
    labels = stream(seed, "labels").integers(0, num_classes, num_examples) * 3 - 2  # with gaps, and one below zero
    clients = draw(st.integers(1, num_examples))
    return Case(labels, clients, draw(ALPHAS), draw(st.integers(1, 4)), draw(st.integers(0, num_examples // clients)), seed)


SCHEMES_OF: dict[str, Callable[[Case], Partitioner]] = {
    "iid": lambda case: IID(case.clients),
    "per_class": lambda case: DirichletPerClass(case.alpha, case.clients),
    "per_class_min_size": lambda case: DirichletPerClass(case.alpha, case.clients, case.min_size),
    "per_client": lambda case: DirichletPerClient(case.alpha, case.clients),
    "label_shards": lambda case: LabelShards(case.clients, case.few),
    "pathological": lambda case: PathologicalLabels(case.clients, case.few),
    "quantity": lambda case: QuantityDirichlet(case.alpha, case.clients, case.min_size),
    "few_hold_most": lambda case: FewHoldMost(case.clients),
    "feature_noise": lambda case: FeatureNoise(case.clients, 0.5),
    "by_site": lambda case: BySite(case.few),
    "by_modality": lambda case: ByModality({"a": case.few, "b": 1}, mixed=case.min_size + 1),
    "natural_ids": lambda case: NaturalIds(),
    "natural_ids_merged": lambda case: NaturalIds(clients=case.few, surplus="merge"),
}


def _impossible(name: str, case: Case) -> bool:
    """Whether the case, by the scheme's own words, has no partition: the only cases that may raise."""
    num_examples, num_classes = case.labels.size, np.unique(case.labels).size
    sites = [int(np.count_nonzero(case.attributes.site == site)) for site in "abc"]
    match name:
        case "label_shards":
            return case.clients * case.few > num_examples
        case "pathological":
            return case.few > num_classes or case.clients * case.few < num_classes
        case "by_site":
            return any(0 < size < case.few for size in sites)
        case "by_modality":
            mixed = case.min_size + 1
            return (
                sites[1] == 0
                or sites[0] < case.few + mixed
                or sites[1] < 1 + mixed
                or 0 < sites[2] < mixed
                or case.few + 1 + mixed > num_examples
            )
        case "natural_ids_merged":
            return case.few > min(num_examples, 7)
    return False


@pytest.mark.parametrize("name", SCHEMES_OF)
@settings(max_examples=200)
@given(case=cases())
def test_every_example_has_exactly_one_owner_or_the_constraint_is_named(name: str, case: Case) -> None:
    scheme = SCHEMES_OF[name](case)
    if _impossible(name, case):
        with pytest.raises(PartitionError, match=r"E311|E312|E205"):
            scheme.split(case.attributes, stream(case.seed, "split"))
        return
    with np.errstate(divide="raise", invalid="raise"):
        partition = scheme.split(case.attributes, stream(case.seed, "split"))
    shards = partition.shards
    assert shards.indices.dtype == np.int64 and shards.offsets.dtype == np.int64
    assert np.array_equal(np.sort(shards.indices), np.arange(case.labels.size))
    assert not partition.duplicates
    assert all(np.all(np.diff(own) > 0) for own in shards), "indices ascend inside a client"
    if hasattr(scheme, "clients") and scheme.clients is not None:
        assert len(shards) == scheme.clients
    again = SCHEMES_OF[name](case).split(case.attributes, stream(case.seed, "split"))
    assert again.shards == shards and again.notes == partition.notes
    _check_sizes(name, case, partition)


def _check_sizes(name: str, case: Case, partition: Partition) -> None:
    sizes, num_examples = partition.shards.sizes, case.labels.size
    match name:
        case "iid" | "per_client" | "feature_noise":
            assert sizes.max() - sizes.min() <= 1
        case "label_shards":
            assert sizes.max() - sizes.min() <= case.few
        case "per_class":
            largest_class = np.unique(case.labels, return_counts=True)[1].max()
            assert sizes.max() < num_examples / case.clients + largest_class, "who holds n/N takes no further class"
        case "per_class_min_size" | "quantity":
            assert sizes.min() >= case.min_size
        case "few_hold_most":
            assert sizes.min() >= 1
        case "by_modality":
            assert sizes.min() >= 1


@settings(max_examples=250)
@given(case=cases())
def test_drawing_with_replacement_keeps_sizes_and_reuses_a_class_only_when_it_has_run_out(case: Case) -> None:
    partition = DirichletPerClient(case.alpha, case.clients, "with_replacement").split(case.attributes, stream(case.seed, "split"))
    sizes = partition.shards.sizes
    assert partition.duplicates and sizes.sum() == case.labels.size and sizes.max() - sizes.min() <= 1
    copies = np.bincount(partition.shards.indices, minlength=case.labels.size)
    for label in np.unique(case.labels):
        of_class = copies[case.labels == label]
        assert of_class.max() - of_class.min() <= 1
    lost = int(np.count_nonzero(copies == 0))
    assert (f"{lost} of {case.labels.size} examples belong to nobody" in " ".join(partition.notes)) == (lost > 0)


@settings(max_examples=400)
@given(case=cases(), fraction=st.floats(0.0, 0.99), with_replacement=st.booleans())
def test_a_holdout_splits_each_client_and_leaves_it_something_to_train_on(case: Case, fraction: float, with_replacement: bool) -> None:
    draw = "with_replacement" if with_replacement else "partition"
    partition = DirichletPerClient(case.alpha, case.clients, draw).split(case.attributes, stream(case.seed, "split"))
    train, test = partition.holdout(fraction, case.labels, stream(case.seed, "holdout"))
    again = partition.holdout(fraction, case.labels, stream(case.seed, "holdout"))
    assert again == (train, test)
    assert len(train) == len(test) == case.clients
    for own, kept, held in zip(partition.shards, train, test, strict=True):
        assert np.array_equal(np.sort(np.concatenate([kept, held])), own)
        assert np.all(np.diff(kept) >= 0) and np.all(np.diff(held) >= 0), "the order is kept"
        assert not np.intersect1d(kept, held).size, "copies of one example stay on one side"
        distinct = np.unique(own).size
        quota = min(int(np.floor(fraction * distinct + 0.5)), max(distinct - 1, 0))
        assert np.unique(held).size == quota
        _check_strata(case.labels[np.unique(kept)], case.labels[np.unique(held)], quota)


def _check_strata(kept: np.ndarray, held: np.ndarray, quota: int) -> None:
    labels, counts = np.unique(np.concatenate([kept, held]), return_counts=True)
    splittable = labels[counts >= 2]
    if splittable.size <= quota <= kept.size + held.size - labels.size:
        assert np.isin(splittable, kept).all() and np.isin(splittable, held).all()


@settings(max_examples=150)
@given(case=cases())
def test_label_counts_equal_a_loop_over_the_clients(case: Case) -> None:
    labels = np.unique(case.labels, return_inverse=True)[1].reshape(-1)
    shards = DirichletPerClass(case.alpha, case.clients).split(case.attributes, stream(case.seed)).shards
    expected = np.array([np.bincount(labels[own], minlength=9) for own in shards])
    assert np.array_equal(label_counts(shards, labels, 9), expected)


@pytest.mark.parametrize("value", [0, -1, 2.5, True, "3", None])
@pytest.mark.parametrize("scheme", [IID, LabelShards, PathologicalLabels, FewHoldMost])
def test_a_number_of_clients_that_is_none_is_refused(scheme: Callable[[object], Partitioner], value: object) -> None:
    with pytest.raises(PartitionError, match=r"E20[23].*\.clients"):
        scheme(value).split(Attributes(10, np.zeros(10, dtype=np.int64)), stream(0))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf"), 1e-9, "0.3"])
@pytest.mark.parametrize("scheme", [DirichletPerClass, DirichletPerClient, QuantityDirichlet])
def test_an_alpha_out_of_range_is_refused(scheme: Callable[[object, int], Partitioner], alpha: object) -> None:
    with pytest.raises(PartitionError, match=r"E20[23].*\.alpha"):
        scheme(alpha, 3).split(Attributes(10, np.zeros(10, dtype=np.int64)), stream(0))


@pytest.mark.parametrize(
    "name", ["iid", "per_class", "per_client", "label_shards", "pathological", "quantity", "few_hold_most", "feature_noise"]
)
def test_more_clients_than_examples_are_refused_with_both_figures(name: str) -> None:
    case = Case(np.arange(5) % 2, 6, 0.1, 1, 0, 0)
    with pytest.raises(PartitionError, match="E312 6 clients but 5 examples"):
        SCHEMES_OF[name](case).split(case.attributes, stream(0))


@pytest.mark.parametrize("scheme", [DirichletPerClass(0.1, 4, min_size=3), QuantityDirichlet(0.1, 4, min_size=3)])
def test_a_min_size_that_the_data_cannot_give_is_refused_with_the_remedy(scheme: Partitioner) -> None:
    with pytest.raises(PartitionError, match=r"E311 min_size 3 for each of 4 clients needs 12 examples, there are 10.*at most 3 clients"):
        scheme.split(Attributes(10, np.arange(10) % 2), stream(0))


@pytest.mark.parametrize("name", ["per_class", "per_client", "label_shards", "pathological"])
def test_schemes_on_labels_name_what_is_wrong_with_the_labels(name: str) -> None:
    case = Case(np.arange(6) % 2, 2, 0.5, 1, 0, 0)
    for labels, code in (
        (None, "E313"),
        (np.linspace(0, 1, 6), "E306"),
        (np.zeros((6, 4), dtype=int), "E306"),
        (np.zeros(5, dtype=int), "E302"),
    ):
        with pytest.raises(PartitionError, match=code):
            SCHEMES_OF[name](case).split(Attributes(6, labels), stream(0))
