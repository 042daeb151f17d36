"""The measures of runs in the summary, the CSV and the page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedaccord.report import summary, write_report
from fedaccord.report.csv import landscape_csv
from fedaccord.report.groups import study
from fedaccord.report.html import flatness
from fedaccord.report.quantities import measure
from fedaccord.report.view import Section

Run = Callable[..., Any]


def measures(scale: float = 1.0, round: int = 3, **other: Any) -> dict[str, Any]:
    at = [-1.0, -0.5, 0.0, 0.5, 1.0]
    slice_ = {"at": at, "loss": [0.5 + scale * a * a for a in at]}
    grid = {"at": at, "loss": [[0.5 + scale * (a * a + b * b) for a in at] for b in at]}
    figures = {"eigenvalue": 10 * scale, "eigenvalue_ratio": 2.0, "trace": 100 * scale, "sam_gap": 0.05 * scale, "random_rise": 1e-5}
    return {"round": round, "seed": 0, "examples": 1000, "asked": 1000, "rho": 0.1, **figures, "slice": slice_, "grid": grid} | {
        "reasons": {},
        **other,
    }


def of(run: Run, algorithm: str, seed: int, found: dict[str, Any]) -> Any:
    return replace(run(algorithm, seed), measures=found)


def section_of(records: list[Any]) -> Section:
    chosen = study(records)
    return flatness(chosen, measure(chosen))


def drawn(records: list[Any]) -> list[str]:
    """What each picture tells those who cannot see it, or why there is none."""
    return [picture.alt or picture.missing for picture in section_of(records).pictures]


def note_of(records: list[Any]) -> str:
    return section_of(records).tables[0].note


def test_measures_are_averaged_over_seeds_with_their_interval(run: Run, tmp_path: Path) -> None:
    records = [of(run, "fedavg", seed, measures(scale)) for seed, scale in enumerate((1.0, 2.0, 3.0))]
    (row,) = summary(records)
    assert row["eigenvalue"]["mean"] == 20.0 and row["eigenvalue"]["n"] == 3
    assert row["eigenvalue"]["high"] == pytest.approx(20 + 4.302652729749464 * 10 / 3**0.5)
    assert row["eigenvalue"]["by_seed"] == {"0": 10.0, "1": 20.0, "2": 30.0}
    text = write_report(records, tmp_path / "r.html").html.read_text(encoding="utf-8")
    cell = re.search(r'<data value="([\d.]+)" data-quantity="eigenvalue" [^>]*>([^<]*)</data>', text)
    assert cell is not None and float(cell[1]) == 20.0 and cell[2] == "20 [−4.84, 44.8]"
    assert 'id="loss-slice"' in text and 'id="loss-contours-0"' in text
    with (tmp_path / "r.summary.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["sam_gap"] == repr(row["sam_gap"]["mean"])


def test_the_slices_are_overlaid_and_each_method_has_its_contours(run: Run) -> None:
    records = [of(run, "fedavg", 0, measures(1.0)), of(run, "fedsam", 0, measures(4.0))]
    slices, first, second = section_of(records).pictures
    assert "FedAvg is 0.5 at its lowest and 1.5 at its highest; FedSAM is 0.5 at its lowest and 4.5 at its highest" in slices.alt
    assert [label for _, label in slices.legend] == ["FedAvg", "FedSAM"]
    assert "The loss goes from 0.5 to 2.5;" in first.alt and "The loss goes from 0.5 to 8.5;" in second.alt
    assert first.svg is not None and second.svg is not None
    shown = [re.findall(r"<text[^>]*>(\d[\d.]*)</text>", str(picture.svg)) for picture in (first, second)]
    assert set(shown[0]) & set(shown[1]), "contours at the same losses"
    points = list(csv.DictReader(io.StringIO(landscape_csv(study(records)))))
    assert len(points) == 2 * (5 + 25)
    corner = next(point for point in points if (point["algorithm"], point["a"], point["b"]) == ("fedsam", "-1", "1"))
    assert float(corner["loss"]) == 8.5


def test_a_slice_is_the_mean_over_seeds_at_the_places_that_all_have(run: Run) -> None:
    gaps = measures(3.0)
    gaps["slice"]["loss"][0] = gaps["grid"]["loss"][0][0] = None
    slices, contours = drawn([of(run, "fedavg", 0, measures(1.0)), of(run, "fedavg", 1, gaps)])
    assert "FedAvg is 0.5 at its lowest and 2.5 at its highest" in slices
    assert "seed 0" in contours
    _, contours = drawn([of(run, "fedavg", 1, gaps)])
    assert "from 0.5 to 6.5" in contours


def test_without_measures_there_is_no_such_section(run: Run, tmp_path: Path) -> None:
    records = [run("fedavg"), run("fedsam")]
    paths = write_report(records, tmp_path / "r.html")
    assert 'id="flatness"' not in paths.html.read_text(encoding="utf-8")
    assert paths.landscape.read_text() == "method,algorithm,seed,run,a,b,loss\n"
    row, _ = summary(records)
    assert row["sam_gap"]["mean"] is None and row["sam_gap"]["reason"] == "not measured"


def test_a_method_that_was_not_measured_says_so_beside_one_that_was(run: Run) -> None:
    records = [of(run, "fedavg", 0, measures()), run("fedsam"), of(run, "fedsmoo", 0, measures(round=2))]
    assert drawn(records)[2:] == ["not measured.", "measured at round 2, before the run's end."]
    assert [row["trace"]["mean"] for row in summary(records)] == [100.0, None, None]


def test_a_null_keeps_its_reason(run: Run) -> None:
    broken = measures(sam_gap=None, reasons={"sam_gap": "the gradient is zero", "slice": "no filter"}, slice=None, grid=None)
    (row,) = section_of([of(run, "fedavg", 0, broken)]).tables[0].rows
    assert [cell.note for cell in row if cell.quantity == "sam_gap"] == ["the gradient is zero"]
    assert drawn([of(run, "fedavg", 0, broken)]) == ["no filter.", "no filter."]


def test_runs_that_were_measured_differently_carry_a_warning_and_stay_one_method(run: Run) -> None:
    records = [of(run, "fedavg", 0, measures()), replace(run("fedavg", 1, measures={"rho": 0.5}), measures=measures(rho=0.5))]
    assert "measured in different ways" in note_of(records) and "ρ = 0.1, 0.5;" in note_of(records)
    assert len(summary(records)) == 1
    same = [of(run, "fedavg", 0, measures()), of(run, "fedavg", 1, measures(examples=998))]  # the seed's clients hold a little less
    assert "measured in different ways" not in note_of(same) and "998–1,000 training examples" in note_of(same)


def test_a_flat_loss_makes_no_contours_and_no_error(run: Run) -> None:
    assert drawn([of(run, "fedavg", 0, measures(0.0))])[1] == "No two points of the grid have different, finite losses."
