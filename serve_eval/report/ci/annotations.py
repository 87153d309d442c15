"""Write annotations of GitHub Actions, which it shows on the page of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.report.ci.ci_result import CiResult, CiState
from serve_eval.report.text import clean

MOST = 10
"""GitHub shows at most this number of annotations of a step."""
_LEVELS = {CiState.FAILURE: "error", CiState.ERROR: "error", CiState.SKIPPED: "warning"}


def list_annotations(result: CiResult) -> Iterator[str]:
    """Yield a line for each test that did not pass, the failures first, then for each remark.

    If none of them says the line of the result, that comes first. What was expected gets none, and
    what was skipped in a result that passed is no warning.
    """
    passed = result.outcome == "PASS"
    levels = {**_LEVELS, CiState.SKIPPED: "notice" if passed else "warning"}
    bad = sorted(
        (case for case in result.cases if case.state is not CiState.PASSED and not case.expected),
        key=lambda case: [*_LEVELS].index(case.state),
    )
    if result.notice:
        yield f"::warning title=serve-eval::{_escape(result.notice)}"
    if bad and not result.notice and all(case.said != result.said for case in bad):
        level = levels[bad[0].state]
        yield f"::{level} title={_escape_title(result.outcome)}::{_escape(result.said)}"
        bad = bad[: MOST - 1]
    for case in bad[:MOST]:
        yield f"::{levels[case.state]} title={_escape_title(case.name)}::{_escape(case.said)}"
    told = [(case.name, one) for case in result.cases for one in case.remarks]
    for name, one in told[: MOST - len(bad[:MOST])]:
        yield f"::warning title={_escape_title(name)}::{_escape(one)}"


def _escape_title(name: str) -> str:
    """Return the title of an annotation about a test."""
    return _escape(f"serve-eval: {name}").replace(":", "%3A").replace(",", "%2C")


def _escape(text: str) -> str:
    """Return a text without characters that would end a workflow command or begin another one."""
    flat = clean(text).replace("%", "%25")
    return flat.replace("\r", "%0D").replace("\n", "%0A")
