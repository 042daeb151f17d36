"""screen.py: what every screen has in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from fedaccord.aggregation.screen import Evidence, Screen, Screening, ScreenState, check_channel
from fedaccord.aggregation.screens import SCREENS
from fedaccord.core.errors import ConfigError


@dataclass(frozen=True)
class ByReport(Screen):
    """Looks at no upload."""

    needs_single_uploads: ClassVar[bool] = False

    def look(self, evidence: Evidence, state: ScreenState) -> Screening:
        return Screening.of(evidence)


@pytest.mark.parametrize("name", sorted(SCREENS.keys() - {"none"}))
def test_a_channel_that_hides_single_uploads_is_refused(name: str) -> None:
    screen = SCREENS[name]()
    check_channel(screen, sums_only=False)
    with pytest.raises(ConfigError, match=f"E208 {type(screen).__name__} looks at single uploads") as caught:
        check_channel(screen, sums_only=True)
    assert caught.value.where == "aggregation.screen"


def test_no_screen_and_those_that_look_at_reports_alone_work_with_any_channel() -> None:
    check_channel(None, sums_only=True)
    check_channel(ByReport(), sums_only=True)
    check_channel(SCREENS["none"](), sums_only=True)


@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_says_what_it_assumes_and_which_paper_it_is_from(name: str) -> None:
    assert len(SCREENS[name].assumes) > 10
    assert "arXiv:" in (SCREENS[name].__doc__ or "") or name in ("rule_guard", "none")
