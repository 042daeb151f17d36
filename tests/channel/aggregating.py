"""A process that aggregates: it starts a key holder, opens a sum, says what it finds in its own memory, and waits until its stdin ends.

python aggregating.py KEY_FILE [--with-a-key]      the latter: it also holds the private key, so that the search has something to find
"""

from __future__ import annotations

import gc
import json
import math
import sys
from pathlib import Path

from fedaccord.channel import key_file
from fedaccord.channel.key_holder import KeyHolder
from fedaccord.channel.private_sum import PrivateSum

VALUES = {client: (-1) ** client * 0.1 * client for client in range(7)}


def revealing(n: int) -> int:
    """How many whole numbers, of all that Python's objects lead to, give a factor of n away."""
    seen, found, left = set[int](), 0, [gc.get_objects()]
    while left:
        for each in gc.get_referents(*left.pop()):
            if id(each) in seen:
                continue
            seen.add(id(each))
            if type(each) is int:
                found += each.bit_length() > 64 and 1 < math.gcd(each, n) < n
            elif type(each) in (tuple, list, dict) or hasattr(each, "__dict__") or hasattr(type(each), "__slots__"):
                left.append([each])
    return found


def main() -> None:
    file = Path(sys.argv[1])
    with KeyHolder(file=file) as holder:
        private = PrivateSum(holder)
        opened = private.open_sum(1, private.contribute(1, VALUES))
        closed = private.open_sum(2, private.contribute(2, {client: VALUES[client] for client in range(4)}))
        held = key_file.read(file) if "--with-a-key" in sys.argv else None
        n = holder.public.n
        facts = {
            "holder": holder.process.pid,
            "bits": holder.public.bits,
            "sum": opened.sum,
            "closed": closed.reason,
            "found": revealing(n),
        }
        print(json.dumps(facts), flush=True)
        sys.stdin.read()
        assert held is None or held.last_round == 1


if __name__ == "__main__":
    main()
