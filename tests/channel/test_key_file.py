"""key_file.py: what lies on the holder's disk, and who may read it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedaccord.channel import key_file
from fedaccord.channel.masks import SECRET_BYTES
from fedaccord.channel.opening import Held
from fedaccord.channel.paillier import PrivateKey
from fedaccord.core.errors import ConfigError, StorageError


@pytest.fixture
def path(tmp_path: Path, key: PrivateKey) -> Path:
    key_file.write(tmp_path / "key.json", Held(key, 7, {3: b"x" * SECRET_BYTES}))
    return tmp_path / "key.json"


def test_what_was_written_comes_back(path: Path, key: PrivateKey) -> None:
    held = key_file.read(path)
    assert held is not None
    assert (held.key.primes, held.last_round, held.secrets) == (key.primes, 7, {3: b"x" * SECRET_BYTES})
    assert [each.name for each in path.parent.iterdir()] == ["key.json"]


def test_its_owner_alone_may_read_it_whatever_the_umask(path: Path, key: PrivateKey) -> None:
    before = os.umask(0)
    try:
        key_file.write(path, Held(key))
        key_file.write(path.with_name("new.json"), Held(key))
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(ConfigError, match="E208"):
        key_file.read(path)


def test_where_there_is_no_file_there_is_nothing(tmp_path: Path) -> None:
    assert key_file.read(tmp_path / "key.json") is None


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, key: PrivateKey) -> None:
    with pytest.raises(StorageError, match="E323"):
        key_file.write(tmp_path / "no" / "key.json", Held(key))


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told | {"p": told["q"]},
        lambda told: told | {"p": f"{int(told['p'], 16) + 1:x}"},
        lambda told: told | {"p": "-" + told["p"]},
        lambda told: told | {"p": 3},
        lambda told: told | {"p": "3", "q": "5"},
        lambda told: told | {"last_round": -1},
        lambda told: told | {"last_round": True},
        lambda told: told | {"clients": {"x": "00" * 32}},
        lambda told: told | {"clients": {"1": "00"}},
        lambda told: told | {"clients": {"1": 5}},
        lambda told: told | {"more": 1},
        lambda told: {name: told[name] for name in ("p", "q")},
        lambda told: [told],
        lambda told: None,
    ],
)
def test_a_damaged_file_is_said_to_be_one(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(StorageError, match="E322"):
        key_file.read(path)


def test_a_torn_file_is_a_damaged_one(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StorageError, match="E322"):
        key_file.read(path)
