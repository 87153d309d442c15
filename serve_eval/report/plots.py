"""Draw panels of lines into a file, in the format of its suffix. Needs the extra `plots`.

Drawing needs no display. The same lines give the same bytes, without a date or random ids.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.processes.limited import run_limited
from serve_eval.report.text import clean
from serve_eval.whole_file import write_named_file

FORMATS = (".svg", ".png", ".pdf")
LIMIT_S, MEMORY_BYTES = 120.0, 4 << 30
"""Time and memory of the process that draws. The first one on a machine lists its fonts."""
_SCRIPT = Path(__file__).with_name("plot_script.py")


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
    """Draw panels below each other, in a process of its own.

    Raises PlanError if they cannot be drawn, or the file not written.
    """
    check_plot(path)
    kind = path.suffix.lower().removeprefix(".")
    given = {"kind": kind, "panels": [_describe(one) for one in panels]}
    ended = run_limited(
        _SCRIPT, json.dumps(given).encode(), limit_s=LIMIT_S, memory_bytes=MEMORY_BYTES
    )
    if ended.why:
        raise PlanError(f"--plot {path}: the process that draws failed, {ended.why}")
    try:
        write_named_file(path, ended.written)
    except OSError as error:
        raise PlanError(f"--plot {path}: cannot be written: {error.strerror}") from error


def _describe(panel: Panel) -> dict[str, Any]:
    """Return a panel as JSON, with texts that hold no control characters."""
    return {
        **asdict(panel),
        "title": clean(panel.title),
        "lines": [
            {**asdict(one), "label": clean(one.label), "mark_label": clean(one.mark_label)}
            for one in panel.lines
        ],
        "levels": [{**asdict(one), "label": clean(one.label)} for one in panel.levels],
        "ticks": [[place, clean(text)] for place, text in panel.ticks.items()],
    }
