"""Draw panels of lines into a file, in the format of its suffix. Needs the extra `plots`.

Drawing needs no display. The same lines give the same bytes, without a date or random ids.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import PlanError, install_hint
from serve_eval.report.text import clean
from serve_eval.whole_file import write_named_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")
WIDTH, PANEL_HEIGHT = 8.0, 3.6  # inches
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Colours that colour-blind readers can distinguish."""
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))
"""Dashes that distinguish the lines in print without colour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """A curve. `marked` are positions with a mark; `dots` shows every value."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False
    marked: Sequence[int] = ()
    mark_label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelLine:
    """A straight line across the panel: horizontal, or `upright` at a position of the x axis."""

    label: str
    at: float
    upright: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Lines over one pair of axes, whose labels name the units.

    `ticks` are texts that replace the numbers of the x axis.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[PlotLine]
    levels: Sequence[LevelLine] = ()
    ticks: Mapping[float, str] = field(default_factory=dict)
    y_range: tuple[float, float] | None = None


def check_plot(path: Path) -> None:
    """Raise PlanError if no picture can be drawn into this file. Call this before the work."""
    if path.suffix.lower() not in FORMATS:
        raise PlanError(
            f"--plot {path}: unknown format {path.suffix or 'without a suffix'!r}",
            hint=f"Use a name that ends with one of {', '.join(FORMATS)}.",
        )
    if not path.absolute().parent.is_dir():
        raise PlanError(
            f"--plot {path}: the folder {path.parent} does not exist", hint="Create it first."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise PlanError(
            "--plot needs matplotlib, which is not installed",
            hint=install_hint("plots"),
        )


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Draw panels below each other. Raises PlanError if the file cannot be written."""
    check_plot(path)
    # A backend that a notebook set would be loaded, and may be missing here.
    os.environ["MPLBACKEND"] = "Agg"
    # Below ERROR it logs messages about its font cache and folders.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # Ignore the user's own matplotlibrc.
        matplotlib.rcParams.update(
            {"svg.hashsalt": "serve-eval", "svg.fonttype": "none", "text.parse_math": False}
        )
        # Names in a script that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure = Figure(figsize=(WIDTH, PANEL_HEIGHT * len(panels)), layout="constrained")
        for axes, panel in zip(
            figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
        ):
            _draw(axes, panel)
        kind = path.suffix.lower().removeprefix(".")
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        try:
            drawn = io.BytesIO()
            figure.savefig(drawn, format=kind, dpi=150, metadata=undated)
            write_named_file(path, drawn.getvalue())
        except OSError as error:
            raise PlanError(f"--plot {path}: cannot be written: {error.strerror}") from error


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set_title(clean(panel.title), fontsize=10, loc="left")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    for i, line in enumerate(panel.lines):
        colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
        dots = {"marker": "o", "markersize": 3.5} if line.dots else {}
        axes.plot(line.x, line.y, label=clean(line.label), color=colour, linestyle=dash, **dots)  # type: ignore[arg-type]
        if line.marked:
            x, y = (
                [line.x[place] for place in line.marked],
                [line.y[place] for place in line.marked],
            )
            axes.plot(
                x,
                y,
                label=clean(line.mark_label),
                color=_COLOURS[1],
                marker="X",
                markersize=8,
                linestyle="",
            )
    for i, level in enumerate(panel.levels):
        style = {
            "label": clean(level.label),
            "color": "0.35",
            "linewidth": 1.0,
            "linestyle": _DASHES[1 + i % 4],
        }
        if level.upright:
            axes.axvline(level.at, **style)  # type: ignore[arg-type]
        else:
            axes.axhline(level.at, **style)  # type: ignore[arg-type]
    if panel.ticks:
        axes.set_xticks(list(panel.ticks), list(map(clean, panel.ticks.values())))
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
