"""One key of 2,048 bits and one key holder for all tests of this folder that change neither; rounds that no test has used."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("phe")
pytest.importorskip("gmpy2")

from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.paillier import PrivateKey
from fedaccord.channel.private_sum import PrivateSum


@pytest.fixture(scope="session")
def key() -> PrivateKey:
    return PrivateKey.generate(2048)


@pytest.fixture(scope="session")
def other_key() -> PrivateKey:
    return PrivateKey.generate(2048)


@pytest.fixture(scope="session")
def holder() -> Iterator[KeyHolder]:
    with KeyHolder(bits=2048) as started:
        yield started


@pytest.fixture(scope="session")
def private(holder: KeyHolder) -> PrivateSum:
    """The one whose clients are enrolled with the shared holder."""
    return PrivateSum(holder)


@pytest.fixture(scope="session")
def rounds() -> Iterator[int]:
    """Each later than any that the shared holder has seen."""
    return itertools.count(1)
