"""``[task] task = "my_module:make_task"``: a function of the user's, found from the current directory, that returns a Task."""

from __future__ import annotations

import importlib
import importlib.machinery
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedaccord.core.errors import ConfigError, FedaccordError
from fedaccord.tasks.nearest import did_you_mean
from fedaccord.tasks.task import Task


def load_user_task(reference: str, options: Mapping[str, Any] | None = None) -> Task:
    """The task that ``module:function`` makes with `options` as its keywords; `module` may be a Task's own module attribute as well.

    Raises E207 (no such module or attribute, or the user's code fails), E201 and E204 (an option it does not know, or lacks),
    E202 (it returns no Task).
    """
    made = user_factory(reference)
    options = dict(options or {})
    if isinstance(made, Task):
        if options:
            raise ConfigError("E201", f"'{reference}' is a Task and takes no options", "task", f"Remove {', '.join(options)}")
        return made
    _check_options(made, options, reference)
    try:
        task = made(**options)
    except FedaccordError:
        raise
    except Exception as error:  # the user's code: any fault of it is reported as its own
        raise _failed(reference, "raised", error) from error
    if not isinstance(task, Task):
        raise ConfigError("E202", f"'{reference}' returned a {type(task).__name__}", "task", "Return fa.Task(...)")
    return task


def user_factory(reference: str) -> Any:
    """What ``module:name`` names, unchecked but callable or a Task. Raises E207."""
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError("E207", f"'{reference}' is not module:function", "task", "Write for instance 'my_module:make_task'")
    module = _imported(module_name)
    if not hasattr(module, attribute):
        public = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
        raise ConfigError(
            "E207", f"'{module_name}' has no '{attribute}'", str(module.__file__ or module_name), did_you_mean(attribute, public)
        )
    made = getattr(module, attribute)
    if not callable(made) and not isinstance(made, Task):
        raise ConfigError("E207", f"'{reference}' is a {type(made).__name__}", "task", "Name a function that returns fa.Task(...)")
    return made


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    _forget_namesake(name, here)
    importlib.invalidate_caches()
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            near = did_you_mean(name, [path.stem for path in Path(here).glob("*.py")])
            raise ConfigError("E207", f"there is no module '{name}'", here, near or "Start from the folder that holds it") from error
        raise ConfigError(
            "E207", f"'{name}' imports '{error.name}', which is not installed", here, f"Install it: pip install {error.name}"
        ) from error
    except Exception as error:  # the user's code: any fault of it is reported as its own
        raise _failed(name, "cannot be imported: it raised", error) from error
    finally:
        sys.path.remove(here)


def _forget_namesake(name: str, here: str) -> None:
    """Two projects may both have a `my_task`: forget the one imported earlier from another folder."""
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = importlib.machinery.PathFinder.find_spec(top, [here])
    if loaded is None or spec is None or spec.origin is None or getattr(loaded, "__file__", None) == spec.origin:
        return
    for module in [module for module in sys.modules if module == top or module.startswith(top + ".")]:
        del sys.modules[module]


def _check_options(made: Any, options: dict[str, Any], reference: str) -> None:
    try:
        signature = inspect.signature(made)
    except ValueError:  # a callable without a signature
        return
    parameters = signature.parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in options:
        if key not in named and not takes_all:
            raise ConfigError(
                "E201", f"'{reference}' has no parameter '{key}'", f"task.{key}", did_you_mean(key, named) or "It takes no options"
            )
    for p in parameters:
        if p.default is p.empty and p.name in named and p.name not in options:
            raise ConfigError("E204", f"'{reference}' needs '{p.name}'", f"task.{p.name}", f"Set {p.name} in [task]")


def _failed(what: str, did: str, error: Exception) -> ConfigError:
    line = error.__traceback__
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    where = "" if line is None else f"{line.tb_frame.f_code.co_filename}, line {line.tb_lineno}"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
    return ConfigError("E207", f"'{what}' {did} {type(error).__name__}: {error}", where, "Mend it and try again")
