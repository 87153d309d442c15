"""Draw panels of lines by matplotlib, in a process of its own: `plots.py` starts it.

It imports nothing of serve-eval. Standard input is one JSON object with the `kind` of file and the
`panels`; standard output is the file.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, PANEL_HEIGHT = 8.0, 3.6  # inches
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Colours that colour-blind readers can distinguish."""
_DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1)))
"""Dashes that distinguish the lines in print without colour."""


def main() -> None:
    """Read the panels, and write the file that shows them."""
    given = json.load(sys.stdin.buffer)
    sys.stdout.buffer.write(draw(given["kind"], given["panels"]))


def draw(kind: str, panels: list[dict[str, Any]]) -> bytes:
    """Return a file of this kind with the panels below each other."""
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
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, dpi=150, metadata=undated)
        return drawn.getvalue()


def _draw(axes: Axes, panel: dict[str, Any]) -> None:
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.set_xlabel(panel["x_label"])
    axes.set_ylabel(panel["y_label"])
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
    for i, line in enumerate(panel["lines"]):
        _draw_line(axes, line, i)
    for i, level in enumerate(panel["levels"]):
        style = {"color": "0.35", "linewidth": 1.0, "linestyle": _DASHES[1 + i % 4]}
        across = axes.axvline if level["upright"] else axes.axhline
        across(level["at"], label=level["label"], **style)  # type: ignore[arg-type]
    if panel["ticks"]:
        places, texts = zip(*panel["ticks"], strict=True)
        axes.set_xticks(places, texts)
    if panel["y_range"] is not None:
        axes.set_ylim(*panel["y_range"])
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)


def _draw_line(axes: Axes, line: dict[str, Any], i: int) -> None:
    colour, dash = _COLOURS[i % len(_COLOURS)], _DASHES[i % len(_DASHES)]
    dots = {"marker": "o", "markersize": 3.5} if line["dots"] else {}
    axes.plot(line["x"], line["y"], label=line["label"], color=colour, linestyle=dash, **dots)  # type: ignore[arg-type]
    if line["marked"]:
        x, y = ([line[axis][place] for place in line["marked"]] for axis in ("x", "y"))
        mark = {"marker": "X", "markersize": 8, "linestyle": ""}
        axes.plot(x, y, label=line["mark_label"], color=_COLOURS[1], **mark)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
