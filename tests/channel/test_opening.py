"""opening.py: what the key holder answers, and to whom."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.channel.masks import SECRET_BYTES
from fedaccord.channel.opening import Held, Holder
from fedaccord.channel.paillier import PrivateKey
from fedaccord.channel.private_sum import contribution
from fedaccord.core.errors import ConfigError, StorageError

CLIENTS = range(8)
SECRETS = {client: bytes([client]) * SECRET_BYTES for client in CLIENTS}
Change = Callable[[dict[str, Any]], dict[str, Any]]


class Asked:
    """A holder with enrolled clients, and the requests of an honest server that a test may bend."""

    def __init__(self, key: PrivateKey, **options: Any) -> None:
        self.key, self.kept = key, list[Held]()
        self.holder = Holder(Held(key, secrets=SECRETS), "server", "clients", keep=self.kept.append, **options)

    def say(self, do: str, body: Any, token: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.holder.answer(json.dumps({"do": do, "token": token, "body": body}).encode()))
        return found

    def ciphertexts(self, round: int, values: dict[int, float]) -> dict[int, int]:
        public = self.key.public
        return {c: public.read(contribution(public, SECRETS[c], c, round, value).ciphertext) for c, value in values.items()}

    def body(self, round: int, clients: list[int], total: int) -> dict[str, Any]:
        public = self.key.public
        return {"key": public.fingerprint, "round": round, "clients": clients, "sum": public.written(total)}

    def open(self, round: int, values: dict[int, float], change: Change = lambda body: body) -> dict[str, Any]:
        ciphertexts = self.ciphertexts(round, values)
        return self.say("open", change(self.body(round, list(values), self.key.public.summed(ciphertexts.values()))), "server")


VALUES = {client: 0.1 * client - 0.3 for client in range(6)}


@pytest.fixture
def asked(key: PrivateKey) -> Asked:
    return Asked(key)


def test_a_sum_of_five_is_opened(asked: Asked) -> None:
    values = {client: 0.25 for client in range(5)}
    assert asked.open(1, values) == {"sum": 1.25}


def test_a_cohort_of_four_is_refused(asked: Asked) -> None:
    assert asked.open(1, {client: 0.25 for client in range(4)})["refused"] == "too_few"


def test_a_larger_smallest_sum_can_be_asked_for_and_a_smaller_one_cannot(key: PrivateKey) -> None:
    assert Asked(key, min_clients=7).open(1, VALUES)["refused"] == "too_few"
    with pytest.raises(ConfigError, match="E203"):
        Asked(key, min_clients=4)


def test_the_same_round_is_opened_once_and_no_earlier_one_after_it(asked: Asked) -> None:
    assert "sum" in asked.open(5, VALUES)
    assert asked.open(5, VALUES)["refused"] == "repeated_round"
    assert asked.open(4, VALUES)["refused"] == "repeated_round"
    assert "sum" in asked.open(6, VALUES)


def test_an_attempt_uses_the_round_up_even_where_nothing_comes_of_it(asked: Asked) -> None:
    """Else a server could try one set of clients after another, and learn from which of them fall out of the range."""
    assert asked.open(1, VALUES, lambda body: body | {"clients": [0, 1, 2, 3, 4, 7]})["refused"] == "out_of_range"
    assert asked.open(1, VALUES)["refused"] == "repeated_round"


def test_the_round_is_written_down_before_its_sum_is_decrypted(key: PrivateKey) -> None:
    """A holder that cannot remember that it has answered does not answer."""
    asked = Asked(key)

    def full(held: Held) -> None:
        raise StorageError("E321", "the disk is full")

    asked.holder._keep = full
    with pytest.raises(StorageError):
        asked.open(1, VALUES)
    asked.holder._keep = asked.kept.append
    assert "sum" in asked.open(1, VALUES)
    assert [held.last_round for held in asked.kept] == [1]


def test_a_refusal_before_anything_is_decrypted_does_not_use_the_round_up(asked: Asked) -> None:
    assert asked.open(1, {0: 0.1})["refused"] == "too_few"
    assert asked.open(1, VALUES, lambda body: body | {"sum": "0"})["refused"] == "malformed"
    assert "sum" in asked.open(1, VALUES)


CHEATS: dict[str, Callable[[Asked], dict[str, Any]]] = {
    "one client's ciphertext six times": lambda asked: asked.body(1, list(VALUES), pow(asked.ciphertexts(1, VALUES)[2], 6, _square(asked))),
    "one client's and zeros of its own": lambda asked: asked.body(
        1, list(VALUES), asked.key.public.summed([asked.ciphertexts(1, VALUES)[2], *(asked.key.public.encrypt(0) for _ in range(5))])
    ),
    "a client left out": lambda asked: asked.body(1, list(VALUES), _product(asked, [0, 1, 2, 3, 4])),
    "a client left out and not declared, another twice": lambda asked: asked.body(1, [0, 1, 2, 3, 4], _product(asked, [0, 1, 2, 3, 3])),
    "a client that is not declared": lambda asked: asked.body(1, [0, 1, 2, 3, 4], _product(asked, list(VALUES))),
    "weights that lay the values side by side": lambda asked: asked.body(
        1, list(VALUES), _powers(asked, [1 << (64 * i) for i in range(6)])
    ),
    "twice the sum": lambda asked: asked.body(1, list(VALUES), _powers(asked, [2] * 6)),
    "the opposite sum": lambda asked: asked.body(1, list(VALUES), _powers(asked, [-1] * 6)),
    "another round's ciphertext": lambda asked: asked.body(
        1, list(VALUES), asked.key.public.summed((asked.ciphertexts(1, VALUES) | {0: asked.ciphertexts(2, VALUES)[0]}).values())
    ),
    "a large number added": lambda asked: asked.body(
        1, list(VALUES), asked.key.public.summed([_product(asked, list(VALUES)), asked.key.public.encrypt(1 << 60)])
    ),
    "a bare zero": lambda asked: asked.body(1, list(VALUES), asked.key.public.encrypt(0)),
    "one": lambda asked: asked.body(1, list(VALUES), 1),
}


def _square(asked: Asked) -> int:
    return asked.key.public.n**2


def _product(asked: Asked, clients: list[int]) -> int:
    ciphertexts = asked.ciphertexts(1, VALUES)
    return asked.key.public.summed(ciphertexts[client] for client in clients)


def _powers(asked: Asked, weights: list[int]) -> int:
    ciphertexts = asked.ciphertexts(1, VALUES).values()
    return asked.key.public.summed(pow(each, weight, _square(asked)) for each, weight in zip(ciphertexts, weights, strict=True))


@pytest.mark.parametrize("cheat", CHEATS.values(), ids=CHEATS.keys())
def test_any_sum_but_that_of_the_declared_clients_stays_closed(asked: Asked, cheat: Callable[[Asked], dict[str, Any]]) -> None:
    assert asked.say("open", cheat(asked), "server")["refused"] == "out_of_range"


def test_a_value_beyond_the_range_that_a_client_smuggles_in_is_refused(asked: Asked) -> None:
    """Masked as it should be, but 7 where 1 is the most: the sum is beyond what six clients can have."""
    from fedaccord.channel.fixed_point import SCALE
    from fedaccord.channel.masks import mask

    public, ciphertexts = asked.key.public, asked.ciphertexts(1, VALUES)
    ciphertexts[0] = public.encrypt(7 * SCALE + mask(SECRETS[0], 0, 1, public))
    body = asked.body(1, list(VALUES), public.summed(ciphertexts.values()))
    assert asked.say("open", body, "server")["refused"] == "out_of_range"


@pytest.mark.parametrize(("value", "expected"), [(1.0, 6.0), (-1.0, -6.0)])
def test_the_ends_of_the_range_belong_to_it(asked: Asked, value: float, expected: float) -> None:
    assert asked.open(1, dict.fromkeys(VALUES, value)) == {"sum": expected}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda body: body | {"key": "0" * 32}, "foreign_key"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, 4]}, "repeated_client"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, 99]}, "not_enrolled"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, -1]}, "malformed"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, True]}, "malformed"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, 5.0]}, "malformed"),
        (lambda body: body | {"clients": [0, 1, 2, 3, 4, [5]]}, "malformed"),
        (lambda body: body | {"clients": "01234"}, "malformed"),
        (lambda body: body | {"round": 0}, "malformed"),
        (lambda body: body | {"round": -3}, "malformed"),
        (lambda body: body | {"round": 10**30}, "malformed"),
        (lambda body: body | {"round": True}, "malformed"),
        (lambda body: body | {"sum": "-" + body["sum"]}, "malformed"),
        (lambda body: body | {"sum": 5}, "malformed"),
        (lambda body: body | {"sum": "f" * 1024}, "malformed"),
        (lambda body: body | {"min_clients": 1}, "malformed"),
        (lambda body: {name: value for name, value in body.items() if name != "round"}, "malformed"),
        (lambda body: [], "malformed"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(asked: Asked, change: Change, reason: str) -> None:
    assert asked.open(1, VALUES, change)["refused"] == reason
    assert asked.kept == []


def test_a_key_of_the_same_size_that_is_another_opens_nothing(asked: Asked, other_key: PrivateKey) -> None:
    public = other_key.public
    foreign = public.summed(public.encrypt(1) for _ in range(5)) % _square(asked)
    assert asked.say("open", asked.body(1, list(VALUES), foreign), "server")["refused"] == "out_of_range"


@pytest.mark.parametrize(
    ("do", "token"), [("open", "clients"), ("enrol", "server"), ("open", ""), ("enrol", "Server"), ("public", "server"), ("open", "\ud800")]
)
def test_each_role_is_allowed_its_own_request_alone(asked: Asked, do: str, token: str) -> None:
    body = asked.body(1, list(VALUES), _product(asked, list(VALUES))) if do == "open" else {"clients": [[50, "00" * SECRET_BYTES]]}
    assert asked.say(do, body, token)["refused"] == "not_allowed"
    assert asked.kept == []


def test_who_has_enrolled_cannot_be_replaced(asked: Asked) -> None:
    """Or a server that comes by the clients' token puts itself in a client's place."""
    assert asked.say("enrol", {"clients": [[0, "ff" * SECRET_BYTES]]}, "clients")["refused"] == "not_allowed"
    assert asked.say("enrol", {"clients": [[20, "aa" * SECRET_BYTES], [20, "bb" * SECRET_BYTES]]}, "clients")["refused"] == "not_allowed"
    assert asked.say("enrol", {"clients": [[0, SECRETS[0].hex()]]}, "clients") == {"enrolled": len(CLIENTS)}
    assert asked.kept == []
    assert "sum" in asked.open(1, VALUES)


@pytest.mark.parametrize(
    "pair", [[1], [1, 2], [1, "zz" * 32], [1, "00" * 31], [1, "00" * 33], [-1, "00" * 32], [True, "00" * 32], "ab", None]
)
def test_a_malformed_enrolment_changes_nothing(asked: Asked, pair: Any) -> None:
    assert asked.say("enrol", {"clients": [[30, "00" * SECRET_BYTES], pair]}, "clients")["refused"] == "malformed"
    assert asked.kept == []


def test_there_is_an_end_to_who_may_enrol(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedaccord.channel.opening.MOST_CLIENTS", 9)
    pairs = [[client, "00" * SECRET_BYTES] for client in (20, 21)]
    assert asked.say("enrol", {"clients": pairs}, "clients")["refused"] == "not_allowed"
    assert asked.say("enrol", {"clients": pairs[:1]}, "clients") == {"enrolled": 9}


Tree = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
)


@given(
    st.binary(max_size=64)
    | st.fixed_dictionaries(
        {
            "do": st.sampled_from(["open", "enrol"]) | Tree,
            "token": st.sampled_from(["server", "clients"]) | Tree,
            "body": st.fixed_dictionaries({"key": Tree, "round": Tree, "clients": Tree, "sum": Tree})
            | st.fixed_dictionaries({"clients": Tree})
            | Tree,
        }
    ).map(lambda each: json.dumps(each).encode())
)
def test_no_request_brings_the_holder_down(key: PrivateKey, request: bytes) -> None:
    asked = Asked(key)
    assert "sum" not in json.loads(asked.holder.answer(request))
