from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = ("new", "run", "resume", "compare", "describe", "tune", "ls", "show", "log", "stop", "report", "measure", "diagnose", "quarantine")
SOURCE = Path(__file__).resolve().parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"}


def help_of(*verb: str) -> tuple[float, str]:
    """(processor seconds, text). Processor time, since other tests run at the same time; on a free machine it is what a user waits."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fedaccord.cli", *verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_takes_less_than_half_a_second(verb: str) -> None:
    seconds, text = min(help_of(*verb.split()) for _ in range(2))
    assert seconds <= 0.5
    assert text.startswith("Usage: fedaccord") and "--help" in text
    if verb:
        assert "--json" in text and "--debug" in text
    else:
        assert all(f"\n  {name} " in text for name in VERBS)


def test_help_loads_neither_torch_nor_pandas() -> None:
    code = "import sys, fedaccord.cli; print([name for name in ('torch', 'pandas', 'numpy', 'pydantic', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.strip() == "[]"


def test_the_version_is_told() -> None:
    import fedaccord

    command = [sys.executable, "-m", "fedaccord.cli", "--version"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"fedaccord {fedaccord.__version__}\n")
