"""Describe a command that ended without a result for CI systems. Pure."""

from __future__ import annotations

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable
from serve_eval.report.one_line import OneLine

UNANSWERED = "REHEARSAL: without servers; this shows nothing about a model"
"""The notice of a rehearsal that ended before the stand-in answered, or on its way."""


def describe_ending(
    command: str, about: str, outcome: str, message: str, hint: str, *, rehearsal: bool = False
) -> CiResult:
    """Return an error, or an interruption, as the result of a command or of its `rehearsal`.

    `about` is what the command is about, such as its arguments.
    """
    called = f"{command} {about}".strip()
    first, _, rest = message.strip().partition("\n")
    # Indented lines are the end of a log, of which the last one says why.
    tail = [one.strip() for one in rest.splitlines() if one.startswith("  ")][-1:]
    more = [one.strip() for one in rest.splitlines() if not one.startswith("  ")]
    told = [part for one in (first, *more) if (part := one.rstrip(":"))]
    cause = ": ".join(filter(None, ("; ".join(told), *tail)))
    notice = UNANSWERED if rehearsal else ""
    line = OneLine(
        outcome=outcome, about=called, figures="no result", cause=cause, sure=True, notice=notice
    )
    case = CiCase(
        group=command,
        name=command,
        state=CiState.ERROR,
        line=line,
        details=[*message.splitlines(), *hint.splitlines()],
    )
    return CiResult(
        notice=notice,
        title=f"serve-eval {called}",
        outcome=outcome,
        suites=[CiSuite(name=f"serve-eval {command}", cases=[case])],
        table=CiTable(columns=(), rows=()),
        notes=[one for one in (message, hint) if one],
        line=line,
    )
