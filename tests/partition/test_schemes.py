"""What each convention promises beyond the laws, against published figures and small cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from fedaccord.core.errors import PartitionError
from fedaccord.core.rng import stream
from fedaccord.partition import (
    IID,
    SCHEMES,
    Attributes,
    ByModality,
    BySite,
    DirichletPerClass,
    DirichletPerClient,
    Explicit,
    FeatureNoise,
    FewHoldMost,
    LabelShards,
    NaturalIds,
    PathologicalLabels,
    QuantityDirichlet,
    Shards,
    label_counts,
)
from fedaccord.partition.draws import cut, log_dirichlet, shares, top_up
from fedaccord.partition.measures import label_entropy

TEN_CLASSES = Attributes(5000, np.repeat(np.arange(10), 500))


@pytest.mark.parametrize(("alpha", "published"), [(0.1, 0.915), (0.3, 0.951), (0.6, 0.958)])
def test_drawing_with_replacement_reaches_the_published_share_of_cifar10(alpha: float, published: float) -> None:
    """FL-Simulator's convention on 10 x 5000 images and 100 clients; one published draw against our mean of 25 (deviation of one: 0.02)."""
    cifar = Attributes(50_000, np.repeat(np.arange(10), 5000))
    draws = [DirichletPerClient(alpha, 100, "with_replacement").split(cifar, stream(seed, "cifar")) for seed in range(25)]
    unique = [np.unique(draw.shards.indices).size / 50_000 for draw in draws]
    assert np.mean(unique) == pytest.approx(published, abs=0.015)
    totals = np.bincount(draws[0].shards.indices // 5000)
    assert totals.min() < 4600 and totals.max() > 5400, "class totals are not conserved by this convention"
    assert draws[0].duplicates


def test_the_copies_of_a_class_that_has_run_out_fall_on_all_clients_alike() -> None:
    shards = DirichletPerClient(0.1, 60, "with_replacement").split(TEN_CLASSES, stream(2, "copies")).shards
    twice = np.bincount(shards.indices, minlength=5000)[shards.indices] > 1
    owners = shards.owners()[twice]
    assert owners.size > 300
    assert np.mean((owners >= 20) & (owners < 40)) > 0.2, "dealt client by client, only the first and the last would hold copies"


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 5.0])
def test_log_dirichlet_has_the_moments_of_a_dirichlet(alpha: float) -> None:
    share = shares(log_dirichlet(alpha, (20_000, 4), stream(1, "moments")), np.ones(4, dtype=bool))
    assert np.allclose(share.sum(axis=1), 1.0)
    assert share.mean(axis=0) == pytest.approx(np.full(4, 0.25), abs=0.012)
    assert np.mean(np.sum(share**2, axis=1)) == pytest.approx((alpha + 1) / (4 * alpha + 1), abs=0.012)


def test_the_smallest_alpha_still_gives_shares_that_add_up_to_one() -> None:
    with np.errstate(divide="raise", invalid="raise"):
        logs = log_dirichlet(1e-6, (1000, 50), stream(2))
        last = np.zeros((1000, 50), dtype=bool)
        last[:, 0] = True
        assert np.allclose(shares(logs, last)[:, 0], 1.0), "a place with a log share of minus a million can still be the only one left"
        assert np.allclose(shares(logs, ~last).sum(axis=1), 1.0)


def test_cut_gives_nothing_to_a_share_of_zero_and_loses_nothing() -> None:
    share = np.array([0.0, 0.1, 0.0, 0.1, 0.7, 0.1, 0.0])
    for total in range(200):
        counts = cut(share, total)
        assert counts.sum() == total and np.all(counts[share == 0] == 0) and counts.min() >= 0


def test_the_two_dirichlet_conventions_differ_in_what_is_equal() -> None:
    per_class = DirichletPerClass(0.1, 50).split(TEN_CLASSES, stream(0)).shards
    per_client = DirichletPerClient(0.1, 50).split(TEN_CLASSES, stream(0)).shards
    assert set(per_client.sizes.tolist()) == {100}
    assert per_class.sizes.std() > 30


@pytest.mark.parametrize("scheme", [DirichletPerClass, DirichletPerClient])
def test_alpha_goes_from_one_class_each_to_all_alike(scheme: type[DirichletPerClass] | type[DirichletPerClient]) -> None:
    means = []
    for alpha in (0.001, 0.1, 1.0, 1e6):
        shards = scheme(alpha, 20).split(TEN_CLASSES, stream(3)).shards
        means.append(np.nanmean(label_entropy(label_counts(shards, TEN_CLASSES.labels, 10))))
    assert means == sorted(means)
    assert means[0] < 0.4 and means[-1] > 0.98


def test_a_client_with_its_share_takes_no_further_class() -> None:
    """NIID-Bench's cap, class after class: whoever holds n/N before a class gets nothing of it."""
    partition = DirichletPerClass(0.2, 20).split(TEN_CLASSES, stream(4))
    counts = label_counts(partition.shards, TEN_CLASSES.labels, 10)
    before = np.cumsum(counts, axis=1) - counts
    assert np.all(counts[before >= 250] == 0)
    assert np.any(before >= 250)


def test_min_size_is_met_by_a_repair_that_the_notes_count() -> None:
    small = Attributes(2000, np.arange(2000) % 10)
    partition = DirichletPerClass(0.05, 100, min_size=10).split(small, stream(5))
    assert partition.shards.sizes.min() >= 10
    assert len(partition.notes) == 1 and "min_size 10" in partition.notes[0] and "topped up" in partition.notes[0]


def test_a_min_size_that_falls_by_itself_needs_no_repair() -> None:
    partition = DirichletPerClass(100.0, 10, min_size=10).split(TEN_CLASSES, stream(6))
    assert partition.shards.sizes.min() >= 10 and partition.notes == ()


def test_the_repair_takes_from_the_largest_only_and_levels_them() -> None:
    owner = np.repeat(np.arange(5), [1, 30, 0, 20, 6])
    repaired, note = top_up(owner, 5, 5, stream(7))
    sizes = np.bincount(repaired, minlength=5)
    assert sizes.tolist() == [5, 21, 5, 20, 6], "nine examples, all from the largest"
    assert "2 clients were topped up with 9 examples of the 1 largest" in note
    moved = np.flatnonzero(repaired != owner)
    assert np.all(owner[moved] == 1) and moved.size == 9
    levelled = np.bincount(top_up(np.repeat(np.arange(4), [0, 0, 10, 9]), 4, 4, stream(7))[0], minlength=4)
    assert levelled[:2].tolist() == [4, 4] and sorted(levelled[2:].tolist()) == [5, 6]


def test_a_true_partition_goes_on_with_the_classes_that_are_left() -> None:
    """One rare class that nearly everybody wants: the published code would redraw for ever."""
    labels = np.array([0] * 3 + [1] * 997)
    with np.errstate(divide="raise", invalid="raise"):
        shards = DirichletPerClient(0.001, 100).split(Attributes(1000, labels), stream(8)).shards
    assert set(shards.sizes.tolist()) == {10}
    assert label_counts(shards, labels, 2).sum(axis=0).tolist() == [3, 997]


def test_an_unknown_draw_or_rule_is_answered_with_the_names() -> None:
    with pytest.raises(PartitionError, match=r"E205.*partition, with_replacement"):
        DirichletPerClient(0.1, 5, draw="shuffle").split(TEN_CLASSES, stream(0))  # type: ignore[arg-type]
    with pytest.raises(PartitionError, match=r"E205.*largest, random, merge"):
        NaturalIds(surplus="first").split(Attributes(4, ids=np.arange(4)), stream(0))  # type: ignore[arg-type]


def test_label_shards_give_equal_sizes_and_at_most_two_labels() -> None:
    shards = LabelShards(100, 2).split(TEN_CLASSES, stream(9)).shards
    assert set(shards.sizes.tolist()) == {50}
    held = (label_counts(shards, TEN_CLASSES.labels, 10) > 0).sum(axis=1)
    assert held.max() == 2 and np.count_nonzero(held == 2) > 50


def test_label_shards_do_not_follow_the_order_of_the_data() -> None:
    shards = LabelShards(10, 1).split(TEN_CLASSES, stream(9)).shards
    assert not all(np.all(np.diff(own) == 1) and own[0] == 500 * client for client, own in enumerate(shards))


def test_pathological_labels_hold_their_own_and_others_and_share_evenly() -> None:
    counts = label_counts(PathologicalLabels(30, 3).split(TEN_CLASSES, stream(10)).shards, TEN_CLASSES.labels, 10)
    assert np.all((counts > 0).sum(axis=1) == 3)
    assert np.all(counts[np.arange(30), np.arange(30) % 10] > 0)
    for of_label in counts.T:
        assert np.ptp(of_label[of_label > 0]) <= 1
    other = label_counts(PathologicalLabels(30, 3).split(TEN_CLASSES, stream(11)).shards, TEN_CLASSES.labels, 10)
    assert np.any((other > 0) != (counts > 0)), "the further labels are random"


def test_pathological_labels_with_few_clients_leave_no_label_to_nobody() -> None:
    for seed in range(20):
        counts = label_counts(PathologicalLabels(4, 3).split(TEN_CLASSES, stream(seed)).shards, TEN_CLASSES.labels, 10)
        assert np.all((counts > 0).sum(axis=1) == 3) and np.all(counts.sum(axis=0) == 500)


def test_the_odd_examples_of_the_labels_do_not_all_go_to_the_first_client() -> None:
    attributes = Attributes(100, np.arange(100) % 10)  # three holders of each label: 4, 3 and 3
    firsts = [int(PathologicalLabels(3, 10).split(attributes, stream(seed)).shards.sizes[0]) for seed in range(10)]
    assert np.mean(firsts) < 37


def test_labels_that_the_clients_cannot_hold_are_named() -> None:
    with pytest.raises(PartitionError, match=r"E311 4 clients with 2 labels each hold at most 8 of the 10 labels.*at least 5 clients or 3"):
        PathologicalLabels(4, 2).split(TEN_CLASSES, stream(0))


def test_few_clients_hold_most_and_the_others_a_handful() -> None:
    shards = FewHoldMost(100).split(Attributes(2000), stream(12)).shards
    assert sorted(shards.sizes.tolist()) == [5] * 80 + [80] * 20
    assert not np.array_equal(shards.sizes, np.sort(shards.sizes)[::-1]), "who holds most is drawn"


def test_few_hold_most_leaves_everybody_one_example_and_says_so() -> None:
    partition = FewHoldMost(100, 0.2, 0.95).split(Attributes(200), stream(13))
    assert partition.shards.sizes.min() == 1
    assert partition.notes == ("20 clients hold 120 examples instead of 190, so that each client has at least one",)
    assert FewHoldMost(10, 0.5, 0.01).split(Attributes(20), stream(13)).shards.sizes.min() == 1


@pytest.mark.parametrize("scheme", [IID(10), QuantityDirichlet(100.0, 10), FewHoldMost(10), FeatureNoise(10, 1.0)])
def test_contents_are_random_where_only_sizes_or_noise_differ(scheme: IID) -> None:
    counts = label_counts(scheme.split(TEN_CLASSES, stream(14)).shards, TEN_CLASSES.labels, 10)
    assert np.all(counts > 0)


def test_quantity_skew_grows_as_alpha_falls() -> None:
    spread = [QuantityDirichlet(alpha, 20).split(Attributes(5000), stream(15)).shards.sizes.std() for alpha in (0.05, 1.0, 1e4)]
    assert spread[0] > spread[1] > spread[2] and spread[2] < 10


def test_noise_rises_evenly_from_the_first_client_to_the_last() -> None:
    assert FeatureNoise(5, 0.4).split(Attributes(20), stream(0)).noise == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert FeatureNoise(1, 0.4).split(Attributes(20), stream(0)).noise == pytest.approx([0.0])
    assert IID(5).split(Attributes(20), stream(0)).noise is None


SITES = np.array(["sketch"] * 400 + ["art"] * 500 + ["photo"] * 100)


def test_each_site_has_its_own_clients_in_sorted_order() -> None:
    shards = BySite(2).split(Attributes(1000, site=SITES), stream(16)).shards
    assert [set(SITES[own].tolist()) for own in shards] == [{"art"}] * 2 + [{"photo"}] * 2 + [{"sketch"}] * 2
    assert shards.sizes.tolist() == [250, 250, 50, 50, 200, 200]


def test_a_site_with_fewer_examples_than_clients_is_named() -> None:
    with pytest.raises(PartitionError, match="E311 site 'photo' has 100 examples for 101 clients"):
        BySite(101).split(Attributes(1000, site=SITES), stream(0))
    with pytest.raises(PartitionError, match=r"E313 .*`site`"):
        BySite().split(Attributes(1000), stream(0))


def test_some_clients_hold_one_source_only_and_the_rest_are_mixed_at_equal_sizes() -> None:
    partition = ByModality({"sketch": 3, "art": 4}, mixed=3).split(Attributes(1000, site=SITES), stream(17))
    held = [set(SITES[own].tolist()) for own in partition.shards]
    assert held == [{"sketch"}] * 3 + [{"art"}] * 4 + [{"sketch", "art", "photo"}] * 3
    assert set(partition.shards.sizes.tolist()) == {100} and partition.notes == ()


def test_a_source_too_small_for_equal_sizes_is_shared_and_noted() -> None:
    partition = ByModality({"photo": 2}, mixed=3).split(Attributes(1000, site=SITES), stream(18))
    held = [set(SITES[own].tolist()) for own in partition.shards]
    assert held == [{"photo"}] * 2 + [{"sketch", "art", "photo"}] * 3
    assert partition.shards.sizes[:2].tolist() == [20, 20] and np.ptp(partition.shards.sizes[2:]) <= 1
    assert "'photo' has too few examples" in partition.notes[0]


def test_every_mixed_client_holds_every_source_also_where_one_is_nearly_used_up() -> None:
    site = np.repeat(["a", "b"], [22, 28])  # 2 x 10 examples for a's own clients would leave 2 for 3 mixed ones
    shards = ByModality({"a": 2}, mixed=3).split(Attributes(50, site=site), stream(20)).shards
    assert all(set(site[shards[client]].tolist()) == {"a", "b"} for client in (2, 3, 4))


def test_without_mixed_clients_every_source_needs_a_holder() -> None:
    alone = ByModality({"sketch": 1, "art": 2, "photo": 1}).split(Attributes(1000, site=SITES), stream(19)).shards
    assert alone.sizes.tolist() == [400, 250, 250, 100]
    with pytest.raises(PartitionError, match="E311 nobody may hold site 'photo'"):
        ByModality({"sketch": 1, "art": 2}).split(Attributes(1000, site=SITES), stream(0))
    with pytest.raises(PartitionError, match=r"E205 no example comes from site 'cartoon'.*art, photo, sketch"):
        ByModality({"cartoon": 1}, mixed=1).split(Attributes(1000, site=SITES), stream(0))


IDS = np.array(["w3"] * 5 + ["w1"] * 1 + ["w2"] * 8 + ["w0"] * 6)


def test_natural_ids_become_clients_in_sorted_order() -> None:
    partition = NaturalIds().split(Attributes(20, ids=IDS), stream(0))
    assert [set(IDS[own].tolist()) for own in partition.shards] == [{"w0"}, {"w1"}, {"w2"}, {"w3"}]
    assert partition.notes == ()


def test_small_natural_ids_are_left_out_and_counted() -> None:
    partition = NaturalIds(min_size=2).split(Attributes(20, ids=IDS), stream(0))
    assert partition.shards.sizes.tolist() == [6, 8, 5]
    assert partition.notes == ("1 of 4 ids are left out, with 1 of 20 examples",)


def test_fewer_clients_than_ids_keep_the_largest_a_random_choice_or_merge() -> None:
    attributes = Attributes(20, ids=IDS)
    assert NaturalIds(clients=2).split(attributes, stream(0)).shards.sizes.tolist() == [6, 8]
    chosen = {tuple(NaturalIds(clients=2, surplus="random").split(attributes, stream(seed)).shards.sizes.tolist()) for seed in range(20)}
    assert len(chosen) > 2
    merged = NaturalIds(clients=2, surplus="merge").split(attributes, stream(0))
    assert merged.shards.sizes.sum() == 20 and merged.notes == ()
    assert all(len(set(IDS[own].tolist())) == 2 for own in merged.shards)


def test_more_clients_than_natural_ids_are_refused() -> None:
    with pytest.raises(PartitionError, match="E311 5 clients asked for, but 4 of 4 ids"):
        NaturalIds(clients=5).split(Attributes(20, ids=IDS), stream(0))
    with pytest.raises(PartitionError, match=r"E313 .*`ids`"):
        NaturalIds().split(Attributes(20), stream(0))


def test_given_index_lists_keep_their_order_and_count_what_nobody_holds() -> None:
    partition = Explicit([[3, 1], [], [0]]).split(Attributes(5), stream(0))
    assert [own.tolist() for own in partition.shards] == [[3, 1], [], [0]]
    assert partition.notes == ("2 of 5 examples belong to nobody",) and not partition.duplicates


def test_given_index_lists_are_checked() -> None:
    with pytest.raises(PartitionError, match=r"E311 index 5 is outside the 5 examples.*client 1"):
        Explicit([[0], [5]]).split(Attributes(5), stream(0))
    with pytest.raises(PartitionError, match="E311 index -1"):
        Explicit([[0], [-1]]).split(Attributes(5), stream(0))
    with pytest.raises(PartitionError, match="E314 example 2 is held by clients 0 and 2"):
        Explicit([[2], [0], [2]]).split(Attributes(5), stream(0))
    assert Explicit([[2], [2]], duplicates=True).split(Attributes(5), stream(0)).duplicates


def test_shards_know_their_sizes_and_owners() -> None:
    shards = Shards.of([[4, 2], [], [7]])
    assert len(shards) == 3 and shards.sizes.tolist() == [2, 0, 1] and shards.owners().tolist() == [0, 0, 2]
    assert shards == Shards(np.array([4, 2, 7]), np.array([0, 2, 2, 3])) and shards != Shards.of([[4], [2], [7]])
    assert Shards.from_owner(np.array([1, -1, 0, 1]), 3) == Shards.of([[2], [0, 3], []])
    with pytest.raises(IndexError):
        shards[-1]
    assert len(Shards.of([])) == 0


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("iid", {"clients": 3}),
        ("dirichlet_per_class", {"alpha": 0.1, "clients": 3}),
        ("dirichlet_per_client", {"alpha": 0.1, "clients": 3, "draw": "with_replacement"}),
        ("label_shards", {"clients": 3}),
        ("pathological_labels", {"clients": 3, "labels_per_client": 2}),
        ("quantity_dirichlet", {"alpha": 0.1, "clients": 3, "min_size": 1}),
        ("few_hold_most", {"clients": 3}),
        ("feature_noise", {"clients": 3, "std": 0.1}),
        ("by_site", {}),
        ("by_modality", {"single": {"a": 1}, "mixed": 1}),
        ("natural_ids", {"clients": None}),
    ],
)
def test_a_validator_can_read_every_scheme_of_the_configuration(name: str, fields: dict[str, object]) -> None:
    adapter = TypeAdapter(SCHEMES[name])
    scheme = adapter.validate_python(fields)
    assert isinstance(scheme, SCHEMES[name])
    for field, value in fields.items():
        if isinstance(value, int | float):
            with pytest.raises(ValidationError):
                adapter.validate_python({**fields, field: -1})


def test_every_scheme_of_the_configuration_is_tried_above() -> None:
    assert len(SCHEMES) == 11
