"""Make the document of a smoke test: what failed first, and what passed as a number. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State, TextLines
from serve_eval.report.summary.figures import count
from serve_eval.schema import ResultHeader
from serve_eval.storage.story_files import SMOKE
from serve_eval.workflows.smoke.smoke import Smoke

NAMED = 3
"""Failed checks that are named in the line about all of them, at most."""
PASTED = 400
"""Most characters of a request that the first screen has as a command to paste."""
SHOWN = 2000
"""Most characters of a request on a terminal; the page and junit.xml have longer ones."""
_OUTCOMES: Final[dict[CheckOutcome, tuple[str, State, CiState]]] = {
    CheckOutcome.ERROR: ("lost", "fail", CiState.ERROR),
    CheckOutcome.FAIL: ("failed", "fail", CiState.FAILURE),
    CheckOutcome.PASS: ("passed", "pass", CiState.PASSED),
    CheckOutcome.KNOWN: ("known", "warn", CiState.SKIPPED),
    CheckOutcome.UNSUPPORTED: ("unsupported", "warn", CiState.SKIPPED),
}
"""By outcome, in the order in which they are counted: its word, its colour, its state in CI."""
_BAD = (CheckOutcome.ERROR, CheckOutcome.FAIL)
_ORDER = (*_BAD, CheckOutcome.KNOWN, CheckOutcome.UNSUPPORTED, CheckOutcome.PASS)
_UNSKILLED = (
    "questions, passkeys and media test the model: a model without instruction tuning fails them"
    " on a sound server"
)


def make_document(
    done: Smoke, base_url: str, *, started_at: str = "", folder: Path | None = None
) -> Document:
    """Return the document of a smoke test. `folder` holds its file, if it has one."""
    bad = [row for row in done.rows if row.outcome in _BAD]
    lost = next((row for row in bad if row.name == done.died), None)
    first = lost or next(iter(bad), None)
    cause = _explain(done, first)
    conclusion = Conclusion(
        name="smoke test",
        outcome=_judge(done, failed=bool(bad)),
        figures=_count(done),
        counts=_say_cost(done),
        cause=cause,
        statements=list(_describe(done, [row for row in bad if _describe_row(row) != cause])),
    )
    return Document(
        story="smoke",
        command=f"serve-eval smoke {base_url}",
        header=ResultHeader(
            started_at=started_at,
            wall_s=done.seconds,
            model=None if done.deployment is None else done.deployment.model,
            exit_code=done.exit_code,
            rehearsal=done.rehearsal,
        ),
        conclusions=[conclusion],
        endpoint=base_url,
        blocks=list(_list_blocks(done)),
        warnings=[] if done.known is None else list(done.known.list_warnings()),
        commands=_list_commands(done, first),
        suites=_make_suites(done, base_url),
        result=None if folder is None else folder / SMOKE.result,
    )


def _judge(done: Smoke, *, failed: bool) -> str:
    """Return the outcome. One that stopped is an error, a rehearsal decides nothing else."""
    if done.stopped or done.died:
        return "ERROR"
    if done.rehearsal:
        return "INCONCLUSIVE"
    return "FAIL" if failed else "PASS"


def _count(done: Smoke) -> str:
    """Return the number of rows of each outcome, with the names of the few that failed."""
    before = _list_before(done)
    told = [f"the server died during {done.died}"] if done.died else []
    for outcome, (word, _, _) in _OUTCOMES.items():
        rows = [row.name for row in done.rows if row.outcome is outcome]
        if outcome is CheckOutcome.ERROR:  # the sentence above says more
            continue
        named = f" ({', '.join(rows)})" if outcome is CheckOutcome.FAIL else ""
        new = [name for name in rows if name not in before]
        told += [f"{len(new)} {word}{named if len(rows) <= NAMED else ''}"] if new else []
        told += [f"{len(rows) - len(new)} {word} as before"] if len(rows) > len(new) else []
    return ", ".join(told)


def _list_before(done: Smoke) -> Collection[str]:
    return () if done.known is None else done.known.unsupported


def _say_cost(done: Smoke) -> str:
    requests = count(done.requests, "request")
    return f"{requests}, {done.generated} generated tokens, {done.seconds:.1f} s"


def _explain(done: Smoke, first: CheckRow | None) -> str:
    """Return how the server ended, if that is known, else what the first failed check found."""
    if done.died and (known := done.stopped.partition("\n")[0].partition(": ")[2]):
        return known
    if first is None or (done.rehearsal and not done.stopped):
        return done.stopped
    return _describe_row(first)


def _describe_row(row: CheckRow) -> str:
    mark = " (tests the model)" if row.model else ""
    return f"{row.name}: {' '.join(row.told.split())}{mark}"


def _describe(done: Smoke, others: Sequence[CheckRow]) -> Iterator[Statement]:
    """Yield what stands below the line about all: other failures, then what was folded."""
    for row in others:
        yield Statement(label=_OUTCOMES[row.outcome][0], text=_describe_row(row), state="fail")
    if done.stopped and not done.died:
        yield Statement(label="stopped", text=done.stopped)
    for line in done.stopped.splitlines()[1:]:
        yield Statement(label="log", text=line)
    if any(row.model and row.outcome is CheckOutcome.FAIL for row in done.rows):
        yield Statement(label="note", text=_UNSKILLED)
    if known := [row.name for row in done.rows if row.outcome is CheckOutcome.KNOWN]:
        yield Statement(label="known", text=", ".join(known))
    before = _list_before(done)
    lacks = [row.name for row in done.rows if row.outcome is CheckOutcome.UNSUPPORTED]
    new = ", ".join(name for name in lacks if name not in before)
    old = ", ".join(name for name in lacks if name in before)
    if lacks:
        text = "; ".join(filter(None, (new, old and f"as before: {old}")))
        yield Statement(label="lacks", text=text)
    if done.known is not None and done.known.mended:
        text = f"{', '.join(done.known.mended)}; write the file again with --write-known"
        yield Statement(label="mended", text=f"{text} {done.known.file}")


def _list_commands(done: Smoke, first: CheckRow | None) -> list[str]:
    """Return the request that shows the first failure, unless nobody is left to answer it."""
    if first is None or first.curl is None or done.died or len(first.curl) > PASTED:
        return []
    return [first.curl]


def _list_blocks(done: Smoke) -> Iterator[Block]:
    """Yield the table of all checks, failures first, and the requests that show what is missing."""
    rows = sorted(done.rows, key=lambda row: _ORDER.index(row.outcome))
    if rows:
        names = ("outcome", "check", "time (s)", "finding")
        columns = [DataColumn(name=name, number=name == "time (s)") for name in names]
        cells = list(map(_list_cells, rows))
        table = DataTable(title="Checks", columns=columns, rows=cells, caption="Failures first.")
        yield Block(section=table)
    lines, longer = list[str](), list[str]()
    for row in rows:
        if row.curl is None:
            continue
        if len(row.curl) <= SHOWN:
            lines += [f"# {row.name}", row.curl]
            continue
        where = "on the page and with --json or --junit"
        lines.append(f"# {row.name}: {len(row.curl):,} characters, {where}")
        longer += [f"# {row.name}", row.curl]
    for title, part, depth in (
        ("Requests that show what does not pass", lines, Depth.MORE),
        ("Long requests", longer, Depth.PAGE),
    ):
        if part:
            section = TextLines(title=title, lines=part, preformatted=True, closed=True)
            yield Block(section=section, depth=depth)


def _list_cells(row: CheckRow) -> list[DataCell]:
    mark = " (tests the model)" if row.model else ""
    return [
        DataCell(text=row.outcome.value, state=_OUTCOMES[row.outcome][1]),
        DataCell(text=row.name),
        DataCell(text=f"{row.time_s:.2f}", order=row.time_s),
        DataCell(text=f"{' '.join(row.told.split())}{mark}"),
    ]


def _make_suites(done: Smoke, base_url: str) -> list[CiSuite]:
    """Return a case for each row; known failures have a suite of their own."""
    before = _list_before(done)
    known = [row for row in done.rows if row.outcome is CheckOutcome.KNOWN]
    cases = [_make_case(row, before) for row in done.rows if row not in known]
    if done.stopped and not done.died:
        cases.append(
            CiCase(
                group="smoke",
                name="stopped",
                state=CiState.ERROR,
                message=done.stopped,
                in_table=True,
            )
        )
    suites = [CiSuite(name="serve-eval smoke", cases=cases, host=base_url, seconds=done.seconds)]
    if known:
        expected = [_make_case(row, before) for row in known]
        name = "serve-eval smoke: known to fail"
        suites.append(CiSuite(name=name, cases=expected, host=base_url))
    return suites


def _make_case(row: CheckRow, before: Collection[str]) -> CiCase:
    passed, known = row.outcome is CheckOutcome.PASS, row.outcome is CheckOutcome.KNOWN
    return CiCase(
        group="smoke",
        name=row.name,
        state=_OUTCOMES[row.outcome][2],
        message=f"known to fail: {row.told}" if known else row.told,
        details=[row.told] if passed else [row.curl] if row.curl else [],
        seconds=row.time_s,
        expected=known or row.name in before,
        in_table=True,
    )
