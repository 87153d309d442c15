"""Print results; after a red one, name the slice that lost score."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.schema import Comparison, Report
    from serve_eval.workflows.diagnose.read_folder import ReadFolder


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


class RedResult:
    """Explains a result if it is red. The answers in its folder are read once, if at all."""

    def __init__(self, out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> None:
        from serve_eval.verdicts.exit_code import FAIL

        self._folder, self._include_path = out_dir, include_path
        self._red = exit_code == FAIL

    @cached_property
    def _answers(self) -> ReadFolder:
        from serve_eval.workflows.diagnose.read_folder import read_folder

        return read_folder(self._folder, self._include_path)

    def find_causes(self) -> dict[str, str]:
        """Return the likeliest cause by task; nothing if it is not red or cannot be read.

        The answers are then let go, since a page may come next.
        """
        if not self._red:
            return {}
        from serve_eval.errors import RunFolderError
        from serve_eval.workflows.diagnose.causes import find_causes

        try:
            return find_causes(self._answers)
        except RunFolderError:
            return {}
        finally:
            vars(self).pop("_answers", None)

    def find_slices(self) -> list[str]:
        """Return sentences about where it lost its score; nothing as for `find_causes`."""
        if not self._red:
            return []
        from serve_eval.errors import RunFolderError
        from serve_eval.workflows.diagnose.story import name_slices

        try:
            return list(name_slices(self._answers))
        except RunFolderError:
            return []
