"""Print results; after a red one, name what leads to its cause."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.schema import Comparison, Report
    from serve_eval.workflows.diagnose.causes import Leads


class RedResult:
    """Explains a result if it is red. The answers in its folder are read once, if at all."""

    def __init__(self, out_dir: Path, exit_code: int, include_path: Sequence[str] = ()) -> None:
        from serve_eval.verdicts.exit_code import FAIL

        self._folder, self._include_path = out_dir, include_path
        self._red = exit_code == FAIL

    @cached_property
    def leads(self) -> Leads:
        """The causes and slices to print; none if the result is not red or cannot be read."""
        from serve_eval.workflows.diagnose.causes import Leads

        if not self._red:
            return Leads()

        from serve_eval.errors import RunFolderError
        from serve_eval.workflows.diagnose.causes import find_leads
        from serve_eval.workflows.diagnose.judged import read_folder

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
    from serve_eval.report.task_line import describe_undecided

    if not (reason := describe_undecided(result, most)):
        return code
    say(f"--strict: {reason}")
    return FAIL
