"""The pictures of the loss around the last global model: slices along one direction, and contours across two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.report.figures import HEIGHT, WIDTH, Line, draw_curves
from fedaccord.report.groups import Method, Study
from fedaccord.report.source import Record, measures_of, number, seed_of, why_not_measured
from fedaccord.report.statistics import Band, band
from fedaccord.report.svg import INK, colour, drawing, to_svg
from fedaccord.report.view import Picture

NUM_LEVELS = 9  # contours, evenly spaced in the logarithm of the loss, the same for all methods


def pictures(study: Study) -> tuple[Picture, ...]:
    """The slices of all methods in one picture, then the contours of each method's first measured seed."""
    grids = [(index, method, run, found) for index, method in enumerate(study.methods) for run, found in [_first_grid(method)]]
    levels = _levels([found for *_, found in grids if found])
    return (_slices(study), *(_contours(index, method, run, found, levels) for index, method, run, found in grids))


def _slices(study: Study) -> Picture:
    ident, caption = "loss-slice", "Training loss along a random direction"
    lines = []
    for index, method in enumerate(study.methods):
        curve = _slice(method)
        if curve is not None:
            lines.append(Line(index, method.label, curve))
    if not lines:
        reasons = dict.fromkeys(why_not_measured(run, "slice") for run in study.runs)
        return Picture(ident, caption, None, missing="; ".join(reasons) + ".")
    told = (f"{line.label} is {min(line.curve.mean):.3g} at its lowest and {max(line.curve.mean):.3g} at its highest" for line in lines)
    alt = f"{caption}. {'; '.join(told)}."
    with drawing(WIDTH, HEIGHT, ident) as figure:
        axes = figure.add_subplot()
        draw_curves(axes, lines, few=0)
        lowest, highest = (choose(value for line in lines for value in line.curve.mean) for choose in (min, max))
        margin = 0.06 * ((highest - lowest) or 1.0)
        axes.set_ylim(lowest - margin, highest + margin)  # the means decide the scale, as elsewhere on the page
        axes.set_xlabel("step, in lengths of the weights")
        axes.set_ylabel("training loss")
        return Picture(ident, caption, to_svg(figure, alt), alt, tuple((line.method, line.label) for line in lines))


def _slice(method: Method) -> Band | None:
    """The mean over seeds at the places that every measured seed has a loss at."""
    curves: list[dict[int, float]] = []
    places: dict[int, float] = {}
    for run in method.runs:
        found = measures_of(run).get("slice") or {"at": (), "loss": ()}
        at = {round(1e6 * a): float(a) for a in found["at"]}
        places |= at
        curves.append({key: value for key, loss in zip(at, found["loss"], strict=True) if (value := number(loss)) is not None})
    curve = band(curves)
    return None if curve is None else Band([places[int(key)] for key in curve.x], curve.mean, curve.low, curve.high, curve.n)


def _first_grid(method: Method) -> tuple[Record, Mapping[str, Any] | None]:
    found = [(run, grid) for run in method.runs if (grid := measures_of(run).get("grid"))]
    return found[0] if found else (method.runs[0], None)


def _levels(grids: Sequence[Mapping[str, Any]]) -> list[float]:
    """Losses at which contours are drawn; [] where there are not two different positive ones."""
    values = [value for grid in grids for row in grid["loss"] for each in row if (value := number(each)) is not None and value > 0]
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    if not low < high:
        return []
    step = math.log(high / low) / (NUM_LEVELS + 1)
    return [low * math.exp(step * i) for i in range(1, NUM_LEVELS + 1)]


def _contours(index: int, method: Method, run: Record, grid: Mapping[str, Any] | None, levels: Sequence[float]) -> Picture:
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    ident, caption = f"loss-contours-{index}", f"{method.label}, seed {seed_of(run)}: training loss across two random directions"
    if grid is None:
        return Picture(ident, caption, None, missing=f"{why_not_measured(run, 'slice')}.")
    loss = np.array([[number(each) for each in row] for row in grid["loss"]], dtype=float)  # None becomes NaN
    if len(grid["at"]) < 2 or not levels or not np.isfinite(loss).any():
        return Picture(ident, caption, None, missing="No two points of the grid have different, finite losses.")
    alt = f"{caption}. The loss goes from {np.nanmin(loss):.3g} to {np.nanmax(loss):.3g}; contours are the same for all methods."
    with drawing(WIDTH, 3.6, ident) as figure:
        axes = figure.add_subplot()
        drawn = [level for level in levels if np.nanmin(loss) < level < np.nanmax(loss)]
        if drawn:
            lines = axes.contour(grid["at"], grid["at"], np.ma.masked_invalid(loss), levels=drawn, colors=colour(index), linewidths=1.1)
            axes.clabel(lines, fmt="%.2g", fontsize=7, colors=INK)
        axes.plot([0], [0], marker="+", markersize=9, color=INK)
        axes.grid(False)
        axes.set_aspect("equal")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.set_xlabel("first direction")
        axes.set_ylabel("second direction")
        return Picture(ident, caption, to_svg(figure, alt), alt, ((index, "contours of equal loss; + is the model"),))
