"""Write annotations of GitHub Actions, which it shows on the page of a job. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.report.ci.ci_result import CiResult, CiState
from serve_eval.report.text import clean

MOST = 10
"""GitHub shows at most this number of annotations of a step."""
_LEVELS = {CiState.FAILURE: "error", CiState.ERROR: "error", CiState.SKIPPED: "warning"}


def list_annotations(result: CiResult) -> Iterator[str]:
    """Yield a line for each test that did not pass, the failures first."""
    bad = sorted(
        (case for case in result.cases if case.state is not CiState.PASSED),
        key=lambda case: [*_LEVELS].index(case.state),
    )
    for case in bad[:MOST]:
        title = _escape(f"serve-eval: {case.name}").replace(":", "%3A").replace(",", "%2C")
        yield f"::{_LEVELS[case.state]} title={title}::{_escape(case.message)}"


def _escape(text: str) -> str:
    """Return a text without characters that would end a workflow command or begin another one."""
    flat = clean(text).replace("%", "%25")
    return flat.replace("\r", "%0D").replace("\n", "%0A")
