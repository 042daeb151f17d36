from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedaccord.core.errors import ConfigError, DataError
from fedaccord.tasks import load_user_task

SOURCE = """
import torch
import torch.nn.functional as F
from fedaccord.tasks import Task

def make_task(width: int = 3, *, rows: int = 4) -> Task:
    x = torch.zeros(rows, width)
    y = torch.arange(rows) % 2
    return Task(model=torch.nn.Linear(width, 2), loss=F.cross_entropy, train=(x, y), test=(x, y), name="{name}")

def needs(width: int) -> Task:
    return make_task(width)

def anything(**options: int) -> Task:
    return make_task(**options)

def no_task() -> int:
    return 3

def breaks() -> Task:
    return {{}}["no such key"]

def bad_data() -> Task:
    return make_task(rows=0)

ready = make_task()
number = 3
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_project.py").write_text(SOURCE.format(name="mine"))
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path
    assert sys.path == path
    for name in set(sys.modules) - before:
        if name.startswith(("my_", "broken_")):
            del sys.modules[name]


def test_a_function_in_the_current_directory_makes_the_task_with_the_options_given() -> None:
    assert load_user_task("my_project:make_task").in_shape == (3,)
    task = load_user_task("my_project:make_task", {"width": 5, "rows": 6})
    assert task.in_shape == (5,) and len(task.train) == 6
    assert load_user_task("my_project:anything", {"width": 2}).in_shape == (2,)


def test_a_task_that_stands_in_the_module_is_taken_as_it_is() -> None:
    assert load_user_task("my_project:ready").name == "mine"
    with pytest.raises(ConfigError, match="E201 'my_project:ready' is a Task and takes no options"):
        load_user_task("my_project:ready", {"width": 3})


def test_a_package_in_the_current_directory_works_too(project: Path) -> None:
    (project / "my_package").mkdir()
    (project / "my_package" / "__init__.py").write_text("")
    (project / "my_package" / "inner.py").write_text(SOURCE.format(name="inner"))
    assert load_user_task("my_package.inner:make_task").name == "inner"


def test_another_project_with_the_same_module_name_gets_its_own_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_user_task("my_project:make_task").name == "mine"
    other = project / "other"
    other.mkdir()
    (other / "my_project.py").write_text(SOURCE.format(name="other"))
    monkeypatch.chdir(other)
    assert load_user_task("my_project:make_task").name == "other"


def test_a_missing_attribute_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"E207 'my_project' has no 'make_tsk'.*my_project\.py\. Did you mean 'make_task'"):
        load_user_task("my_project:make_tsk")


def test_a_missing_module_names_the_nearest_file() -> None:
    with pytest.raises(ConfigError, match=r"E207 there is no module 'my_projekt'.*Did you mean 'my_project'"):
        load_user_task("my_projekt:make_task")


def test_a_package_that_the_users_code_lacks_is_told_apart_from_a_missing_module(project: Path) -> None:
    (project / "broken_import.py").write_text("import no_such_library_here\n")
    with pytest.raises(ConfigError, match=r"E207 'broken_import' imports 'no_such_library_here', which is not installed"):
        load_user_task("broken_import:make_task")


@pytest.mark.parametrize(("source", "words"), [("def f(:\n", "SyntaxError"), ("x = 1\n1 / 0\n", "ZeroDivisionError")])
def test_a_fault_in_the_users_module_is_reported_with_its_line(project: Path, source: str, words: str) -> None:
    (project / "broken_code.py").write_text(source)
    with pytest.raises(ConfigError, match=rf"E207 'broken_code' cannot be imported: it raised {words}.*broken_code\.py, line [12]"):
        load_user_task("broken_code:f")


def test_a_fault_while_the_task_is_made_is_reported_with_its_line_and_our_own_errors_pass_through() -> None:
    with pytest.raises(ConfigError, match=r"E207 'my_project:breaks' raised KeyError: 'no such key'.*my_project\.py, line \d+"):
        load_user_task("my_project:breaks")
    with pytest.raises(DataError, match="E305"):
        load_user_task("my_project:bad_data")


def test_options_are_held_against_the_functions_parameters() -> None:
    with pytest.raises(ConfigError, match=r"E201 'my_project:make_task' has no parameter 'widht'\. task\.widht\. Did you mean 'width'"):
        load_user_task("my_project:make_task", {"widht": 3})
    with pytest.raises(ConfigError, match=r"E204 'my_project:needs' needs 'width'"):
        load_user_task("my_project:needs")


@pytest.mark.parametrize("reference", ["my_project", ":make_task", "my_project:"])
def test_a_reference_needs_a_module_and_a_name(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"E207 .* is not module:function"):
        load_user_task(reference)


def test_what_is_named_must_make_a_task() -> None:
    with pytest.raises(ConfigError, match="E202 'my_project:no_task' returned a int"):
        load_user_task("my_project:no_task")
    with pytest.raises(ConfigError, match="E207 'my_project:number' is a int"):
        load_user_task("my_project:number")
