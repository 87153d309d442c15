"""Plots drawn in the test process, where each warning of matplotlib or its packages is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.report.plots import LevelLine, Panel, PlotLine, check_plot, draw

ODD_NAME = "$cost$_{模型} \x1b[31m<org/m> & 50 %"


def _panel(name: str = "a") -> Panel:
    line = PlotLine(
        label=name, x=[1.0, 2.0, 3.0], y=[3.0, 1.0, 2.0], dots=True, marked=[1], mark_label="alarm"
    )
    levels = [LevelLine(label="limit", at=2.5), LevelLine(label="drop", at=1.5, upright=True)]
    ticks = {1.0: "first", 3.0: "last"}
    return Panel(
        title=name,
        x_label="x (days)",
        y_label="y (points)",
        lines=[line],
        levels=levels,
        ticks=ticks,
    )


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf", ".SVG"])
def test_the_same_panels_give_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        draw(tmp_path / f"{name}{suffix}", [_panel(), _panel("b")])
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


def test_labels_units_and_levels_stand_in_the_picture(tmp_path: Path) -> None:
    draw(tmp_path / "p.svg", [_panel()])
    drawn = (tmp_path / "p.svg").read_text()
    for words in ("x (days)", "y (points)", "limit", "drop", "alarm", "first", "last"):
        assert f">{words}<" in drawn


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_name_is_text_and_never_a_formula(suffix: str, tmp_path: Path) -> None:
    draw(tmp_path / f"p{suffix}", [_panel(ODD_NAME)])
    if suffix == ".svg":
        drawn = (tmp_path / "p.svg").read_text()
        assert "$cost$_{模型} &lt;org/m&gt; &amp; 50 %" in drawn
        assert "\x1b" not in drawn


def test_a_style_of_the_users_own_changes_nothing(tmp_path: Path) -> None:
    import matplotlib

    draw(tmp_path / "plain.svg", [_panel()])
    with matplotlib.rc_context({"font.size": 30.0, "savefig.facecolor": "black"}):
        draw(tmp_path / "styled.svg", [_panel()])
        assert matplotlib.rcParams["font.size"] == 30.0
    assert (tmp_path / "styled.svg").read_bytes() == (tmp_path / "plain.svg").read_bytes()


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(PlanError, match="cannot be written"):
        draw(tmp_path / "folder.svg", [_panel()])
    with pytest.raises(PlanError, match="unknown format") as caught:
        check_plot(tmp_path / "p.gif")
    assert ".svg, .png, .pdf" in caught.value.hint
