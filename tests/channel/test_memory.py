"""The process that aggregates cannot decrypt: neither its objects nor a dump of its memory hold the private key. The key holder's does."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("aggregating.py")
FRAGMENT = 24  # bytes of a number that are looked for, so that a copy of which a part was overwritten is found as well


@contextmanager
def aggregating(file: Path, *options: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(process id, what it says) while it waits."""
    command = [sys.executable, str(SCRIPT), str(file), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.pid, json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(30) == 0


def secrets_of(file: Path) -> dict[str, int]:
    """Each of these numbers alone decrypts."""
    told = json.loads(file.read_text())
    p, q = int(told["p"], 16), int(told["q"], 16)
    return {"p": p, "q": q, "lambda": math.lcm(p - 1, q - 1), "phi": (p - 1) * (q - 1), "p squared": p * p, "q squared": q * q}


def forms(value: int) -> dict[str, bytes]:
    """A fragment of the number's lower half, as it may lie in memory. The upper half of phi is that of n, and public."""
    size = (value.bit_length() + 7) // 8
    digits = [(value >> shift) & (2**30 - 1) for shift in range(0, value.bit_length(), 30)]
    rising = {
        "little-endian, as gmp's limbs": value.to_bytes(size, "little"),
        "Python's digits of 30 bits": b"".join(digit.to_bytes(4, "little") for digit in digits),
    }
    falling = {"big-endian": value.to_bytes(size, "big"), "hexadecimal": f"{value:x}".encode(), "decimal": str(value).encode()}
    found = {form: data[len(data) // 4 :][:FRAGMENT] for form, data in rising.items()}
    return found | {form: data[: -(len(data) // 4)][-FRAGMENT:] for form, data in falling.items()}


def found_in(pid: int, values: dict[str, int]) -> set[tuple[str, str]]:
    """(number, form) of all that the process's writable memory holds."""
    wanted = {(name, form): data for name, value in values.items() for form, data in forms(value).items()}
    found, read = set[tuple[str, str]](), 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if area is None:
                continue
            start, end = (int(each, 16) for each in area.groups())
            data = os.pread(memory.fileno(), end - start, start)
            read += len(data)
            found |= {what for what, fragment in wanted.items() if fragment in data}
    assert read > 1 << 20
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory through /proc")
def test_the_memory_of_the_aggregating_process_holds_no_private_key_and_that_of_the_key_holder_does(tmp_path: Path) -> None:
    with aggregating(tmp_path / "key.json") as (pid, said):
        assert said["bits"] == 3072
        assert said["sum"] == pytest.approx(0.3, abs=1e-6)
        assert said["closed"] == "too_few"
        secrets = secrets_of(tmp_path / "key.json")
        assert {name for name, _ in found_in(said["holder"], secrets)} >= {"p", "q", "p squared", "q squared"}
        assert found_in(pid, secrets) == set()
        assert found_in(pid, {"n": secrets["p"] * secrets["q"]})  # the search works on this process: the public key is there
        assert said["found"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory through /proc")
def test_the_search_finds_a_key_in_an_aggregating_process_that_has_one(tmp_path: Path) -> None:
    with aggregating(tmp_path / "key.json", "--with-a-key") as (pid, said):
        assert {name for name, _ in found_in(pid, secrets_of(tmp_path / "key.json"))} >= {"p", "q"}
        assert said["found"] >= 2
