"""What the documentation shows is run: its Python, its TOML, and the algorithm that it adds in front of the reader."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a page whose opening line is exactly ```kind."""
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def run_python(code: str, folder: Path, source: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_as_it_stands(page: Path, tmp_path: Path) -> None:
    done = run_python("\n".join(blocks(page, "python")), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda page: page.stem)
def test_the_experiments_of_a_page_are_valid(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "toml"):
        (tmp_path / "experiment.toml").write_text(block)
        code = "from fedaccord.cli.main import main; main(['describe', 'experiment.toml', '--json'])"
        done = run_python(code, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_paper_index_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "paper_index.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def with_the_algorithm_added(folder: Path) -> Path:
    """A copy of the package in which a reader has followed docs/add_an_algorithm.md."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    page = ROOT / "docs" / "add_an_algorithm.md"
    ((path, code),) = re.findall(r"^```python file=(\S+)\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    (folder / path).write_text(code)
    lines = re.findall(r"^```\w+ line=(\S+)\n(.*?)\n```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert [path for path, _ in lines] == ["src/fedaccord/algorithms/__init__.py"] * 2 + ["CHANGELOG.md"], "one file and three lines"
    registry = folder / "src/fedaccord/algorithms/__init__.py"
    for (_, line), after in zip(lines[:2], ["import FedAvg as FedAvg\n", '"fedavg": FedAvg,\n'], strict=True):
        assert "\n" not in line
        text = registry.read_text()
        assert text.count(after) == 1
        registry.write_text(text.replace(after, f"{after}{line}\n"))
    return source


def test_an_algorithm_takes_one_file_and_three_lines(tmp_path: Path) -> None:
    source = with_the_algorithm_added(tmp_path)
    code = """
import fedaccord as fa
task = fa.digits()
partition = fa.PathologicalLabels(clients=10, labels_per_client=1)
options = dict(partition=partition, cohort=5, policy=fa.Equal(), rounds=4, local=fa.LocalPlan(lr=0.1, epochs=1))
assert fa.REGISTRY["fedexp"] is fa.FedExP
added, neutral, plain = (fa.run(task, method, **options) for method in (fa.FedExP(epsilon=0.0), fa.FedExP(epsilon=1e6), fa.FedAvg()))
assert all((neutral.weights(t) == plain.weights(t)).all() for t in range(5)), "a huge epsilon is FedAvg"
longer, move = (run.weights(1) - run.weights(0) for run in (added, plain))
deltas = plain.clients.query("round == 1").update_norm ** 2
step = max(1.0, deltas.mean() / (2 * float(move @ move)))
assert step > 1.01 and (longer - step * move).norm() <= 1e-5 * move.norm(), step
"""
    done = run_python(code, tmp_path, source)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_laws_hold_for_the_added_algorithm(tmp_path: Path) -> None:
    source = with_the_algorithm_added(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "laws"), "-k", "fedexp"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
