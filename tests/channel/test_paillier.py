"""paillier.py: keys, ciphertexts, and what is taken for one."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from fedaccord.channel import paillier
from fedaccord.channel.paillier import PrivateKey, PublicKey
from fedaccord.core.errors import ConfigError, NetworkError


@pytest.mark.parametrize("plaintext", [0, 1, -1, 1 << 40, -(1 << 40), 1 << 200, -(1 << 200)])
def test_what_was_encrypted_comes_back_with_its_sign(key: PrivateKey, plaintext: int) -> None:
    assert key.decrypt(key.public.encrypt(plaintext)) == plaintext


def test_the_sum_of_the_ciphertexts_is_the_sum_of_the_plaintexts(key: PrivateKey) -> None:
    plaintexts = [5, -7, 0, -(1 << 50), 1 << 49, 3]
    assert key.decrypt(key.public.summed(key.public.encrypt(each) for each in plaintexts)) == sum(plaintexts)


def test_a_plaintext_has_another_ciphertext_each_time(key: PrivateKey) -> None:
    assert len({key.public.encrypt(3) for _ in range(5)}) == 5


def test_a_sum_cannot_be_told_from_its_ciphertexts(key: PrivateKey) -> None:
    """The bare product would be the same each time, and known to whoever saw the ciphertexts."""
    ciphertexts = [key.public.encrypt(each) for each in range(5)]
    product = 1
    for each in ciphertexts:
        product = product * each % key.public.n**2
    sums = {key.public.summed(ciphertexts) for _ in range(3)}
    assert len(sums) == 3 and product not in sums


def test_a_key_has_3072_bits_unless_another_size_is_asked_for() -> None:
    key = PrivateKey.generate()
    assert key.public.bits == 3072
    assert key.decrypt(key.public.summed([key.public.encrypt(-3), key.public.encrypt(1)])) == -2


@pytest.mark.parametrize("bits", [0, 512, 1024, 2047, 3071, 4096])
def test_no_key_of_another_size_is_made(bits: int) -> None:
    with pytest.raises(ConfigError, match="E203"):
        PrivateKey.generate(bits)


def test_the_public_key_comes_back_from_its_json_and_holds_nothing_else(key: PrivateKey) -> None:
    again = PublicKey.of_json(key.public.to_json())
    assert again == key.public and again.fingerprint == key.public.fingerprint
    assert set(json.loads(key.public.to_json())) == {"scheme", "n", "scale_bits"}


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"scheme": "rsa"},
        lambda told: told | {"scale_bits": 32},
        lambda told: told | {"scale_bits": True},
        lambda told: told | {"n": told["n"][:-2]},
        lambda told: told | {"n": told["n"] * 400},
        lambda told: told | {"n": "-" + told["n"][1:]},
        lambda told: told | {"n": told["n"][:-1] + "e"},
        lambda told: told | {"n": ""},
        lambda told: told | {"p": "3"},
        lambda told: {"n": told["n"]},
        lambda told: [told],
    ],
)
def test_anything_but_a_public_key_of_ours_is_refused(key: PrivateKey, change: Callable[[Any], Any]) -> None:
    with pytest.raises(NetworkError, match="E402"):
        PublicKey.of_json(json.dumps(change(json.loads(key.public.to_json()))))


def test_a_ciphertext_comes_back_from_its_digits(key: PrivateKey) -> None:
    ciphertext = key.public.encrypt(9)
    assert key.public.read(key.public.written(ciphertext)) == ciphertext


BAD: dict[str, Callable[[PrivateKey], str]] = {
    "zero": lambda key: "0",
    "many zeros": lambda key: "0" * 1024,
    "negative": lambda key: f"{-key.public.encrypt(1):x}",
    "n squared": lambda key: f"{key.public.n**2:x}",
    "above n squared": lambda key: f"{key.public.n**2 + 5:x}",
    "n": lambda key: f"{key.public.n:x}",
    "a multiple of a prime": lambda key: f"{key.primes[0] * 12345:x}",
    "too many digits": lambda key: "1" * 1025,
    "a million digits": lambda key: "1" * 1_000_000,
    "empty": lambda key: "",
    "upper case": lambda key: f"{key.public.encrypt(1):X}",
    "with a prefix": lambda key: "0x12",
    "with an underscore": lambda key: "1_2",
    "with a space": lambda key: " 12",
    "with a newline": lambda key: "12\n",
    "other digits": lambda key: "١٢",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_what_no_encryption_can_be_is_refused(key: PrivateKey, bad: Callable[[PrivateKey], str]) -> None:
    with pytest.raises(NetworkError, match="E402"):
        key.public.read(bad(key))


def test_more_digits_than_a_ciphertext_has_are_refused_before_they_are_read(key: PrivateKey) -> None:
    with pytest.raises(NetworkError, match="E402 a ciphertext of 1025 digits, the key's have at most 1024"):
        key.public.read("1" * 1025)


def test_a_private_key_is_neither_pickled_nor_copied_nor_shown(key: PrivateKey) -> None:
    for door in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            door(key)
    assert not any(str(prime)[:20] in f"{key!r} {key!s}" for prime in key.primes)


def test_a_private_key_consists_of_two_different_primes(key: PrivateKey) -> None:
    p, q = key.primes
    for bad in ((p, p), (p, q + 1), (p + 1, q)):  # even, so no twin primes
        with pytest.raises(ConfigError, match="E203"):
            PrivateKey(*bad)


@pytest.mark.parametrize("missing", ["phe", "gmpy2"])
def test_without_its_libraries_the_error_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ConfigError, match=rf"E209 {missing} not installed.*pip install 'fedaccord\[privacy\]'"):
        PrivateKey.generate(2048)
