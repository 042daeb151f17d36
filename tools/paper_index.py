"""Writes docs/paper_index.md from the docstrings of the methods; `--check` only says whether it is current.

python tools/paper_index.py [--check]
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from pathlib import Path

from fedaccord.algorithms import REGISTRY

PAGE = Path(__file__).resolve().parent.parent / "docs" / "paper_index.md"


def text() -> str:
    """The page as it should be."""
    lines = ["# Methods and their papers", "", "Made from the docstrings by `tools/paper_index.py`.", ""]
    for name, method in REGISTRY.items():
        module = inspect.getdoc(sys.modules[method.__module__]) or ""
        settings = ", ".join(f"`{each.name} = {each.default}`" for each in fields(method)) or "none"
        lines += [f"## `{name}`", "", module, "", inspect.getdoc(method) or "", "", f"Settings and defaults: {settings}", ""]
    return "\n".join(lines)


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == text():
            return 0
        print("docs/paper_index.md is not current: python tools/paper_index.py", file=sys.stderr)
        return 1
    PAGE.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
