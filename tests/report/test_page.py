"""The file itself: self-contained, escaped, equal to its CSV, and whole in a real browser."""

from __future__ import annotations

import csv
import html
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fedaccord.core.errors import StorageError
from fedaccord.report import ReportPaths, write_report

Run = Callable[..., Any]
HOSTILE = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>$\\frac{"


class Page(HTMLParser):
    """What the tests ask of a page: its elements with their attributes, its figures, its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.figures: list[tuple[dict[str, str], str]] = []
        self.text = ""
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag == "data":
            self.figures.append((found, ""))
        if tag not in ("meta", "img", "br", "input", "link"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside[-1] == "data":
            found, text = self.figures[-1]
            self.figures[-1] = found, text + data
        if self.inside and self.inside[-1] not in ("script", "style"):
            self.text += data


@pytest.fixture(scope="module")
def report(real_looking: list[Any], tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    return write_report(real_looking, tmp_path_factory.mktemp("report") / "report.html", target=0.5)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def check_figures(page: Page, summary: Path) -> int:
    """Every named figure of the page is the CSV's, and its text is that number rounded."""
    rows = {(row["method"], row["seed"]): row for row in rows_of(summary)}
    checked = 0
    for attributes, text in page.figures:
        if "data-quantity" not in attributes:
            continue
        exact = rows[attributes["data-method"], attributes["data-seed"]][attributes["data-quantity"]]
        assert (attributes["value"] == "") == (exact == ""), attributes
        if exact:
            assert float(attributes["value"]) == float(exact), attributes
            checked += 1
        if match := re.fullmatch(r"0\.\d{3}", text.split(" ")[0]):
            assert float(match[0]) == pytest.approx(float(exact), abs=0.0005001)
    return checked


def outside(page: Page) -> list[tuple[str, str]]:
    """Whatever a browser would fetch: sources and references that are neither data nor a place in the page, but for plain links."""
    found = []
    for tag, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data", "poster", "action"):
            value = attributes.get(name, "")
            if value and not value.startswith(("data:", "#")) and not (tag == "a" and "://" not in value):
                found.append((tag, value))
    return found


def test_the_page_needs_no_other_file(report: ReportPaths) -> None:
    text = report.html.read_text(encoding="utf-8")
    page = Page(text)
    assert outside(page) == []
    assert not re.search(r"@import|url\((?!#|&quot;#)", text)
    assert [tag for tag, _ in page.elements if tag in ("link", "iframe", "object", "embed", "base")] == []
    assert any("default-src 'none'" in attributes.get("content", "") for tag, attributes in page.elements if tag == "meta")


def test_the_figures_of_the_page_are_those_of_the_csv(report: ReportPaths) -> None:
    assert check_figures(Page(report.html.read_text(encoding="utf-8")), report.summary) > 80


def test_the_summary_can_be_recomputed_from_the_rounds_and_the_clients(report: ReportPaths) -> None:
    rounds, clients = rows_of(report.rounds), rows_of(report.clients)
    for row in (row for row in rows_of(report.summary) if row["level"] == "seed"):
        of_run = [line for line in rounds if (line["method"], line["seed"]) == (row["method"], row["seed"])]
        last = max(of_run, key=lambda line: int(line["round"]))
        assert float(row["final"]) == float(last["test_accuracy"])
        assert float(row["gradients"]) == float(last["gradients_total"])
        scores = [
            (float(line["metric_accuracy"]), int(line["num_examples"]))
            for line in clients
            if (line["method"], line["seed"], line["kind"]) == (row["method"], row["seed"], "evaluate") and line["metric_accuracy"]
        ]
        assert float(row["clients_mean"]) == pytest.approx(sum(score for score, _ in scores) / len(scores), abs=1e-12)
        by_size = sum(score * size for score, size in scores) / sum(size for _, size in scores)
        assert float(row["clients_mean_by_size"]) == pytest.approx(by_size, abs=1e-12)
        assert float(row["clients_mean"]) != pytest.approx(float(row["clients_mean_by_size"]), abs=1e-6)


def test_the_same_runs_give_the_same_bytes(real_looking: list[Any], report: ReportPaths, tmp_path: Path) -> None:
    again = write_report(real_looking, tmp_path / "report.html", target=0.5)
    assert again.html.read_bytes() == report.html.read_bytes()


def test_every_picture_has_words_for_those_who_cannot_see_it(report: ReportPaths) -> None:
    pictures = [attributes for tag, attributes in Page(report.html.read_text(encoding="utf-8")).elements if tag == "svg"]
    described = [attributes["aria-label"] for attributes in pictures if attributes.get("role") == "img"]
    assert len(described) > 12 and all(len(label) > 30 for label in described)
    assert all(attributes.get("aria-hidden") == "true" for attributes in pictures if attributes.get("role") != "img")


def test_refusals_absences_and_missing_scores_are_shown_with_their_reasons(report: ReportPaths) -> None:
    text = Page(report.html.read_text(encoding="utf-8")).text
    assert "E101 3 NaN in 'fc2.weight'" in text
    assert "no held-out examples" in text
    assert "By reason: non_finite" in text


def test_alerts_are_counted_by_kind_and_shown_as_they_were_told_last(run: Run, tmp_path: Path) -> None:
    base = run("fedavg", 0, scores=[0.5, None])
    alerted = replace(base, rounds=[line | {"alerts": [f"radius jumped to {line['round']}.5"]} for line in base.rounds])
    paths = write_report([alerted], tmp_path / "r.html")
    text = Page(paths.html.read_text(encoding="utf-8")).text
    assert re.search(r"FedAvg\s*0\s*3\s*1, 2, 3\s*radius jumped to 3\.5", text)
    assert "radius jumped to 2.5" in paths.rounds.read_text(encoding="utf-8")
    assert "Alerts" not in Page(write_report([base], tmp_path / "r.html").html.read_text(encoding="utf-8")).text


def test_settings_are_shown_with_where_they_came_from(run: Run, tmp_path: Path) -> None:
    text = Page(write_report([run("fedavg")], tmp_path / "r.html").html.read_text(encoding="utf-8")).text
    assert re.search(r"local\.lr\s*0\.1\s*FedAvg\s*command line", text)


def hostile_record(run: Run) -> Any:
    base = run("fedavg", 0, scores=[0.5, None], settings={"note": HOSTILE})
    rounds = [line | {"refused": [{"client": HOSTILE, "code": "E101", "reason": "non_finite", "message": HOSTILE}]} for line in base.rounds]
    rounds = [line | {"alerts": [HOSTILE]} for line in rounds]
    clients = [row | {"client": HOSTILE, "reason": HOSTILE, "signals": {HOSTILE: 0.1}} for row in base.clients]
    partition = base.partition | {"class_names": [HOSTILE, "=cmd|' /C calc'!A0"], "scheme": HOSTILE, "notes": [HOSTILE]}
    return replace(base, rounds=rounds, clients=clients, partition=partition, folder=Path("runs") / HOSTILE.replace("/", "_"))


def test_names_that_are_scripts_are_shown_as_text(run: Run, tmp_path: Path) -> None:
    base = hostile_record(run)
    other = replace(base, experiment=base.experiment | {"algorithm": {"name": HOSTILE}})
    paths = write_report([base, other], tmp_path / "r.html", title=HOSTILE)
    page = Page(paths.html.read_text(encoding="utf-8"))
    assert [attributes for tag, attributes in page.elements if tag == "img"] == []
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert outside(page) == []
    assert HOSTILE in page.text


def test_a_cell_that_a_spreadsheet_would_run_is_made_text(run: Run, tmp_path: Path) -> None:
    base = run("=cmd|' /C calc'!A0")
    cells = [cell for row in rows_of(write_report([base], tmp_path / "r.html").summary) for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith("=")]


def test_one_seed_is_reported_without_an_interval(run: Run, tmp_path: Path) -> None:
    paths = write_report([run("fedavg"), run("fedsmoo")], tmp_path / "r.html")
    text = Page(paths.html.read_text(encoding="utf-8")).text
    assert "One seed only" in text
    row = next(row for row in rows_of(paths.summary) if row["level"] == "method")
    assert (row["final_low"], row["final_n"]) == ("", "1")


def test_a_target_that_nobody_reached_is_shown_as_never(run: Run, tmp_path: Path) -> None:
    page = Page(write_report([run("fedavg", seed, [0.5] * 8) for seed in (0, 1)], tmp_path / "r.html", target=0.9).html.read_text("utf-8"))
    shown = [text for attributes, text in page.figures if attributes.get("data-quantity") == "target_round"]
    assert {">8", "never"} == set(shown)
    assert "never in 2 of 2 seeds" in page.text


def test_runs_with_nothing_but_nulls_still_make_a_page_that_says_why(run: Run, alter: Callable[..., Any], tmp_path: Path) -> None:
    def empty(line: dict[str, Any]) -> None:
        gone = ("train_loss", "update_norm", "drift", "pairwise_cosine", "gradients", "bytes_up", "bytes_down", "seconds", "lr")
        line.update(dict.fromkeys(gone))
        line.update(cohort=[], accepted=[], test=None, test_reason="the test set is empty", model_kept=True, reason="no client had data")

    base = replace(alter(run("fedavg"), empty), clients=[], partition={}, provenance={}, sources={})
    text = Page(write_report([base], tmp_path / "r.html", target=0.5).html.read_text(encoding="utf-8")).text
    assert "the test set is empty" in text and "no client had data" in text
    assert "nan" not in re.sub(r"finance|nano", "", text.lower())


def test_a_run_without_any_round_still_makes_a_page(run: Run, tmp_path: Path) -> None:
    base = replace(run("fedavg"), rounds=[], clients=[], status={"state": "failed", "round": 0, "rounds": 3, "error": {"code": "E301"}})
    assert "no round was finished" in write_report([base], tmp_path / "r.html").html.read_text(encoding="utf-8")


def test_text_clients_labels_that_are_not_classes_and_other_scripts_draw(run: Run, tmp_path: Path) -> None:
    base = run("fedavg")
    clients = [row | {"client": f"病院 {row['client']}"} for row in base.clients]
    rounds = [line | {"cohort": ["病院 0", "病院 1"], "accepted": ["病院 0"], "absent": ["病院 1"]} for line in base.rounds]
    records = [
        replace(base, clients=clients, rounds=rounds, partition=base.partition | {"class_names": ["猫", "$\\frac$"]}),
        replace(run("fedavg", 1), partition=base.partition | {"scheme": "ByTarget()", "label_counts": None}),
    ]
    text = write_report(records, tmp_path / "r.html").html.read_text(encoding="utf-8")
    assert "sizes only" in text
    assert "猫" in text and "$\\frac$" in text


def test_a_large_population_is_drawn_as_a_sample_and_says_so(run: Run, tmp_path: Path) -> None:
    partition = {"scheme": "IID()", "clients": 5000, "sizes": [4] * 5000, "label_counts": [[2, 2]] * 5000}
    text = write_report([replace(run("fedavg"), partition=partition)], tmp_path / "r.html").html.read_text(encoding="utf-8")
    assert "200 of 5000 clients are drawn" in text
    assert len(text) < 2_000_000


def test_a_folder_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"E323.*file"):
        write_report([run("fedavg")], tmp_path / "file" / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def browse(chromium: str, page: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The page in headless Chromium: its document after scripts on stdout, its console on stderr."""
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update"
    command = [chromium, *quiet.split(), "--disable-sync", f"--user-data-dir={profile}", "--enable-logging=stderr", "--dump-dom", *options]
    return subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)


def console(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_loads_the_page_without_complaint_and_shows_the_figures_of_the_csv(
    program: Callable[[str], str], report: ReportPaths, tmp_path: Path
) -> None:
    result = browse(program("chromium"), report.html, tmp_path)
    assert console(result) == []
    page = Page(result.stdout)
    assert check_figures(page, report.summary) > 80
    assert sum(tag == "button" for tag, _ in page.elements) > 20, "the script that sorts tables did not run"
    assert "FedSMOO ends" in page.text


def test_a_browser_runs_no_script_out_of_a_name(program: Callable[[str], str], run: Run, tmp_path: Path) -> None:
    paths = write_report([hostile_record(run)], tmp_path / "r.html", title=HOSTILE)
    result = browse(program("chromium"), paths.html, tmp_path / "profile")
    assert console(result) == []
    assert html.escape(HOSTILE, quote=False) in result.stdout


def test_a_browser_on_a_telephone_does_not_scroll_sideways(program: Callable[[str], str], report: ReportPaths, tmp_path: Path) -> None:
    probe = "<script>document.title = document.documentElement.scrollWidth - document.documentElement.clientWidth</script></body>"
    text = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", report.html.read_text(encoding="utf-8"))
    narrow = tmp_path / "narrow.html"
    narrow.write_text(text.replace("</body>", probe), encoding="utf-8")
    result = browse(program("chromium"), narrow, tmp_path / "profile", "--window-size=500,900")
    found = re.search(r"<title>(-?\d+)</title>", result.stdout)
    assert found is not None and int(found[1]) <= 0
