"""Print results; after a red one, name what leads to its cause."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.report.summary import Row
    from serve_eval.schema import Comparison, Report
    from serve_eval.workflows.diagnose.leads import Leads


def draw_report(
    report: Report, out_dir: Path, leads: Sequence[Row], *, verbose: bool = False
) -> None:
    """Print the summary of a run; with `verbose`, the details below it.

    `leads` are the rows that lead to the cause of a red run. A quiet command prints no warnings,
    but that its answers are old.
    """
    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
    from serve_eval.report.summary import print_summary
    from serve_eval.report.terminal import render

    tell_old_answers(describe_old_answers(report.warnings))
    draw(lambda console: print_summary(report, out_dir, console, leads))
    if verbose:
        emit("\n")
        draw(lambda console: render(report, out_dir, console))


def draw_comparison(comparison: Comparison, out_dir: Path, leads: Sequence[Row]) -> None:
    """Print the result of a comparison. `leads` are as in `draw_report`."""
    from serve_eval.cli._streams import draw
    from serve_eval.evaluation.steps.nothing_asked import describe_old_answers
    from serve_eval.workflows.compare.text import render

    tell_old_answers(describe_old_answers(comparison.warnings))
    draw(lambda console: render(comparison, out_dir, console, leads))


def tell_old_answers(old: str) -> None:
    """Print the notice that answers are old, if a quiet command would print no warning of it."""
    from serve_eval.cli._streams import emit, is_quiet

    if old and is_quiet():
        emit(f"{old}\n")


class RedResult:
    """Explains a result if it is red. The answers in its folder are read once, if at all."""

    def __init__(self, out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> None:
        from serve_eval.verdicts.exit_code import FAIL

        self._folder, self._include_path = out_dir, include_path
        self._red = exit_code == FAIL

    @cached_property
    def leads(self) -> Leads:
        """The causes and slices to print; none if the result is not red or cannot be read."""
        from serve_eval.workflows.diagnose.leads import Leads

        if not self._red:
            return Leads()

        from serve_eval.errors import RunFolderError
        from serve_eval.workflows.diagnose.causes import find_leads
        from serve_eval.workflows.diagnose.read_folder import read_folder

        try:
            return find_leads(read_folder(self._folder, self._include_path))
        except RunFolderError:
            return Leads()


def fail_undecided(
    result: Report | Comparison, code: int, *, strict: bool, most: float | None = None
) -> int:
    """Return the exit code: under `strict`, 1 for a PASS that decides nothing, after its reason."""
    from serve_eval.verdicts.exit_code import FAIL, PASS

    if not strict or code != PASS:
        return code

    from serve_eval.cli._streams import say
    from serve_eval.report.deciding import describe_undecided

    if not (reason := describe_undecided(result, most)):
        return code
    say(f"--strict: {reason}")
    return FAIL
