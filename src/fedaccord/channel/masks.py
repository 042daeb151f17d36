"""Masks that tie a sum to the clients it was declared for.

Each client shares a secret of 32 bytes with the key holder, and adds to its number of round t a mask modulo n that both derive from it. The
holder takes off the masks of the clients that are declared. Any other sum, one ciphertext taken n times, a client left out, one added,
another round's, another weight, stays masked by a number that looks uniform modulo n, and falls out of the possible range but for a chance
of about 2^-2000.
"""

from __future__ import annotations

import hashlib
import secrets

from fedaccord.channel.paillier import PublicKey

SECRET_BYTES = 32


def new_secret() -> bytes:
    """One client's, of the system's randomness."""
    return secrets.token_bytes(SECRET_BYTES)


def mask(secret: bytes, client: int, round: int, key: PublicKey) -> int:
    """Of one client in one round: SHAKE-256 of secret, key, client and round, modulo n; 128 bits more than n has make it uniform."""
    context = f"fedaccord private sum\n{key.fingerprint}\n{client}\n{round}".encode()
    return int.from_bytes(hashlib.shake_256(secret + context).digest((key.bits + 128) // 8), "big") % key.n
