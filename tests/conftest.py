"""What every test shares: one thread each, the same examples in every run, and where data and programs outside the package are found."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Sums over several threads may round differently from machine to machine; several test processes share the cores anyway.
torch.set_num_threads(1)

# Where a test leaves the runtime open: what is measured is not the user's, and nothing starts processes beside those of the tests.
os.environ["FEDACCORD_CACHE"] = tempfile.mkdtemp(prefix="fedaccord-cache-")
atexit.register(shutil.rmtree, os.environ["FEDACCORD_CACHE"], ignore_errors=True)
os.environ.setdefault("FEDACCORD_CORES", "1")

settings.register_profile("fixed", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets that are not part of the package: FEDACCORD_DATA, else ../shared/data from the root, else skip."""
    named = os.environ.get("FEDACCORD_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if folder.is_dir():
        return folder
    if named:
        pytest.fail(f"FEDACCORD_DATA names a folder that does not exist: {named}")
    pytest.skip("needs the data sets that the package does not ship: set FEDACCORD_DATA to their folder")


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """`program("chromium")` is the path of an installed program. Without it the test is skipped, in CI (FEDACCORD_CI=1) it fails."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is not None:
            return path
        if os.environ.get("FEDACCORD_CI") == "1":
            pytest.fail(f"CI must install the program {name}")
        pytest.skip(f"needs the program {name}")

    return find


class Killed(BaseException):
    """The end of a process, as a test can stand it."""


@dataclass(frozen=True)
class Kill:
    """Telemetry that ends the run after a round."""

    round: int

    def emit(self, event: Any) -> None:
        if event.kind == "round_finished" and event.data["round"] == self.round:
            raise Killed


@pytest.fixture()
def killed_after() -> Callable[[int, Callable[..., Any]], None]:
    """`killed_after(3, run)`: calls run(telemetry=[...]), which is killed after round 3, before its checkpoint."""

    def call(round: int, run: Callable[..., Any]) -> None:
        with pytest.raises(Killed):
            run(telemetry=[Kill(round)])

    return call
