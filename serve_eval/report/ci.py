"""Tell CI systems what a command found: a JUnit file, a summary in Markdown, annotations.

The file follows the schema that Jenkins, GitLab and pytest share: `testsuites`, a `testsuite` for
each run, and a `testcase` with at most one of `failure`, `error` and `skipped`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serve_eval.report.ci_result import CiCase, CiResult, CiState, CiSuite, CiTable, OneLine
from serve_eval.report.text import clean

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
    line = OneLine(outcome, called, figures="no result", cause=cause, sure=True, notice=notice)
    case = CiCase(
        command,
        command,
        state=CiState.ERROR,
        line=line,
        details=[*message.splitlines(), *hint.splitlines()],
    )
    return CiResult(
        notice=notice,
        title=f"serve-eval {called}",
        outcome=outcome,
        suites=[CiSuite(f"serve-eval {command}", [case])],
        table=CiTable(columns=(), rows=()),
        notes=[one for one in (message, hint) if one],
        line=line,
    )


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


MOST_CASES = 20
"""Cases that are explained below the table at most."""
MOST_CHARACTERS = 600
"""Characters of a message at most, so that a summary stays below the limits of CI systems."""
_LINE_MARKUP = re.compile(r"([\\`*{}<>|~@$&#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|\](?=[(\[:]))")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~@!$&])")


def write_markdown(result: CiResult) -> str:
    """Return the line of the result, a table, what did not pass and why, and next commands."""
    return "\n".join(_lines(result)) + "\n"


def _lines(result: CiResult) -> Iterator[str]:
    yield escape_line(result.said)
    yield ""
    yield f"### {escape_text(result.outcome)}: {escape_text(result.title)}"
    yield ""
    if result.table.rows:
        yield _write_row([escape_text(one) for one in result.table.columns])
        yield _write_row(["---"] * len(result.table.columns))
        for verdict, *cells in result.table.rows:
            yield _write_row([f"**{escape_text(verdict)}**", *map(escape_text, cells)])
        yield ""
    if result.grid:
        yield from (*result.grid, "")
    bad = [
        case
        for case in result.cases
        if case.state is not CiState.PASSED and case.said != result.said and not case.in_table
    ]
    yield from map(_explain, bad[:MOST_CASES])
    if len(bad) > MOST_CASES:
        yield f"* and {len(bad) - MOST_CASES} more in junit.xml"
    for case in result.cases:
        name = escape_text(case.name)
        yield from (f"* **{name}**: warning: {escape_text(one)}" for one in case.remarks)
    yield from (f"* {escape_text(note)}" for note in result.notes)
    if result.commands:
        yield from ("", *write_code_block(result.commands))


def write_code_block(commands: Sequence[str]) -> list[str]:
    """Return a block of code with these commands, whose fence is longer than any within it."""
    shown = [clean(command) for command in commands]
    longest = max((len(run) for one in shown for run in re.findall("`+", one)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *shown, fence]


def _explain(case: CiCase) -> str:
    return f"* **{escape_text(case.name)}**: {escape_text(case.said)}"


def _write_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape_line(text: str) -> str:
    """Return a text on one line that Markdown shows as it is.

    Marks that change nothing where they stand are not escaped, so that most lines are the same in
    the source: an underscore within a word, a bracket that begins no link.
    """
    return _LINE_MARKUP.sub(r"\\\1", " ".join(clean(text).split()))


def escape_text(text: str) -> str:
    """Return a text on one line that Markdown shows as it is, shortened at its end."""
    flat = " ".join(clean(text).split())
    if len(flat) > MOST_CHARACTERS:
        flat = f"{flat[: MOST_CHARACTERS - 3]}..."
    return _MARKUP.sub(r"\\\1", flat)


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


_JOB_URLS = ("CI_JOB_URL", "BUILD_URL")
"""Variables of GitLab and Jenkins with the address of the job."""


def is_github(environ: Mapping[str, str]) -> bool:
    """Return True in a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def find_place(folder: Path | None, environ: Mapping[str, str]) -> str:
    """Return the address of the CI job, or else the folder of the result, if there is one."""
    if is_github(environ):
        server, repository, run = (
            environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
        )
        if server and repository and run:
            return f"{server}/{repository}/actions/runs/{run}"
    found = next((url for name in _JOB_URLS if (url := environ.get(name, ""))), "")
    if found.startswith(("http://", "https://")):
        return found
    return str(folder) if folder is not None and folder.exists() else ""


def add_to_job_summary(file: str, text: str) -> None:
    """Append Markdown to the summary of a GitHub job, with halves of surrogate pairs escaped.

    The file belongs to GitHub. Raises OSError.
    """
    with Path(file).open("ab") as out:
        out.write(f"{text}\n".encode(errors="backslashreplace"))
