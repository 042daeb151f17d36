"""The key holder's file: its key, the last round that it answered and its clients' secrets, as JSON that its owner alone can read."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from fedaccord.channel.masks import SECRET_BYTES
from fedaccord.channel.messages import MOST_ROUND
from fedaccord.channel.opening import Held
from fedaccord.channel.paillier import PrivateKey
from fedaccord.core.errors import ConfigError, StorageError

MOST_BYTES = 256 << 20  # of the file
_FIELDS = {"scheme": str, "p": str, "q": str, "last_round": int, "clients": dict}


def write(path: Path, held: Held) -> None:
    """Aside, then renamed, with permissions 0600 from the first byte on. E323 where the folder cannot be written."""
    p, q = held.key.primes
    clients = {str(client): secret.hex() for client, secret in held.secrets.items()}
    text = json.dumps({"scheme": "paillier", "p": f"{p:x}", "q": f"{q:x}", "last_round": held.last_round, "clients": clients})
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as problem:
        raise StorageError("E323", f"the key cannot be written: {problem.strerror}", str(path), "Choose another folder") from None


def read(path: Path) -> Held | None:
    """What the file holds; None where there is none. E322 for a damaged one, E208 where others than its owner may read it."""
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
                what = f"others than its owner may read the private key (permissions {stat.S_IMODE(facts.st_mode):o})"
                raise ConfigError("E208", what, str(path), "Make a new key, or: chmod 600")
            data = file.read(MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError("E323", f"the key cannot be read: {problem.strerror}", str(path)) from None
    try:
        return _held(json.loads(data))
    except (TypeError, ValueError, RecursionError):
        raise StorageError("E322", "the key file is damaged", str(path), "Bring it back from a copy, or make a new key") from None


def _held(found: object) -> Held:
    """ValueError or TypeError for anything but what `write` writes."""
    if not isinstance(found, dict) or {name: type(value) for name, value in found.items()} != _FIELDS or found["scheme"] != "paillier":
        raise ValueError
    primes = [found[name] for name in ("p", "q")]
    if not all(re.fullmatch(r"[0-9a-f]{1,1024}", prime) for prime in primes) or not 0 <= found["last_round"] <= MOST_ROUND:
        raise ValueError
    clients = {int(client): bytes.fromhex(secret) for client, secret in found["clients"].items()}
    if any(len(secret) != SECRET_BYTES for secret in clients.values()):
        raise ValueError
    return Held(PrivateKey(*(int(prime, 16) for prime in primes)), found["last_round"], clients)
