"""Write docs/errors.md from `fedaccord.core.errors`; `--check` only says whether it is current (exit code 1 if not).

python tools/error_table.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedaccord.core.errors import CODES, REASONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

# The first digit of a code -> what the group is about, and how the command line ends when such an error stops it.
GROUPS: dict[str, tuple[str, str]] = {
    "1": (
        "Uploads and client state",
        "Refused uploads are recorded and the run goes on. Where the run itself cannot go on, it ends with the exit code of the cause.",
    ),
    "2": ("Configuration and use", "Exit code 2."),
    "3": ("Data, partition, storage", "Exit code 3."),
    "4": ("Network and authorisation", "Exit code 4."),
    "5": ("Deadlines", "Exit code 5."),
    "6": ("The run is fine and the answer is no", "Exit code 6."),
    "7": ("Faults of ours, or of the machine", "Exit code 70. Please report E701."),
}

HEAD = """# Errors

<!-- Written by tools/error_table.py from fedaccord.core.errors; do not edit. -->

Every error that a user meets has one code and says what happened, where, and what to do:

    E112 clients disagree on 'fc2.weight': 19 send (10, 32) float32, client 7 sends (10, 33).
         Likely another model version. See: fedaccord show RUN --client 7

`--json` gives the same four parts as fields; `--debug` adds the traceback.
"""


def page() -> str:
    """The whole page. A code whose group is unknown raises KeyError."""
    parts = [HEAD]
    unknown = {code for code in CODES if code[1] not in GROUPS}
    if unknown:
        raise KeyError(f"codes without a group: {sorted(unknown)}. Add the group to tools/error_table.py")
    for digit, (title, ending) in GROUPS.items():
        rows = [f"| {code} | {meaning} |" for code, meaning in sorted(CODES.items()) if code[1] == digit]
        if rows:
            parts.append("\n".join([f"## {title}", "", ending, "", "| code | meaning |", "| --- | --- |", *rows]) + "\n")
    reasons = ", ".join(f"`{reason}`" for reason in REASONS)
    parts.append(f"## Reasons\n\nA refused upload carries one word of this closed list beside its code: {reasons}.\n")
    return "\n".join(parts)


def main() -> int:
    """0, or 1 where `--check` finds an old page."""
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if "--check" in sys.argv[1:]:
        if current == page():
            return 0
        print("docs/errors.md is not current: run python tools/error_table.py", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
