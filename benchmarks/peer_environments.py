"""An environment of its own for each peer, made on demand: the CPU build of torch first and by itself, then the peer under a constraint.

No step may bring a CUDA build: pip says beforehand what it would install (`--dry-run --report`), and what names one is refused.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from contestants import NotHere

TORCH = "torch==2.13.0"
PEERS: dict[str, tuple[str, ...]] = {  # name -> what pip is told
    "flower": ("flwr[simulation]==1.42.0",),
    "pfl": ("pfl==0.6.0",),
    # It asks for Python 3.12 and is written so that 3.11 reads it; it needs nothing but torch.
    "blazefl": ("--no-deps", "--ignore-requires-python", "blazefl==2.0.2"),
    "fedjax": ("fedjax==0.0.17",),
}
FOREIGN = re.compile(r"(nvidia|cuda|triton|pytorch-triton)")
PATIENCE = 1200  # seconds for one call of pip
MARK = "ready.json"


def environment(name: str, folder: Path, torch_options: Sequence[str] = ()) -> Path:
    """The Python of peer `name`. torch_options: for pip, in the step of torch alone. NotHere says why there is none."""
    own = folder / name
    python, mark = own / "bin" / "python", own / MARK
    wanted = {"torch": TORCH, "peer": list(PEERS[name])}
    if mark.exists() and json.loads(mark.read_text()) == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    _called([sys.executable, "-m", "venv", "--clear", str(own)], "make an environment")
    _install(python, ["numpy", *torch_options, TORCH], own, may_bring_torch=True)
    version, cuda = _called([str(python), "-c", "import torch; print(torch.__version__, torch.version.cuda)"], "import torch").split()
    if cuda != "None":
        raise NotHere(f"a CUDA build of torch ({version}) was installed")
    (own / "constraints.txt").write_text(f"torch=={version}\n")
    _install(python, ["-c", str(own / "constraints.txt"), *PEERS[name]], own, may_bring_torch=False)
    mark.write_text(json.dumps(wanted))
    return python


def _install(python: Path, what: list[str], own: Path, may_bring_torch: bool) -> None:
    report = own / "report.json"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    _called([*pip, "--dry-run", "--report", str(report), *what], f"resolve {what[-1]}")
    names = [each["metadata"]["name"].lower() for each in json.loads(report.read_text())["install"]]
    refused = [each for each in names if FOREIGN.match(each) or (each == "torch" and not may_bring_torch)]
    if refused:
        remedy = "name an index with CPU builds by --torch-options" if may_bring_torch else "it does not fit the pinned CPU build"
        raise NotHere(f"{what[-1]} would bring {', '.join(refused[:3])}: {remedy}")
    _called([*pip, *what], f"install {what[-1]}")


def _called(command: list[str], what: str) -> str:
    inherited = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    with tempfile.TemporaryFile("w+") as complaints:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=complaints, text=True, timeout=PATIENCE, env=inherited, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotHere(f"could not {what} within {PATIENCE} s") from None
        if done.returncode:
            complaints.seek(0)
            errors = [line.strip() for line in complaints if line.startswith("ERROR") or "rror:" in line]
            raise NotHere(f"could not {what}: {errors[-1][:200] if errors else f'exit code {done.returncode}'}")
    return done.stdout
