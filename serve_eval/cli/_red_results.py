"""Print results; after a red one, name the slice that lost score."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.schema import Comparison, Report


def draw_report(
    report: Report, out_dir: Path, slices: Sequence[str], *, verbose: bool = False
) -> None:
    """Print the summary of a run; with `verbose`, the details below it.

    `slices` are sentences about where a red run lost its score.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.report.summary import print_summary
    from serve_eval.report.terminal import render

    draw(lambda console: print_summary(report, out_dir, console, slices))
    if verbose:
        emit("\n")
        draw(lambda console: render(report, out_dir, console))


def draw_comparison(comparison: Comparison, out_dir: Path, slices: Sequence[str]) -> None:
    """Print the result of a comparison. `slices` are as in `draw_report`."""
    from serve_eval.cli._streams import draw
    from serve_eval.workflows.compare.text import render

    draw(lambda console: render(comparison, out_dir, console, slices))


def find_causes(out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> dict[str, str]:
    """Return the likeliest cause of a red result, by task."""
    from serve_eval.verdicts.exit_code import FAIL

    if exit_code != FAIL:
        return {}
    from serve_eval.workflows.diagnose import causes

    return causes.find_causes(out_dir, include_path=include_path)


def find_slices(out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> list[str]:
    """Return sentences about where a red result lost its score."""
    from serve_eval.verdicts.exit_code import FAIL

    if exit_code != FAIL:
        return []
    from serve_eval.workflows.diagnose.story import name_slices

    return list(name_slices(out_dir, include_path=include_path))
