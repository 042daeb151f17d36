"""Screens in an experiment's file: by name, or as a table with their fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedaccord as fa
from fedaccord.aggregation.screens import SCREENS
from fedaccord.config import read_settings, runs_of, to_toml
from fedaccord.core.errors import ConfigError


def read(folder: Path, text: str) -> Any:
    path = folder / "experiment.toml"
    path.write_text('task = {name = "digits"}\n' + text)
    (run,) = runs_of(read_settings(path, (), {}), None, None)
    return run


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_a_name_or_a_table_and_is_written_back_as_it_was_read(name: str, tmp_path: Path) -> None:
    run = read(tmp_path, f'[aggregation]\nscreen = "{name}"')
    assert run.experiment.aggregation.screen == SCREENS[name]()
    again = read(tmp_path, "\n".join(to_toml(run.tables).split("\n")).split("[task]")[0] + f'[aggregation.screen]\nname = "{name}"')
    assert again.experiment.aggregation.screen == SCREENS[name]()


def test_a_table_sets_the_fields(tmp_path: Path) -> None:
    def screen(table: str) -> fa.Screen:
        found: fa.Screen = read(tmp_path, f"[aggregation.screen]\n{table}").experiment.aggregation.screen
        return found

    assert screen('name = "trimmed_mean"\nshare = 0.3') == fa.TrimmedMean(0.3)
    assert screen('name = "multi_krum"\nnum_byzantine = 2\nnum_selected = 5') == fa.MultiKrum(2, 5)
    assert screen('name = "foolsgold"\nlast = 650') == fa.FoolsGold(last=650)
    assert screen('name = "rule_guard"\nmax_norm = 4\nchance = 0.01') == fa.RuleGuard(max_norm=4.0, chance=0.01)


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ('name = "trimmed_mean"\nshare = 0.5', "E203"),
        ('name = "rule_guard"\nmin_history = 11', "E203"),
        ('name = "krum"\nshare = 0.1', "E201"),
        ('name = "kurm"', "E205 .*krum"),
    ],
)
def test_what_cannot_be_is_refused(table: str, fault: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=fault):
        read(tmp_path, f"[aggregation.screen]\n{table}")
