"""The page: one file, nothing fetched, readable without scripts, by a screen reader and on paper."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from fedaccord.report import figures as draw
from fedaccord.report import landscape, maps, records_tables, tables, trust_tables
from fedaccord.report.groups import Study
from fedaccord.report.quantities import MethodFigures, measure
from fedaccord.report.source import last_round, measures_of
from fedaccord.report.svg import COLOURS, dashes
from fedaccord.report.view import Page, Section
from fedaccord.report.words import seeds, verdicts

# Sorts a table by the clicked column. The page's policy allows this script by its hash and no other.
SCRIPT = """
document.querySelectorAll('table.sortable').forEach(function (table) {
  table.querySelectorAll('thead th').forEach(function (head, column) {
    var button = document.createElement('button');
    button.type = 'button';
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener('click', function () {
      var up = head.getAttribute('aria-sort') !== 'ascending';
      table.querySelectorAll('thead th').forEach(function (other) { other.removeAttribute('aria-sort'); });
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      var key = function (row) {
        var cell = row.cells[column], data = cell.querySelector('data');
        return data && data.value !== '' ? parseFloat(data.value) : cell.textContent.trim();
      };
      var body = table.tBodies[0], rows = Array.prototype.slice.call(body.rows);
      rows.sort(function (a, b) {
        var x = key(a), y = key(b), numbers = typeof x === 'number' && typeof y === 'number';
        var order = numbers ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return up ? order : -order;
      });
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
});
"""


def render(study: Study, title: str | None, files: tuple[tuple[str, str], ...]) -> str:
    """The whole page as text. Everything that comes from a record is escaped by the template."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    page = compose(study, title, files)
    template = environment.get_template("template.html.jinja")
    return template.render(page=page, script=SCRIPT, script_hash=digest, colours=COLOURS, dash=_dash)


def compose(study: Study, title: str | None, files: tuple[tuple[str, str], ...]) -> Page:
    """What is on the page, in order: the verdict first, then the evidence, then how it was made."""
    figures = measure(study)
    sentences = verdicts(study, figures)
    return Page(
        title=title or _title(study),
        subtitle=_subtitle(study),
        verdicts=tuple((verdict.state, verdict.sentence) for verdict in sentences),
        small_print=_small_print(study, figures),
        cards=tables.cards(study, figures),
        sections=_sections(study, figures),
        notes=study.notes,
        files=files,
    )


def _sections(study: Study, figures: tuple[MethodFigures, ...]) -> tuple[Section, ...]:
    signals = draw.signals(study)
    main, *further = draw.curves(study)
    sections = [
        Section(
            "results",
            "Results",
            "Lines are means over seeds, bands 95% t intervals where there are two seeds or more. The scale follows the means, so a wide "
            "band may be cut off.",
            (main, draw.differences(study)),
            (tables.results(study, figures), tables.by_seed(study, figures)),
        ),
        Section(
            "curves",
            "Loss and work",
            "Against gradient evaluations, a method that takes two of them a step stands where its work puts it.",
            tuple(further),
        ),
        Section("cost", "Cost", "", (), (tables.cost(study, figures),)),
        Section(
            "fairness",
            "Who is served",
            "The same global model, measured on each client's own held-out examples.",
            (draw.clients_sorted(study),),
            (tables.fairness(study, figures), records_tables.without_score(study)),
        ),
        Section(
            "partition",
            "The data, client by client",
            "What makes the problem hard: how many examples each client has, and of which classes.",
            maps.partition_pictures(study),
            (records_tables.partitions(study),),
        ),
        Section(
            "dynamics",
            "Drift",
            "How far the clients walk from the global model, and whether they walk the same way: a cosine near 0 means that their updates "
            "share no direction.",
            draw.dynamics(study),
        ),
        Section(
            "weights",
            "Who counted for how much",
            "Rows are clients, columns are rounds; an empty cell was not asked. A refused upload has weight 0 and leaves no trace.",
            maps.weight_pictures(study),
            (records_tables.participation(study), records_tables.refusals(study), records_tables.kept_rounds(study)),
        ),
    ]
    if trust_tables.told(study):
        words = "What guard, policy and breaker decided. Who was refused, and why, stands above."
        sections.append(
            Section("trust", "Trust", words, (), (trust_tables.stages(study), trust_tables.events(study), trust_tables.reasons(study)))
        )
    if any(measures_of(run) for run in study.runs):
        sections.append(flatness(study, figures))
    if signals or any(line.get("alerts") for run in study.runs for line in run.rounds):
        words = "What adaptive methods chose in each round, over the clients of all seeds." if signals else ""
        sections.append(Section("signals", "Signals and alerts", words, signals, (records_tables.alerts(study),)))
    sections += [
        Section("settings", "Settings", "", (), (records_tables.settings(study),), folded=True),
        Section("versions", "Versions and hashes", "", (), (records_tables.versions(study),), folded=True),
    ]
    return tuple(sections)


def flatness(study: Study, figures: tuple[MethodFigures, ...]) -> Section:
    """What was measured at the last global models, where it was."""
    return Section(
        "flatness",
        "Flatness",
        "Measured at the last global model on training data pooled from all clients. The slices go along random directions whose "
        "every filter is as long as the model's own (Li et al. 2018): 1 is a step as long as the weights. One seed's methods "
        "share the random draw.",
        landscape.pictures(study),
        (tables.flatness(study, figures),),
    )


def _title(study: Study) -> str:
    names = [method.label for method in study.methods]
    what = ", ".join(names) if len(names) <= 4 else f"{len(names)} methods"
    task = study.runs[0].experiment.get("task")
    name = task.get("name") if isinstance(task, dict) else task
    return f"{what} on {name}" if name else what


def _subtitle(study: Study) -> str:
    schemes = dict.fromkeys(str(run.partition["scheme"]) for run in study.runs if run.partition.get("scheme"))
    clients = sorted({int(run.partition.get("clients") or len(run.partition.get("sizes") or ())) for run in study.runs if run.partition})
    rounds = sorted({last_round(run) for run in study.runs})
    counts = sorted({len(method.runs) for method in study.methods})
    parts = [
        "1 method" if len(study.methods) == 1 else f"{len(study.methods)} methods",
        f"{_span(counts)} {'seed' if counts == [1] else 'seeds'} each",
        f"{_span(rounds)} {'round' if rounds == [1] else 'rounds'}",
    ]
    parts += [f"{_span(clients)} clients"] if clients else []
    parts += list(schemes)[:3]
    if study.metric:
        parts.append(f"test {study.metric} ({'higher' if study.higher_is_better else 'lower'} is better)")
    parts += [f"target {study.target:g}"] if study.target is not None else []
    return " · ".join(parts)


def _small_print(study: Study, figures: tuple[MethodFigures, ...]) -> str:
    """How far the verdict carries: what n is, and what was not corrected for."""
    compared = [method for method in figures if method.baseline is not None and method.difference.n > 0]
    if not compared:
        return ""
    fewest = min(method.difference.n for method in compared)
    text = f"Difference of the final test {study.metric}, paired by seed; brackets are 95% Student-t intervals. "
    if fewest < 2:
        text += "One seed says nothing about chance: run again with several seeds."
    elif fewest < 5:
        text += f"{seeds(fewest).capitalize()} are few: the interval assumes that the differences are roughly normal."
    text += f" A last round alone is noisy: the cards compare the mean of the last {study.last} rounds as well." if study.last > 1 else ""
    if len(compared) > 1 and fewest > 1:
        text += f" {len(compared)} comparisons are made and none is corrected for the others."
    early = sorted({at for method in compared for seed, at in method.compared_at.items() if at != _end(method, seed)})
    if early:
        text += f" Runs of unequal length are compared at the last round that both evaluated (here round {_span(early)})."
    return text


def _end(figures: MethodFigures, seed: int | str) -> int:
    return next(last_round(run.record) for run in figures.runs if run.seed == seed)


def _span(values: list[int]) -> str:
    if not values:
        return "0"
    return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"


def _dash(method: int) -> str:
    return " ".join(f"{length:g}" for length in dashes(method))
