"""private_sum.py: what clients send, and what the server may learn of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.channel.masks import new_secret
from fedaccord.channel.messages import MOST_ROUND
from fedaccord.channel.paillier import PrivateKey
from fedaccord.channel.private_sum import Contribution, PrivateSum, contribution
from fedaccord.core.errors import ConfigError, NetworkError
from fedaccord.core.rng import stream

VALUES = {client: 0.2 * client - 0.5 for client in range(6)}


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1) | st.sampled_from([-1.0, 1.0, 0.0, 1e-300, -1e-13]), min_size=5, max_size=12))
def test_the_opened_sum_is_the_clear_sum(private: PrivateSum, rounds: Iterator[int], values: list[float]) -> None:
    t = next(rounds)
    opened = private.open_sum(t, private.contribute(t, dict(enumerate(values))))
    assert opened.sum == pytest.approx(math.fsum(values), abs=1e-6)
    assert (opened.count, opened.reason, opened.left_out) == (len(values), None, {})


def test_a_sum_of_two_hundred_clients_is_the_clear_sum(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    values = stream(0, "private sum").uniform(-1, 1, 200).tolist()
    opened = private.open_sum(t, private.contribute(t, {1000 + client: value for client, value in enumerate(values)}))
    assert opened.sum == pytest.approx(math.fsum(values), abs=1e-6)


def test_what_lies_outside_is_clipped_before_it_is_summed(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    opened = private.open_sum(t, private.contribute(t, {0: 17.0, 1: -1e300, 2: -5.0, 3: 0.25, 4: 0.0}))
    assert opened.sum == pytest.approx(1 - 1 - 1 + 0.25, abs=1e-6)


def test_a_cohort_of_four_is_refused_with_the_reason(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    opened = private.open_sum(t, private.contribute(t, {client: VALUES[client] for client in range(4)}))
    assert (opened.sum, opened.count, opened.reason) == (None, 4, "too_few")
    assert opened.detail == "4 clients, a sum is opened from 5"


def test_nobody_is_no_error(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    assert private.open_sum(t, private.contribute(t, {})).reason == "too_few"


def test_the_holder_is_not_shown_a_sum_of_few(private: PrivateSum, rounds: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """It might open it."""
    t = next(rounds)
    contributions = private.contribute(t, VALUES)
    monkeypatch.setattr(private._holder, "open", lambda *asked: pytest.fail("the holder was asked"))
    assert private.open_sum(t, contributions[:4]).reason == "too_few"


def test_a_round_is_opened_once(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    contributions = private.contribute(t, VALUES)
    assert private.open_sum(t, contributions).reason is None
    again = private.open_sum(t, contributions)
    assert (again.sum, again.reason) == (None, "repeated_round")


def test_contributions_of_an_earlier_round_are_left_out(private: PrivateSum, rounds: Iterator[int]) -> None:
    earlier, t = next(rounds), next(rounds)
    old, new = private.contribute(earlier, VALUES), private.contribute(t, VALUES)
    opened = private.open_sum(t, [old[0], *new[1:]])
    assert opened.sum == pytest.approx(sum(VALUES.values()) - VALUES[0], abs=1e-6)
    assert opened.left_out == {0: f"a contribution for round {earlier}"}


def test_an_earlier_contribution_that_says_it_is_a_new_one_keeps_the_sum_closed(private: PrivateSum, rounds: Iterator[int]) -> None:
    earlier, t = next(rounds), next(rounds)
    old, new = private.contribute(earlier, VALUES), private.contribute(t, VALUES)
    assert private.open_sum(t, [old[0]._replace(round=t), *new[1:]]).reason == "out_of_range"


def test_a_contribution_under_another_key_is_left_out_and_one_that_hides_it_keeps_the_sum_closed(
    private: PrivateSum, rounds: Iterator[int], other_key: PrivateKey
) -> None:
    t = next(rounds)
    given = private.contribute(t, VALUES)
    foreign = contribution(other_key.public, new_secret(), 0, t, 0.5)
    opened = private.open_sum(t, [foreign, *given[1:]])
    assert opened.left_out == {0: "a contribution under another key"}
    assert opened.sum == pytest.approx(sum(VALUES.values()) - VALUES[0], abs=1e-6)

    t, small = next(rounds), "f" * 512
    given = private.contribute(t, VALUES)
    assert private.open_sum(t, [given[0]._replace(ciphertext=small), *given[1:]]).reason == "out_of_range"


BAD: dict[str, Callable[[Contribution, int], Contribution]] = {
    "zero": lambda given, n: given._replace(ciphertext="0"),
    "negative": lambda given, n: given._replace(ciphertext="-" + given.ciphertext),
    "the key": lambda given, n: given._replace(ciphertext=f"{n:x}"),
    "the square of the key": lambda given, n: given._replace(ciphertext=f"{n * n:x}"),
    "oversized": lambda given, n: given._replace(ciphertext="1" * 10_000_000),
    "empty": lambda given, n: given._replace(ciphertext=""),
    "no digits": lambda given, n: given._replace(ciphertext="ciphertext"),
    "another key": lambda given, n: given._replace(key="0" * 32),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_malformed_contribution_is_left_out_and_the_others_are_summed(
    private: PrivateSum, rounds: Iterator[int], bad: Callable[[Contribution, int], Contribution]
) -> None:
    t = next(rounds)
    given = private.contribute(t, VALUES)
    opened = private.open_sum(t, [bad(given[0], private._holder.public.n), *given[1:]])
    assert list(opened.left_out) == [0]
    assert (opened.sum, opened.count) == (pytest.approx(sum(VALUES.values()) - VALUES[0], abs=1e-6), 5)


def test_of_two_contributions_of_a_client_the_first_counts(private: PrivateSum, rounds: Iterator[int]) -> None:
    t = next(rounds)
    given = private.contribute(t, VALUES)
    opened = private.open_sum(t, [*given, given[2]])
    assert opened.left_out == {2: "a second contribution of the client"}
    assert opened.sum == pytest.approx(sum(VALUES.values()), abs=1e-6)


def test_a_contribution_hides_its_value_even_from_the_private_key(key: PrivateKey) -> None:
    """The mask is the client's and the holder's; who has the key alone sees a number of the size of n."""
    given = contribution(key.public, new_secret(), 3, 1, 0.5)
    assert abs(key.decrypt(key.public.read(given.ciphertext))) > key.public.n >> 200


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_the_clients_error(private: PrivateSum, rounds: Iterator[int], value: float) -> None:
    with pytest.raises(ConfigError, match="E203"):
        private.contribute(next(rounds), VALUES | {3: value})


def test_a_contribution_comes_back_from_its_json(key: PrivateKey) -> None:
    given = contribution(key.public, new_secret(), 3, 1, 0.5)
    assert Contribution.of_json(given.to_json()) == given


@pytest.mark.parametrize(
    "change",
    [
        {"client": -1},
        {"client": True},
        {"client": "3"},
        {"client": MOST_ROUND + 1},
        {"round": 0},
        {"round": 1.0},
        {"round": 10**40},
        {"key": 5},
        {"ciphertext": 5},
        {"ciphertext": None},
        {"ciphertext": "1" * (1 << 20)},
        {"value": 0.5},
    ],
)
def test_anything_but_a_contribution_is_refused(key: PrivateKey, change: dict[str, object]) -> None:
    told = json.loads(contribution(key.public, new_secret(), 3, 1, 0.5).to_json())
    with pytest.raises(NetworkError, match="E402"):
        Contribution.of_json(json.dumps(told | change))
