"""Say how many runs of a suite were kept, so that old answers are not taken for those of today."""

from __future__ import annotations

from pathlib import Path

from serve_eval.evaluation.session_log import describe_old_answers, find_last_answer, write_notice
from serve_eval.schema import SuiteReport
from serve_eval.storage.file_names import SUITE_RUNS


def describe_old_runs(report: SuiteReport, out_dir: Path) -> str:
    """Return how many runs were not asked, with the time of their last answer; "" if all were."""
    old = _list_old_runs(report)
    at = find_last_answer(out_dir / SUITE_RUNS / name for name in old)
    if not at:
        return ""
    if len(old) == len(report.runs):
        return write_notice(at)
    are = "is" if len(old) == 1 else "are"
    return f"{len(old)} of {len(report.runs)} runs {are} older: last answer {at}"


def describe_each_old_run(report: SuiteReport, out_dir: Path) -> dict[str, str]:
    """Return for each run that was not asked the time of its last answer, in words."""
    old = {name: find_last_answer([out_dir / SUITE_RUNS / name]) for name in _list_old_runs(report)}
    return {name: write_notice(at) for name, at in old.items() if at}


def _list_old_runs(report: SuiteReport) -> list[str]:
    return [run.name for run in report.runs if run.kept or describe_old_answers(run.warnings)]
