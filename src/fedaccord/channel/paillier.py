"""Paillier's additively homomorphic encryption (Paillier 1999, doi:10.1007/3-540-48910-X_16) of whole numbers modulo n.

The product of two ciphertexts modulo n^2 decrypts to the sum of their plaintexts modulo n. Keys, encryption and decryption are those of the
library `phe`; its floating `EncodedNumber` is not used, since its exponents travel in the clear and tell the magnitude. `gmpy2` is required
and not only recommended: without it the library computes in plain Python, an order of magnitude slower, and makes primes with a generator
of its own. Randomness is the system's, never a named stream; no result of a run depends on it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal, NoReturn, get_args

from fedaccord.channel.fixed_point import SCALE_BITS
from fedaccord.channel.messages import decoded, malformed
from fedaccord.core.errors import ConfigError

KeyBits = Literal[2048, 3072]
DEFAULT_BITS: KeyBits = 3072  # the strength of a 128-bit key; 2,048: of 112 bits

_HEX = re.compile(r"[0-9a-f]+")


def require_paillier() -> None:
    """E209 where `phe` or `gmpy2` is not installed."""
    missing = [name for name in ("phe", "gmpy2") if find_spec(name) is None]
    if missing:
        raise ConfigError("E209", f"{' and '.join(missing)} not installed", "a private sum", "pip install 'fedaccord[privacy]'")


def check_bits(bits: int) -> None:
    """E203 for another size of key than 2,048 or 3,072 bits."""
    if bits not in get_args(KeyBits):
        raise ConfigError("E203", f"a key of {bits!r} bits", "bits", "Use 3072, or 2048 where speed matters more")


@dataclass(frozen=True)
class PublicKey:
    """With it anybody encrypts and sums, and nobody decrypts."""

    n: int  # product of two primes

    @property
    def bits(self) -> int:
        return self.n.bit_length()

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that name the key."""
        return hashlib.sha256(self.n.to_bytes((self.bits + 7) // 8, "big")).hexdigest()[:32]

    def encrypt(self, plaintext: int) -> int:
        """A ciphertext in [1, n^2) of the plaintext modulo n: negative numbers lie just below n."""
        ciphertext: int = self._key.raw_encrypt(plaintext % self.n)
        return ciphertext

    def summed(self, ciphertexts: Iterable[int]) -> int:
        """A ciphertext of the sum, randomised anew: it cannot be told which ciphertexts it came from."""
        total, modulus = self.encrypt(0), self._key.nsquare
        for ciphertext in ciphertexts:
            total = total * ciphertext % modulus
        return total

    def written(self, ciphertext: int) -> str:
        """As hexadecimal digits."""
        return f"{ciphertext:x}"

    def read(self, text: str) -> int:
        """The ciphertext of these hexadecimal digits. E402 for what no encryption under this key can be: zero or negative, n^2 or more,
        a common factor with n, more digits than n^2 has, or other characters. That it was encrypted under this key cannot be seen."""
        most = (2 * self.bits + 3) // 4
        if len(text) > most:
            raise malformed(f"a ciphertext of {len(text)} digits, the key's have at most {most}")
        if not _HEX.fullmatch(text):
            raise malformed("a ciphertext that is not written in lower-case hexadecimal digits")
        ciphertext = int(text, 16)
        if not 0 < ciphertext < self._key.nsquare:
            raise malformed("a ciphertext outside 1 to n^2 - 1")
        if math.gcd(ciphertext, self.n) != 1:
            raise malformed("a ciphertext that shares a factor with the key")
        return ciphertext

    def to_json(self) -> str:
        """For whoever encrypts."""
        return json.dumps({"scheme": "paillier", "n": f"{self.n:x}", "scale_bits": SCALE_BITS})

    @classmethod
    def of_json(cls, text: str | bytes) -> PublicKey:
        """E402 for anything but what `to_json` writes, for another scale, and for keys of another size than ours."""
        found = decoded(text, {"scheme": str, "n": str, "scale_bits": int})
        if found["scheme"] != "paillier" or found["scale_bits"] != SCALE_BITS:
            raise malformed(f"a key for {found['scheme']!r:.40} with {found['scale_bits']} bits of scale, ours are {SCALE_BITS}")
        if len(found["n"]) > max(get_args(KeyBits)) // 4 or not _HEX.fullmatch(found["n"]):
            raise malformed("a key that is too long, or not written in lower-case hexadecimal digits")
        n = int(found["n"], 16)
        if n.bit_length() not in get_args(KeyBits) or n % 2 == 0:
            raise malformed(f"a key of {n.bit_length()} bits, or an even one")
        return cls(n)

    @cached_property
    def _key(self) -> Any:
        require_paillier()
        from phe.paillier import PaillierPublicKey

        return PaillierPublicKey(self.n)


class PrivateKey:
    """Decrypts. It belongs into the key holder's process alone, so it can be neither pickled nor copied, and does not show its primes."""

    __slots__ = ("_key", "public")

    def __init__(self, p: int, q: int) -> None:
        """From two different primes whose product has 2,048 or 3,072 bits; E203 for others."""
        require_paillier()
        import gmpy2
        from phe.paillier import PaillierPrivateKey

        n = p * q
        check_bits(n.bit_length())
        if p == q or not (gmpy2.is_prime(p) and gmpy2.is_prime(q)):
            raise ConfigError("E203", "the private key does not consist of two different primes", "the key file", "Make a new key")
        self.public = PublicKey(n)
        self._key = PaillierPrivateKey(self.public._key, p, q)

    @classmethod
    def generate(cls, bits: int = DEFAULT_BITS) -> PrivateKey:
        """A new one, from the system's randomness."""
        check_bits(bits)
        require_paillier()
        from phe.paillier import generate_paillier_keypair

        _, key = generate_paillier_keypair(n_length=bits)
        return cls(key.p, key.q)

    @property
    def primes(self) -> tuple[int, int]:
        """For the key file alone."""
        return self._key.p, self._key.q

    def decrypt(self, ciphertext: int) -> int:
        """The plaintext, between -n/2 and n/2."""
        plaintext: int = self._key.raw_decrypt(ciphertext)
        return plaintext - self.public.n if plaintext > self.public.n // 2 else plaintext

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a private key is neither pickled nor copied")
