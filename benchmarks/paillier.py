"""What the private sum costs: milliseconds to encrypt, to add and to decrypt one number, with keys of 2,048 and of 3,072 bits.

    python benchmarks/paillier.py [--repeats 50]

The two sizes take turns; printed are medians, and the median of the ratios of neighbours in time. Schoolbook arithmetic would make the
ratio (3072 / 2048)^3 = 3.4.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from fedaccord.channel.fixed_point import to_fixed
from fedaccord.channel.paillier import PrivateKey

SIZES = (2048, 3072)


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    repeats = parser.parse_args().repeats
    keys = [PrivateKey.generate(bits) for bits in SIZES]
    ciphertexts = [key.public.encrypt(to_fixed(-0.25)) for key in keys]
    works: dict[str, list[Callable[[], object]]] = {
        "encrypt": [lambda key=key: key.public.encrypt(to_fixed(-0.25)) for key in keys],  # type: ignore[misc]
        "sum of 100": [lambda key=key, one=one: key.public.summed([one] * 100) for key, one in zip(keys, ciphertexts, strict=True)],  # type: ignore[misc]
        "decrypt": [lambda key=key, one=one: key.decrypt(one) for key, one in zip(keys, ciphertexts, strict=True)],  # type: ignore[misc]
    }
    print(f"{'':12}{SIZES[0]:>10} bits{SIZES[1]:>10} bits{'ratio':>10}")
    for name, (small, large) in works.items():
        pairs = [(milliseconds(small), milliseconds(large)) for _ in range(repeats)]
        one, other = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{name:12}{one:12.2f} ms{other:12.2f} ms{statistics.median(b / a for a, b in pairs):10.2f}")


if __name__ == "__main__":
    main()
