"""matplotlib figures as SVG that lives inside a page: no date, no random ids, colours that follow the page's light or dark theme.

Figures are drawn in marker colours that are then replaced by CSS variables, so one picture serves both themes and print.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, ALARM = "#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", ALARM: "var(--alarm)"}
COLOURS = 8  # method colours in the page's style sheet, --method-0 (FedAvg, grey) to --method-7
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (9, 1.5, 2, 1.5), (2.5, 1.2))  # the second sign of a method beside its colour

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a '$' in a client's name is a '$'
    "axes.unicode_minus": True,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def colour(method: int) -> str:
    """The marker colour of a method; methods past the eighth take the colours again with another dash."""
    return f"#0a0c{method % COLOURS:02x}"


def dashes(method: int) -> tuple[float, ...]:
    """Colour and dash together tell 32 methods apart, and two neighbours never share the dash."""
    return DASHES[(method + method // COLOURS) % len(DASHES)]


def line_style(method: int) -> Any:
    pattern = dashes(method)
    return (0, pattern) if pattern else "-"


@contextmanager
def drawing(width: float, height: float, name: str) -> Iterator[Figure]:
    """A figure of width x height inches in our style, on a canvas of its own (no pyplot, no global state)."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a class name in another script: the browser has the glyph
        figure = Figure(figsize=(width, height), layout="constrained", dpi=72)
        FigureCanvasSVG(figure)
        yield figure


def to_svg(figure: Figure, alt: str) -> Markup:
    """The figure as an <svg> element that scales with the page and names itself to screen readers. Call it inside `drawing`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", text))
    text = re.sub(r" id=\"([^\"]*)\"", lambda match: match[0] if match[1] in used else "", text)
    view = re.search(r"viewBox=\"([^\"]*)\"", text)
    assert view is not None, "matplotlib writes a viewBox"
    root = f'<svg viewBox="{view[1]}" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{escape(alt)}">'
    text = root + text[text.index(">") + 1 :]
    return Markup(re.sub(r"#0a0[bc][0-9a-f]{2}", _variable, text))


def _variable(match: re.Match[str]) -> str:
    found = match[0]
    return _VARIABLES[found] if found in _VARIABLES else f"var(--method-{int(found[-2:], 16)})"
