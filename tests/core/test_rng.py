"""rng.py: a stream is fixed by its names alone."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from fedaccord.core.rng import stream, streams, torch_seed, torch_stream


def test_the_same_names_give_the_same_draws_whatever_was_drawn_before() -> None:
    first = stream(1, "batches", 3, 7).permutation(50)
    np.random.default_rng(0).random(100)
    stream(1, "batches", 3, 8).random(1000)
    torch.manual_seed(99)
    assert np.array_equal(first, stream(1, "batches", 3, 7).permutation(50))


def test_any_other_seed_name_order_or_type_is_another_stream() -> None:
    names = [
        (1, "a", 2),
        (2, "a", 2),
        (1, "b", 2),
        (1, 2, "a"),
        (1, "a", "2"),
        (1, "a", 2, 0),
        (1, "a"),
        (12, "a"),
        (1, 2, "a", ""),
        (1, "a2"),
    ]
    draws = [tuple(stream(*each).integers(0, 2**63, 4)) for each in names]
    assert len(set(draws)) == len(draws)
    assert len({torch_seed(*each) for each in names}) == len(names)


def test_numpy_integers_name_the_same_seed_as_pythons() -> None:
    assert stream(np.int64(5), "x").random() == stream(5, "x").random()


def test_streams_of_neighbouring_clients_are_not_correlated() -> None:
    draws = np.stack([stream(0, "batches", 1, client).standard_normal(2000) for client in range(8)])
    for a, b in itertools.combinations(range(8), 2):
        assert abs(np.corrcoef(draws[a], draws[b])[0, 1]) < 0.1


def test_the_global_generators_are_neither_read_nor_moved() -> None:
    np_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[union-attr]
    stream(0, "a").random(10)
    torch.randn(10, generator=torch_stream(0, "a"))
    assert np.array_equal(np_before, np.random.get_state()[1]) and torch.equal(torch_before, torch.get_rng_state())  # type: ignore[index]
    torch.manual_seed(4)
    first = torch.randn(3, generator=torch_stream(0, "a"))
    torch.manual_seed(5)
    assert torch.equal(first, torch.randn(3, generator=torch_stream(0, "a")))


def test_generators_that_are_seeded_together_are_those_that_are_named_one_by_one() -> None:
    for seed in (0, 7, 2**62):
        for one, client in zip(streams(seed, "batches", 3, last=[0, 5, "5", 10**9]), [0, 5, "5", 10**9], strict=True):
            assert one.bit_generator.state == stream(seed, "batches", 3, client).bit_generator.state
    assert streams(1, "batches", last=[]) == []
