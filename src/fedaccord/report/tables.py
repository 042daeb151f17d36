"""The verdict cards and the tables of results: what each method reached, at what cost, how evenly over the clients."""

from __future__ import annotations

from collections.abc import Iterable

from fedaccord.report.groups import Study
from fedaccord.report.quantities import FLATNESS, QUANTITIES, TARGETS, MethodFigures, Quantity
from fedaccord.report.source import measures_of
from fedaccord.report.statistics import ONE_SEED, Estimate
from fedaccord.report.view import Card, Cell, Table
from fedaccord.report.words import NOTHING, censored, difference_of, never, seeds, shown, with_interval

BY_NAME = {quantity.name: quantity for quantity in (*QUANTITIES, *FLATNESS, *TARGETS)}
_FAIRNESS = ("clients_mean", "clients_mean_by_size", "worst_tenth", "jain", "clients_scored", "clients_unscored")
_COST = ("gradients_per_round", "bytes_per_round", "seconds_per_round", "gradients", "bytes_up", "bytes_down", "seconds")


def cards(study: Study, figures: tuple[MethodFigures, ...]) -> tuple[Card, ...]:
    """One card a method: the final metric with its interval, and the few facts that decide whether to believe it."""
    return tuple(_card(study, index, method) for index, method in enumerate(figures))


def results(study: Study, figures: tuple[MethodFigures, ...]) -> Table:
    """Final, tail mean and best, apart; the paired difference; rounds to target."""
    names = ["final", "tail", "chosen", "best", "best_round"]
    if all(method.estimates["chosen"].mean is None for method in figures):
        names.remove("chosen")
    columns = [("method", ""), ("seeds", "runs with different seeds, the unit of n")]
    columns += [heading(BY_NAME[name], study) for name in names]
    points = ", points" if study.fraction else ""
    columns.append((f"minus FedAvg{points}", "paired by seed, at the last round that both evaluated; 95% t interval"))
    columns.append((f"last-{study.last} mean minus FedAvg's{points}", "the same for the mean of the last rounds, which is less noisy"))
    columns += [heading(BY_NAME["target_round"], study)] if study.target is not None else []
    rows = []
    for index, method in enumerate(figures):
        cells = [_name(index, method), Cell(str(len(method.runs)), float(len(method.runs)), "seeds", method.method.label)]
        cells += [_estimate(method, BY_NAME[name]) for name in names]
        cells += [_difference(study, method), _difference(study, method, tail=True)]
        cells += [_target(method, BY_NAME["target_round"])] if study.target is not None else []
        rows.append(tuple(cells))
    return Table("results-table", f"Test {study.metric or 'metric'} by method", tuple(columns), tuple(rows), _how_to_read(study))


def by_seed(study: Study, figures: tuple[MethodFigures, ...]) -> Table:
    """Every seed's own figures, so that a mean never hides a run."""
    names = ["final", "tail", "best", "worst_tenth", "jain", "gradients"]
    columns = [("method", ""), ("seed", ""), *(heading(BY_NAME[name], study) for name in names)]
    columns += [("minus FedAvg", "")] + ([heading(BY_NAME["target_round"], study)] if study.target is not None else [])
    rows = []
    for index, method in enumerate(figures):
        for run in method.runs:
            label, seed = method.method.label, str(run.seed)
            cells = [_name(index, method), Cell(seed, seed=seed)]
            cells += [Cell(shown(run.values[name], BY_NAME[name].kind), run.values[name], name, label, seed) for name in names]
            gap = method.differences.get(run.seed)
            at = method.compared_at.get(run.seed)
            note = f"at round {at}" if at is not None and at != run.values["rounds"] else ""
            cells.append(Cell(difference_of(Estimate(gap, None, None, 1), study), gap, "difference", label, seed, note))
            if study.target is not None:
                at_round = run.values["target_round"]
                text = "never" if at_round is None and run.reason is None else shown(at_round, "count")
                cells.append(Cell(text, at_round, "target_round", label, seed))
            rows.append(tuple(cells))
    return Table("seeds-table", "Each seed by itself", tuple(columns), tuple(rows))


def fairness(study: Study, figures: tuple[MethodFigures, ...]) -> Table:
    """What single clients get from the model: both means, the worst tenth, Jain's index."""
    note = "The two means differ where test sets differ in size; both can be recomputed from the clients' CSV."
    return _of_quantities("fairness-table", "The clients' own scores, last per-client evaluation", _FAIRNESS, study, figures, note)


def cost(study: Study, figures: tuple[MethodFigures, ...]) -> Table:
    """Rounds are not work: gradient evaluations, bytes and time, a round and in total, and up to the target."""
    table = _of_quantities("cost-table", "What it cost", _COST, study, figures, "")
    columns = [*table.columns, ("gradients against FedAvg", "gradients a round, divided by FedAvg's")]
    rows = []
    for method, row in zip(figures, table.rows, strict=True):
        base = next((other for other in figures if method.baseline is other.method), None)
        mine = method.estimates["gradients_per_round"].mean
        theirs = base.estimates["gradients_per_round"].mean if base else None
        ratio = mine / theirs if mine is not None and theirs else None
        rows.append((*row, Cell(f"{ratio:.2f}×" if ratio is not None else NOTHING, ratio)))
    if study.target is not None:
        columns += [heading(BY_NAME[name], study) for name in ("target_gradients", "target_bytes")]
        rows = [
            (*row, *(_target(method, BY_NAME[name]) for name in ("target_gradients", "target_bytes")))
            for method, row in zip(figures, rows, strict=True)
        ]
    note = "Means over seeds. Times are of the machine that ran; gradients and bytes are exact counts."
    return Table(table.ident, table.caption, tuple(columns), tuple(rows), note)


def flatness(study: Study, figures: tuple[MethodFigures, ...]) -> Table:
    """Curvature and rise of the loss around each method's last global model."""
    found = [measures for run in study.runs if (measures := measures_of(run))]
    rho = sorted({float(measures["rho"]) for measures in found})
    examples = sorted({int(measures["examples"]) for measures in found if measures["examples"]})
    many = "–".join(f"{value:,}" for value in dict.fromkeys((examples[0], examples[-1]))) if examples else "no"
    note = (
        f"ρ = {', '.join(f'{value:g}' for value in rho)}; {many} training examples of all clients, no dropout, batch norm by its running "
        "statistics; 95% Student-t intervals over seeds. ρ is a length in weight space: models of different size or scale do not share it."
    )
    if len({(measures["rho"], measures["asked"]) for measures in found}) > 1:
        note = f"These runs were measured in different ways, so their figures should not be compared. {note}"
    return _of_quantities("flatness-table", "Around the last global model", [each.name for each in FLATNESS], study, figures, note)


def heading(quantity: Quantity, study: Study) -> tuple[str, str]:
    """A column's name and meaning, with the study's own windows filled in."""
    fields = {"last": study.last, "window": study.window}
    words = quantity.words.format(**fields)
    if quantity.name == "target_round" and study.target is not None:
        words = f"rounds to {study.target:g}"
    return words, quantity.meaning.format(**fields)


def _of_quantities(ident: str, caption: str, names: Iterable[str], study: Study, figures: tuple[MethodFigures, ...], note: str) -> Table:
    names = tuple(names)
    columns = (("method", ""), *(heading(BY_NAME[name], study) for name in names))
    rows = tuple((_name(index, method), *(_estimate(method, BY_NAME[name]) for name in names)) for index, method in enumerate(figures))
    return Table(ident, caption, columns, rows, note)


def _card(study: Study, index: int, method: MethodFigures) -> Card:
    label, values = method.method.label, method.estimates
    facts = [(heading(BY_NAME[name], study)[0], _estimate(method, BY_NAME[name])) for name in ("tail", "worst_tenth")]
    if method.baseline is not None:
        facts.insert(0, ("minus FedAvg", _difference(study, method)))
        facts.insert(2, (f"last-{study.last} minus FedAvg's", _difference(study, method, tail=True)))
    if study.target is not None:
        facts.append((heading(BY_NAME["target_round"], study)[0], _target(method, BY_NAME["target_round"])))
    facts += [(BY_NAME[name].words, _estimate(method, BY_NAME[name], plain=True)) for name in ("gradients",)]
    up, down = values["bytes_up"].mean, values["bytes_down"].mean
    both = None if up is None and down is None else (up or 0.0) + (down or 0.0)
    facts.append(("traffic", Cell(shown(both, "bytes"))))
    facts.append(("time", _estimate(method, BY_NAME["seconds"], plain=True)))
    total = {name: sum(run.values[name] or 0 for run in method.runs) for name in ("asked", "refused", "absent")}
    facts.append(("refused / absent", Cell(f"{total['refused']:.0f} / {total['absent']:.0f} of {total['asked']:,.0f} asked")))
    final = _estimate(method, BY_NAME["final"])
    note = f"final {study.metric or 'metric'}, {seeds(values['final'].n)}" if values["final"].n else (values["final"].reason or "")
    if values["final"].n == 1:
        note += ": no interval"
    return Card(index, label, Cell(final.text, final.value, final.quantity, label, note=note), tuple(facts))


def _name(index: int, method: MethodFigures) -> Cell:
    return Cell(method.method.label, chip=index)


def _estimate(method: MethodFigures, quantity: Quantity, plain: bool = False) -> Cell:
    figure = method.estimates[quantity.name]
    has_interval = not plain and quantity.kind in ("metric", "curvature")
    text = with_interval(figure, quantity.kind) if has_interval else shown(figure.mean, quantity.kind)
    note = ""
    if figure.mean is None:
        note = figure.reason or ""
    elif figure.n < len(method.runs):
        note = f"{figure.n} of {seeds(len(method.runs))}"
    return Cell(text, figure.mean, quantity.name, method.method.label, note=note)


def _difference(study: Study, method: MethodFigures, tail: bool = False) -> Cell:
    figure, name = (method.tail_difference, "tail_difference") if tail else (method.difference, "difference")
    note = figure.reason or ""
    if figure.reason == ONE_SEED:
        note = "one seed"
    elif figure.mean is not None and figure.n < len(method.runs):
        note = f"{seeds(figure.n)} in common"
    return Cell(difference_of(figure, study), figure.mean, name, method.method.label, note=note)


def _target(method: MethodFigures, quantity: Quantity) -> Cell:
    median = method.targets[quantity.name]
    value = median.low if median.known else None
    return Cell(censored(median, quantity.kind), value, quantity.name, method.method.label, note=never(median) or median.reason or "")


def _how_to_read(study: Study) -> str:
    """The small print of the results, in full sentences."""
    better = "higher" if study.higher_is_better else "lower"
    text = (
        f"Brackets are 95% Student-t intervals over seeds; {better} is better. Final, last-{study.last} mean and best are three different "
        "numbers: the best over rounds on the test set is optimistic, and choices (rounds, settings) belong on validation data."
    )
    if study.target is not None:
        text += (
            f" Rounds to {study.target:g}: the first round whose {study.window}-round mean meets it, median over seeds; a seed that never "
            "did counts as later than its last round, so '>100' means that the median seed did not get there in 100."
        )
    return text


def results_as_text(study: Study, figures: tuple[MethodFigures, ...]) -> list[dict[str, str]]:
    """The same results for a terminal: one dict of texts a method."""
    rows = []
    for method in figures:
        cells = {"method": method.method.label, "seeds": str(len(method.runs))}
        for name in ("final", "tail", "best"):
            cells[heading(BY_NAME[name], study)[0]] = _with_note(_estimate(method, BY_NAME[name]))
        if any(other.baseline is not None for other in figures):
            paired = method.baseline is not None
            cells["minus FedAvg"] = _with_note(_difference(study, method)) if paired else NOTHING
            cells[f"last-{study.last} minus FedAvg's"] = _with_note(_difference(study, method, tail=True)) if paired else NOTHING
        if study.target is not None:
            cells[heading(BY_NAME["target_round"], study)[0]] = _with_note(_target(method, BY_NAME["target_round"]))
        cells["worst tenth"] = _estimate(method, BY_NAME["worst_tenth"]).text
        for name in ("gradients", "bytes_up", "bytes_down", "seconds", "refused", "absent"):
            cells[BY_NAME[name].words] = _estimate(method, BY_NAME[name], plain=True).text
        rows.append(cells)
    return rows


def _with_note(cell: Cell) -> str:
    return f"{cell.text} ({cell.note})" if cell.note else cell.text
