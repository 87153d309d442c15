"""Write a result as a JUnit file, the form in which CI systems show tests. Pure.

The file follows the schema that Jenkins, GitLab and pytest share: `testsuites`, a `testsuite` for
each run, and a `testcase` with at most one of `failure`, `error` and `skipped`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from serve_eval.report.ci.ci_result import CiCase, CiResult, CiState, CiSuite

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPACES = {ord(one): f"&#{ord(one)};" for one in "\t\n\r"}


def write_junit(result: CiResult) -> str:
    """Return the JUnit file of a result."""
    cases, seconds = result.cases, sum(suite.seconds for suite in result.suites)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites name={_quote(_name(result))} {_count(cases)}"
        f" time={_quote(f'{seconds:.3f}')}>",
        *(line for suite in result.suites for line in _write_suite(suite)),
        "</testsuites>",
        "",
    ]
    return "\n".join(lines)


def _name(result: CiResult) -> str:
    return f"{result.notice}: {result.title}" if result.notice else result.title


def _write_suite(suite: CiSuite) -> Iterator[str]:
    yield (
        f"<testsuite name={_quote(suite.name)} hostname={_quote(suite.host)}"
        f" {_count(suite.cases)} time={_quote(f'{suite.seconds:.3f}')}>"
    )
    yield from map(_write_case, suite.cases)
    yield "</testsuite>"


def _count(cases: Sequence[CiCase]) -> str:
    states = [case.state for case in cases]
    return (
        f'tests="{len(cases)}" failures="{states.count(CiState.FAILURE)}"'
        f' errors="{states.count(CiState.ERROR)}" skipped="{states.count(CiState.SKIPPED)}"'
    )


def _write_case(case: CiCase) -> str:
    took = "" if case.seconds is None else f' time="{case.seconds:.3f}"'
    head = f"<testcase classname={_quote(case.group)} name={_quote(case.name)}{took}>"
    known = "".join(
        f"<property name={_quote(name)} value={_quote(value)}/>"
        for name, value in case.properties.items()
    )
    properties = f"<properties>{known}</properties>" if known else ""
    own = [case.said] if case.line is not None or not case.details else []
    said = [*own, *(line for line in case.details if line not in own)]
    details = html.escape(_NOT_XML.sub("", "\n".join(filter(None, said))), quote=False)
    if case.state is CiState.PASSED:
        inner = f"<system-out>{details}</system-out>" if details else ""
    else:
        inner = f"<{case.state} message={_quote(case.said)}>{details}</{case.state}>"
    return f"{head}{properties}{inner}</testcase>"


def _quote(text: str) -> str:
    """Return a text as a quoted attribute, without characters that XML forbids.

    Line ends and tabs are references, since a reader of XML makes plain ones spaces.
    xml.sax.saxutils would do, but imports a client for HTTP.
    """
    return f'"{html.escape(_NOT_XML.sub("", text)).translate(_SPACES)}"'
