"""The pictures of the population: the partition (client x class), and who counted for how much in which round (client x round)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedaccord.report.groups import Method, Study
from fedaccord.report.source import Client, number, seed_of, trained
from fedaccord.report.svg import ALARM, INK, MUTED, drawing, to_svg
from fedaccord.report.view import Picture

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

WIDTH = 9.6  # inches
MOST_CLIENTS = 200  # rows of a picture; a population beyond is sampled evenly, and the caption says so
MOST_MARKS = 3000  # crosses and dots in a picture; beyond, they are sampled evenly, and the legend says so
_MAP = "cividis"  # even in lightness, the same to colour-blind readers


def partition_pictures(study: Study) -> tuple[Picture, ...]:
    """One picture a scheme, of the first seed that drew it (every seed draws its own; the CSV has them all)."""
    seen: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for run in study.runs:
        if run.partition:
            seen.setdefault(str(run.partition.get("scheme", "unnamed")), (str(seed_of(run)), run.partition))
    if not seen:
        return (Picture("partition", "The partition", None, missing="No partition was recorded."),)
    return tuple(_partition(f"partition-{i}", scheme, seed, drawn) for i, (scheme, (seed, drawn)) in enumerate(seen.items()))


def weight_pictures(study: Study) -> tuple[Picture, ...]:
    """Per method, the weights of its first seed, client x round, refused and absent ones marked."""
    return tuple(_weights(index, method) for index, method in enumerate(study.methods))


def _partition(ident: str, scheme: str, seed: str, partition: Mapping[str, Any]) -> Picture:
    import numpy as np

    sizes = np.array([int(size) for size in partition.get("sizes") or ()], dtype=np.int64)
    counts = _label_counts(partition, len(sizes))
    caption = f"{scheme}, seed {seed}: examples of each client" + (" by class" if counts is not None else "")
    if not len(sizes):
        return Picture(ident, caption, None, missing="The partition records no clients.")
    order = np.lexsort((-sizes, counts.argmax(axis=1))) if counts is not None else np.argsort(-sizes, kind="stable")
    shown = order[_even(len(order), MOST_CLIENTS)]
    sampled = f" {len(shown)} of {len(order)} clients are drawn, evenly." if len(shown) < len(order) else ""
    alt = f"{caption}. {len(sizes)} clients with {sizes.min()} to {sizes.max()} examples; {int((sizes == 0).sum())} are empty."
    if counts is not None:
        classes = (counts > 0).sum(axis=1)
        alt += f" A client holds {int(classes.min())} to {int(classes.max())} of {counts.shape[1]} classes."
    height = 1.9 if counts is None else 1.7 + min(3.2, 0.16 * counts.shape[1] + 0.4)
    with drawing(WIDTH, height, ident) as figure:
        if counts is None:
            bars = figure.add_subplot()
        else:
            share = min(3.2, 0.16 * counts.shape[1] + 0.4)
            bars, cells = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1.1, share]})
            image = _heat(cells, counts[shown].T.astype(float), power=0.5)
            cells.set_ylabel("class")
            names = partition.get("class_names") or range(counts.shape[1])
            _label_rows(cells, [str(name) for name in names])
            _scale(figure.colorbar(image, ax=[bars, cells], label="examples", fraction=0.03, pad=0.01))
        bars.bar(range(len(shown)), sizes[shown], width=0.9, color=MUTED)
        bars.set_ylabel("examples")
        bars.set_xlim(-0.6, len(shown) - 0.4)
        lowest = bars if counts is None else cells
        lowest.set_xlabel("clients, sorted by size" if counts is None else "clients, sorted by their main class")
        lowest.set_xticks([])
        why = "" if counts is not None else " Labels are not classes here, or were not recorded: sizes only."
        return Picture(ident, caption + "." + sampled + why, to_svg(figure, alt), alt, wide=True)


def _weights(index: int, method: Method) -> Picture:
    import numpy as np

    run = method.runs[0]
    ident, caption = f"weights-{index}", f"{method.label}, seed {seed_of(run)}: weight of each client in each round"
    rounds = sorted(int(line["round"]) for line in run.rounds)
    asked = {client for line in run.rounds for client in line.get("cohort") or ()} | {row["client"] for row in trained(run)}
    if not rounds or not asked:
        return Picture(ident, caption, None, missing="No client was asked in this run.")
    clients = sorted(asked, key=lambda client: (isinstance(client, str), client if isinstance(client, int) else 0, str(client)))
    kept = [clients[i] for i in _even(len(clients), MOST_CLIENTS)]
    row_of, column_of = {client: i for i, client in enumerate(kept)}, {at: i for i, at in enumerate(rounds)}
    grid = np.full((len(kept), len(rounds)), np.nan)
    for row in trained(run):
        weight = number(row.get("weight"))
        if row.get("accepted") and weight is not None and row["client"] in row_of and int(row["round"]) in column_of:
            grid[row_of[row["client"]], column_of[int(row["round"])]] = weight
    refused = _cells(run.rounds, "refused", row_of, column_of)
    absent = _cells(run.rounds, "absent", row_of, column_of)
    accepted = np.isfinite(grid).sum(axis=1)
    alt = f"{caption}. {len(clients)} clients, {len(rounds)} rounds, {len(refused)} refused and {len(absent)} absent answers marked."
    with drawing(WIDTH, min(6.0, 1.4 + 0.045 * max(len(kept), 24)), ident) as figure:
        cells, bars = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": [7, 1]})
        image = _heat(cells, grid, power=1.0)
        for places, marker, paint in ((absent, ".", MUTED), (refused, "x", ALARM)):
            drawn = [places[i] for i in _even(len(places), MOST_MARKS)]
            size = 16 if len(kept) <= 60 else 8
            cells.scatter([column for _, column in drawn], [row for row, _ in drawn], marker=marker, s=size, color=paint, linewidths=1.0)
        cells.set_xlabel("round")
        cells.set_ylabel("client")
        _label_columns(cells, rounds)
        _label_rows(cells, [str(client) for client in kept], most=12)
        bars.barh(range(len(kept)), accepted, height=0.9, color=MUTED)
        bars.barh(range(len(kept)), _per_row(refused, len(kept)), left=accepted, height=0.9, color=ALARM)
        bars.set_xlabel("times counted")
        bars.tick_params(axis="y", length=0)
        bars.grid(False)
        _scale(figure.colorbar(image, ax=bars, label="weight", fraction=0.3, pad=0.08))
        sampled = f". {len(kept)} of {len(clients)} clients are drawn, evenly" if len(kept) < len(clients) else ""
        marks = (("refused", _count("refused", refused)), ("absent", _count("absent", absent)))
        return Picture(ident, caption + sampled, to_svg(figure, alt), alt, marks=marks, wide=True)


def _heat(axes: Axes, grid: NDArray[np.float64], power: float) -> AxesImage:
    """Cells without a value, or with none of it, stay the colour of the page."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    values = np.ma.masked_invalid(np.where(grid == 0, np.nan, grid) if power != 1.0 else grid)
    top = float(values.max()) if values.count() else 1.0
    shades = ListedColormap(colormaps[_MAP](np.linspace(0.15, 1, 256)))  # the darkest would vanish on a dark page
    image = axes.imshow(values, aspect="auto", interpolation="none", cmap=shades, norm=PowerNorm(power, vmin=0, vmax=top or 1.0))
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(True)
        side.set_color(INK)
        side.set_linewidth(0.4)
    return image


def _scale(bar: Colorbar) -> None:
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_rasterized(True)  # one small image; as 256 shapes it shows seams


def _label_counts(partition: Mapping[str, Any], clients: int) -> NDArray[np.int64] | None:
    import numpy as np

    table = partition.get("label_counts")
    if not table or len(table) != clients or len({len(row) for row in table}) != 1 or not len(table[0]):
        return None
    return np.array(table, dtype=np.int64)


def _cells(
    rounds: Sequence[Mapping[str, Any]], key: str, row_of: Mapping[Client, int], column_of: Mapping[int, int]
) -> list[tuple[int, int]]:
    places = []
    for line in rounds:
        for entry in line.get(key) or ():
            client = entry["client"] if isinstance(entry, Mapping) else entry
            if client in row_of:
                places.append((row_of[client], column_of[int(line["round"])]))
    return places


def _count(word: str, places: Sequence[tuple[int, int]]) -> str:
    return f"{word} ({len(places)}" + (f", {MOST_MARKS} of them drawn)" if len(places) > MOST_MARKS else ")")


def _per_row(places: Sequence[tuple[int, int]], rows: int) -> list[int]:
    counts = [0] * rows
    for row, _ in places:
        counts[row] += 1
    return counts


def _even(count: int, most: int) -> list[int]:
    """At most `most` of range(count), evenly spread, first and last included."""
    return list(range(count)) if count <= most else [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _label_rows(axes: Axes, names: Sequence[str], most: int = 20) -> None:
    places = _even(len(names), most)
    axes.set_yticks(places, [names[i] if len(names[i]) <= 16 else names[i][:15] + "…" for i in places])


def _label_columns(axes: Axes, rounds: Sequence[int]) -> None:
    places = _even(len(rounds), 9)
    axes.set_xticks(places, [str(rounds[i]) for i in places])
