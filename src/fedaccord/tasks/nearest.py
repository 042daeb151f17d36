"""The known name that an unknown one was probably meant to be: for remedies."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], limit: int = 20) -> str:
    """A sentence naming the nearest of `known`, or all of them (at most `limit`) where none is near."""
    names = sorted({str(k) for k in known})
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{near[0]}'?"
    if not names:
        return ""
    shown = ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
    return f"There is: {shown}"
