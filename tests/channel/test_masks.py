"""masks.py: what ties a sum to its clients and its round."""

from __future__ import annotations

import statistics

from fedaccord.channel.masks import SECRET_BYTES, mask, new_secret
from fedaccord.channel.paillier import PrivateKey, PublicKey


def test_a_mask_is_fixed_by_secret_client_round_and_key_and_by_nothing_less(key: PrivateKey, other_key: PrivateKey) -> None:
    one, two = b"1" * SECRET_BYTES, b"2" * SECRET_BYTES
    assert mask(one, 3, 5, key.public) == mask(one, 3, 5, key.public)
    others = [mask(two, 3, 5, key.public), mask(one, 4, 5, key.public), mask(one, 3, 6, key.public), mask(one, 3, 5, other_key.public)]
    assert len({mask(one, 3, 5, key.public), *others}) == 5
    assert mask(one, 1, 11, key.public) != mask(one, 11, 1, key.public)


def test_the_key_is_part_of_what_a_mask_comes_from(key: PrivateKey) -> None:
    """Not only the modulus: masks of one client under two keys would be two remainders of one number."""

    class Named(PublicKey):
        fingerprint = "another"

    secret = b"1" * SECRET_BYTES
    assert mask(secret, 3, 5, Named(key.public.n)) != mask(secret, 3, 5, key.public)


def test_masks_fill_the_whole_range(key: PrivateKey) -> None:
    """Of 400 uniform shares the mean is within 0.5 ± 0.06 but for four standard errors."""
    n = key.public.n
    shares = [mask(b"s" * SECRET_BYTES, 0, round, key.public) / n for round in range(400)]
    assert all(0 <= share < 1 for share in shares)
    assert abs(statistics.fmean(shares) - 0.5) < 0.06
    assert min(shares) < 0.05 and max(shares) > 0.95


def test_secrets_are_new_each_time() -> None:
    assert len({new_secret() for _ in range(20)}) == 20
    assert len(new_secret()) == SECRET_BYTES
