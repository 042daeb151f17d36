"""From the arguments to an exit code: every failure is one line with a code, or JSON; a traceback only with --debug.

0 ok, 2 usage or configuration, 3 data, 4 network, 5 deadline, 6 the run is fine and the answer is no, 70 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from fedaccord.cli.policy_verbs import app
from fedaccord.core.errors import ConfigError, FedaccordError, InternalFault

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = run(given)
    except BrokenPipeError:  # `fedaccord log RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def run(given: list[str]) -> int:
    """The exit code of one command."""
    as_json, debug = "--json" in given, "--debug" in given
    import typer.main

    command = typer.main.get_command(app)
    try:
        result = command.main(given, prog_name="fedaccord", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as problem:
        print(problem.ctx.get_help() if problem.ctx else "See: fedaccord --help")
        return ConfigError.exit_code
    except click.ClickException as problem:
        return _failed(_usage(problem), as_json, debug)
    except FedaccordError as error:
        return _failed(error, as_json, debug)
    except BrokenPipeError:
        raise
    except Exception as problem:
        remedy = "Please report it" + ("" if debug else ", with what --debug prints")
        fault = InternalFault("E701", f"{type(problem).__name__}: {problem}", " ".join(["fedaccord", *given]), remedy)
        fault.__cause__ = problem
        return _failed(fault, as_json, debug)


def _failed(error: FedaccordError, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    others = getattr(error, "others", ())
    if as_json:
        print(json.dumps({"error": {**error.record(), "others": [other.record() for other in others]}}))
    for each in (error, *others):
        print(each, file=sys.stderr)
    return error.exit_code


def _usage(problem: click.ClickException) -> ConfigError:
    """What is wrong with the call itself, as one of our errors."""
    context = getattr(problem, "ctx", None)
    where = context.command_path if context else "fedaccord"
    remedy = f"See: {where} --help"
    if isinstance(problem, click.NoSuchOption):
        near = problem.possibilities
        return ConfigError("E201", f"no such option {problem.option_name}", where, f"Did you mean {near[0]}?" if near else remedy)
    if isinstance(problem, click.MissingParameter):
        name = problem.param.human_readable_name if problem.param else ""
        return ConfigError("E204", f"{name} is missing", where, remedy)
    what = problem.format_message().rstrip(".")
    if what.startswith("No such command"):
        from difflib import get_close_matches

        name = what.split("'")[1] if "'" in what else ""
        near = get_close_matches(name, [each.name or "" for each in app.registered_commands], n=1)
        return ConfigError("E205", f"no such command '{name}'", where, f"Did you mean '{near[0]}'?" if near else remedy)
    return ConfigError("E202", what, where, remedy)
