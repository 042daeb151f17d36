"""Rules about the project itself: what its source may hold, that its pins, its error table and its archives are whole.

Every rule over source text is a function `text -> list of complaints`, and each is also held against a text that breaks it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from fedaccord.core.errors import CODES

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "fedaccord"
Rule = Callable[[str], list[str]]

HEAVY = {"datasets", "flwr_datasets", "matplotlib", "optuna", "pandas", "pyarrow", "seaborn", "sklearn"}
PICKLING = {"_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported(node: ast.AST) -> list[str]:
    """Top-level names of the packages that one statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [node.module.split(".")[0]]
    return []


def dotted(node: ast.AST) -> str:
    """`a.b.c` for nested attributes of a name, else ''."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (start := dotted(node.value)):
        return f"{start}.{node.attr}"
    return ""


def unsafe_serialisation(text: str) -> list[str]:
    """Anything that pickles or unpickles: modules, torch.load and torch.save, numpy's and pandas' doors to pickle."""
    found = []
    for node in ast.walk(ast.parse(text)):
        found += [f"line {node.lineno}: imports {name}" for name in imported(node) if name in PICKLING]  # type: ignore[attr-defined]
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            found += [f"line {node.lineno}: torch.{alias.name}" for alias in node.names if alias.name in {"load", "save"}]
        if isinstance(node, ast.Attribute) and (dotted(node) in {"torch.load", "torch.save"} or node.attr in {"read_pickle", "to_pickle"}):
            found.append(f"line {node.lineno}: {dotted(node) or node.attr}")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append(f"line {node.value.lineno}: allow_pickle")
    return found


def heavy_at_import(text: str) -> list[str]:
    """Heavy libraries imported when the module is, and not inside a function (`if TYPE_CHECKING:` is never executed)."""

    def executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
        for node in body:
            if isinstance(node, ast.If) and dotted(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
                yield from executed(node.orelse)
                continue
            yield node
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for field in ("body", "orelse", "finalbody"):
                    yield from executed(getattr(node, field, []))
                for handler in getattr(node, "handlers", []):
                    yield from executed(handler.body)

    return [f"line {node.lineno}: {name}" for node in executed(ast.parse(text).body) for name in imported(node) if name in HEAVY]


def global_randomness(text: str) -> list[str]:
    """Random numbers that do not come from a named stream of `fedaccord.core.rng`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        found += [f"line {node.lineno}: imports random" for name in imported(node) if name == "random"]  # type: ignore[attr-defined]
        if isinstance(node, ast.Attribute):
            match = re.fullmatch(r"(?:np|numpy)\.random\.([a-z]\w*)", dotted(node))
            if match:
                found.append(f"line {node.lineno}: {dotted(node)}")
    return found


def unregistered_codes(text: str) -> list[str]:
    """Error codes written in the source that `CODES` lacks."""
    constants = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [f"line {node.lineno}: {node.value}" for node in constants if re.fullmatch(r"E\d{3}", node.value) and node.value not in CODES]


def no_docstring(text: str) -> list[str]:
    """A module says first what it is for."""
    return [] if (ast.get_docstring(ast.parse(text)) or "").strip() else ["no module docstring"]


def too_long(text: str) -> list[str]:
    """A file that one would scroll for ten minutes is two files."""
    lines = text.count("\n")
    return [f"{lines} lines"] if lines >= 500 else []


def private_places(text: str) -> list[str]:
    """Folders of one machine and addresses of package registries, which mean nothing to a reader elsewhere."""
    folders = r"(?<![\w.])/(?:w[o]rk|r[o]ot|h[o]me/\w+|U[s]ers/\w+|t[m]p/w/|o[p]t/wheels)\b"
    registries = r"p[y]pi\.org|pythonh[o]sted|registry\.n[p]mjs|d[e]b\.debian"
    pattern = f"{folders}|{registries}"
    return [f"line {number}: {line.strip()}" for number, line in enumerate(text.splitlines(), 1) if re.search(pattern, line)]


BROKEN: list[tuple[Rule, str]] = [
    (unsafe_serialisation, "import pickle"),
    (unsafe_serialisation, "def f():\n    from joblib import dump"),
    (unsafe_serialisation, "import torch\nx = torch.load('a.pt', weights_only=True)"),
    (unsafe_serialisation, "from torch import save"),
    (unsafe_serialisation, "import numpy as np\nnp.load('a.npz', allow_pickle=True)"),
    (unsafe_serialisation, "frame.groupby('a').first().to_pickle('a')"),
    (heavy_at_import, "import pandas as pd"),
    (heavy_at_import, "try:\n    from sklearn.datasets import load_digits\nexcept ImportError:\n    pass"),
    (global_randomness, "import random"),
    (global_randomness, "import numpy as np\nrng = np.random.default_rng(0)"),
    (unregistered_codes, "raise ConfigError('E999', 'what')"),
    (no_docstring, "import ast"),
    (too_long, "\n" * 500),
    (private_places, "data = '/w" + "ork/shared/data'"),
    (private_places, "/ho" + "me/someone/runs"),
    (private_places, "https://py" + "pi.org/simple"),
]
KEPT: list[tuple[Rule, str]] = [
    (unsafe_serialisation, "import numpy as np\nnp.load('a.npz', allow_pickle=False)"),
    (heavy_at_import, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas as pd\ndef f():\n    import matplotlib"),
    (global_randomness, "import numpy as np\ndef f(rng: np.random.Generator) -> None: ..."),
    (unregistered_codes, "raise ConfigError('E201', 'what')"),
    (private_places, "see ../shared/data and https://example.org/home/x"),
]


@pytest.mark.parametrize(("rule", "text"), BROKEN, ids=lambda value: value.__name__ if callable(value) else None)
def test_each_rule_sees_a_text_that_breaks_it(rule: Rule, text: str) -> None:
    assert rule(text)


@pytest.mark.parametrize(("rule", "text"), KEPT, ids=lambda value: value.__name__ if callable(value) else None)
def test_each_rule_leaves_a_good_text_alone(rule: Rule, text: str) -> None:
    assert rule(text) == []


def complaints(rule: Rule, files: list[Path]) -> list[str]:
    return [f"{path.relative_to(ROOT)}: {complaint}" for path in files for complaint in rule(path.read_text(encoding="utf-8"))]


def test_the_source_never_pickles_but_between_the_processes_of_one_run() -> None:
    between_processes = SOURCE / "runtime" / "carrying.py"
    assert complaints(unsafe_serialisation, [path for path in modules() if path != between_processes]) == []
    names = {node.id for node in ast.walk(ast.parse(between_processes.read_text(encoding="utf-8"))) if isinstance(node, ast.Name)}
    assert "pickle" in names and not names & {"open", "Path", "os", "tempfile"}, "it opens no file"


def test_heavy_libraries_are_imported_inside_functions() -> None:
    assert complaints(heavy_at_import, modules()) == []


def test_random_numbers_come_from_named_streams() -> None:
    assert complaints(global_randomness, [path for path in modules() if path != SOURCE / "core" / "rng.py"]) == []


def test_every_code_in_the_source_is_registered() -> None:
    assert complaints(unregistered_codes, modules()) == []


def test_every_module_says_what_it_is_for() -> None:
    assert complaints(no_docstring, modules()) == []


def test_no_module_is_too_long() -> None:
    assert complaints(too_long, modules()) == []


def test_no_file_names_a_place_of_one_machine() -> None:
    folders = ("src", "tests", "docs", "tools", "benchmarks", "experiments", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [path for path in ROOT.iterdir() if path.is_file()]
    kinds = {"", ".cfg", ".css", ".csv", ".html", ".js", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
    texts = [path for path in files if path.suffix in kinds and "__pycache__" not in path.parts]
    assert ROOT / "pyproject.toml" in texts and ROOT / ".ci" / "run" in texts
    assert complaints(private_places, sorted(texts)) == []


def test_the_error_page_is_current_and_holds_every_code() -> None:
    checked = subprocess.run([sys.executable, str(ROOT / "tools" / "error_table.py"), "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert [code for code in CODES if f"| {code} | {CODES[code]} |" not in page] == []


def pins() -> dict[str, Version]:
    """name -> version of constraints.txt; any line that is not one exact pin fails here."""
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r"([a-z0-9-]+)==([^\s,;+]+)", line)
        assert match, f"not an exact pin: {line}"
        assert match[1] not in found, f"pinned twice: {line}"
        found[match[1]] = Version(match[2])
    return found


def declared() -> list[Requirement]:
    """Everything that pyproject.toml asks for: to build, to run, and by the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["build-system"]["requires"], *project["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return [Requirement(line) for line in lines]


def test_every_declared_package_has_a_pin_within_its_range() -> None:
    pinned = pins()
    wrong = [str(need) for need in declared() if pinned.get(canonicalize_name(need.name)) not in need.specifier]
    assert wrong == []


def test_whatever_the_declared_packages_need_is_pinned_too() -> None:
    pinned, missing, seen = pins(), [], set()
    waiting = declared()
    while waiting:
        need = waiting.pop()
        name = canonicalize_name(need.name)
        if (name, frozenset(need.extras)) in seen:
            continue
        seen.add((name, frozenset(need.extras)))
        if name not in pinned:
            missing.append(name)
        try:
            lines = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed here; CI installs those that tests use
        for line in lines:
            further = Requirement(line)
            wanted = [{"extra": extra} for extra in ("", *need.extras)]
            if further.marker is None or any(further.marker.evaluate(environment) for environment in wanted):
                waiting.append(further)
    assert len(seen) > 60
    assert missing == []


def test_the_pins_are_what_flower_accepts() -> None:
    needs = map(Requirement, importlib.metadata.requires("flwr") or [])
    flower = {canonicalize_name(need.name): need for need in needs if need.marker is None}
    pinned = pins()
    assert {"typer", "rich", "cryptography", "protobuf", "numpy"} <= flower.keys()
    assert [str(need) for name, need in flower.items() if pinned[name] not in need.specifier] == []


@pytest.mark.slow
def test_the_archives_hold_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PIP_NO_INDEX": "1"})
    ours = {str(path.relative_to(SOURCE.parent)) for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert ours - set(wheel.namelist()) == set()
        assert any(name.endswith("LICENSE") for name in wheel.namelist())
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as source:
        names = {name.split("/", 1)[1] for name in source.getnames() if "/" in name}
        assert {f"src/{name}" for name in ours} - names == set()
        assert {"LICENSE", "README.md", "constraints.txt"} <= names
