"""Run a smoke test: choose checks, judge their rows, and make its document."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from serve_eval.checks.row import CheckOutcome, CheckRow, SentRequest, curl
from serve_eval.checks.run import choose_checks, run_checks
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.connection import connect, openai_client
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.registry import nearest
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, State, TextLines
from serve_eval.report.summary.figures import count
from serve_eval.schema import Endpoint, Plan, ResultHeader
from serve_eval.storage.story_files import SMOKE
from serve_eval.verdicts.exit_code import FAIL, INFRASTRUCTURE, PASS, went_through
from serve_eval.workflows.smoke.known import (
    Deployment,
    KnownComparison,
    KnownFailures,
    compare_known,
    find_other,
    identify,
    judge_row,
)


def check_required(names: Sequence[str], checks: Sequence[Check]) -> frozenset[str]:
    """Return the names given with --require. Raises PlanError for a check that will not run."""
    known = [check.name for check in checks]
    everywhere = [check.name for check in choose_checks("full")]
    problems = []
    for name in names:
        if name in known:
            continue
        if name in everywhere:
            problems.append(f"--require: {name} is only checked at --level full")
        else:
            problems.append(f"--require: there is no check {name!r}.{nearest(name, known)}")
    if problems:
        raise PlanError(problems)
    return frozenset(names)


def cost(checks: Sequence[Check]) -> str:
    """Return a line with the largest cost that the checks can have."""
    requests, tokens = sum(one.requests for one in checks), sum(one.tokens for one in checks)
    read = sum(one.prompt_tokens for one in checks)
    line = (
        f"{len(checks)} checks send at most {requests} requests with {tokens} generated tokens and"
        f" about {read} prompt tokens, one more short request after each failed check, and use more"
        " tokens if the model thinks"
    )
    full = any(one.name == "long_prompt" for one in checks)
    return (
        f"{line}; one prompt longer than the context, if the context length is known"
        if full
        else line
    )


@freeze
class Smoke:
    """A finished smoke test.

    `stopped` says why checks were left out ("" if none was), and `died` names the check during
    which the server died ("" if it lives). `generated` counts the tokens that the endpoint reports,
    without those of the requests that the package `openai` sends. `known` is set
    if a file of known failures was given. `rehearsal`: the stand-in answered, and nothing was
    judged.
    """

    rows: Sequence[CheckRow]
    exit_code: int
    stopped: str
    requests: int
    generated: int
    seconds: float
    deployment: Deployment | None = None
    known: KnownComparison | None = None
    died: str = ""
    rehearsal: bool = False

    @property
    def counts(self) -> dict[CheckOutcome, int]:
        """The number of rows of each outcome.

        KNOWN stands there only if a file of known failures was given, ERROR if the server died.
        """
        shown = {CheckOutcome.KNOWN: self.known is not None, CheckOutcome.ERROR: bool(self.died)}
        return {
            outcome: sum(row.outcome is outcome for row in self.rows)
            for outcome in CheckOutcome
            if shown.get(outcome, True)
        }


async def smoke(
    session: CheckSession,
    checks: Sequence[Check],
    *,
    needed: Collection[str] = (),
    curl: Callable[[SentRequest], str],
    known: KnownFailures | None = None,
    notify: Callable[[CheckRow], None] = lambda row: None,
) -> Smoke:
    """Run the checks, pass each row to `notify` as soon as it is known, and judge them all."""
    began = time.monotonic()

    def judge(row: CheckRow) -> CheckRow:
        """Return a row as the file has it, unless the file is of another deployment."""
        if known is None or find_other(known.checks, identify(session)):
            return row
        return judge_row(row, known.checks)

    checked = await run_checks(
        session, checks, needed=needed, curl=curl, judge=judge, notify=notify
    )
    rows, here, stopped = checked.rows, identify(session), bool(checked.stopped)
    if checked.died:
        code = INFRASTRUCTURE
    elif session.chat or session.text:
        failed = any(row.outcome is CheckOutcome.FAIL for row in rows)
        code = FAIL if failed or stopped else PASS
    else:
        code = INFRASTRUCTURE
    rehearsal = session.known.rehearsal
    return Smoke(
        rehearsal=rehearsal,
        deployment=here,
        known=(
            None
            if known is None
            else compare_known(rows, known.checks, known.file, here, stopped=stopped)
        ),
        rows=rows,
        exit_code=went_through(code) if rehearsal else code,
        stopped=checked.stopped,
        died=checked.died,
        requests=session.requests,
        generated=session.generated,
        seconds=time.monotonic() - began,
    )


async def smoke_endpoint(
    plan: Plan,
    checks: Sequence[Check],
    *,
    needed: Collection[str] = (),
    timeout_s: float = 60.0,
    context_tokens: int | None = None,
    environ: Mapping[str, str] = os.environ,
    known: KnownFailures | None = None,
    notify: Callable[[CheckRow], None] = lambda row: None,
) -> Smoke:
    """Run the checks against the endpoint of a plan whose launcher is `external`.

    UNSUPPORTED counts as FAIL for the checks in `needed`. A request may take `timeout_s` seconds.
    A check that fails as `known` says is KNOWN. `notify` receives each row immediately. Raises
    PlanError for an invalid connection.
    """
    base_url = str(plan.launcher.options["base_url"])
    limits = replace(plan.limits, connect_timeout_s=min(plan.limits.connect_timeout_s, timeout_s))
    plan = replace(plan, limits=limits)
    filled = {name for name, value in environ.items() if value.strip()}
    async with connect(plan, Endpoint(base_url=base_url, model=plan.model), environ) as client:
        package = partial(openai_client, plan, environ=environ, timeout_s=timeout_s)
        session = CheckSession(
            client,
            model=plan.model,
            openai=package,
            timeout_s=timeout_s,
            context_tokens=context_tokens,
        )
        line = partial(curl, connection=plan.connection, variables=filled)
        return await smoke(session, checks, needed=needed, curl=line, known=known, notify=notify)


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
        "smoke test",
        _judge(done, failed=bool(bad)),
        figures=_count(done),
        counts=_say_cost(done),
        cause=cause,
        statements=list(_describe(done, [row for row in bad if _describe_row(row) != cause])),
    )
    return Document(
        "smoke",
        f"serve-eval smoke {base_url}",
        ResultHeader(
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
        yield Statement(_OUTCOMES[row.outcome][0], _describe_row(row), state="fail")
    if done.stopped and not done.died:
        yield Statement("stopped", done.stopped)
    for line in done.stopped.splitlines()[1:]:
        yield Statement("log", line)
    if any(row.model and row.outcome is CheckOutcome.FAIL for row in done.rows):
        yield Statement("note", _UNSKILLED)
    if known := [row.name for row in done.rows if row.outcome is CheckOutcome.KNOWN]:
        yield Statement("known", ", ".join(known))
    before = _list_before(done)
    lacks = [row.name for row in done.rows if row.outcome is CheckOutcome.UNSUPPORTED]
    new = ", ".join(name for name in lacks if name not in before)
    old = ", ".join(name for name in lacks if name in before)
    if lacks:
        text = "; ".join(filter(None, (new, old and f"as before: {old}")))
        yield Statement("lacks", text)
    if done.known is not None and done.known.mended:
        text = f"{', '.join(done.known.mended)}; write the file again with --write-known"
        yield Statement("mended", f"{text} {done.known.file}")


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
        columns = [DataColumn(name, number=name == "time (s)") for name in names]
        cells = list(map(_list_cells, rows))
        table = DataTable("Checks", columns=columns, rows=cells, caption="Failures first.")
        yield Block(table)
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
            section = TextLines(title, part, preformatted=True, closed=True)
            yield Block(section, depth=depth)


def _list_cells(row: CheckRow) -> list[DataCell]:
    mark = " (tests the model)" if row.model else ""
    return [
        DataCell(row.outcome.value, state=_OUTCOMES[row.outcome][1]),
        DataCell(row.name),
        DataCell(f"{row.time_s:.2f}", order=row.time_s),
        DataCell(f"{' '.join(row.told.split())}{mark}"),
    ]


def _make_suites(done: Smoke, base_url: str) -> list[CiSuite]:
    """Return a case for each row; known failures have a suite of their own."""
    before = _list_before(done)
    known = [row for row in done.rows if row.outcome is CheckOutcome.KNOWN]
    cases = [_make_case(row, before) for row in done.rows if row not in known]
    if done.stopped and not done.died:
        cases.append(
            CiCase(
                "smoke",
                "stopped",
                state=CiState.ERROR,
                message=done.stopped,
                in_table=True,
            )
        )
    suites = [CiSuite("serve-eval smoke", cases, host=base_url, seconds=done.seconds)]
    if known:
        expected = [_make_case(row, before) for row in known]
        name = "serve-eval smoke: known to fail"
        suites.append(CiSuite(name, expected, host=base_url))
    return suites


def _make_case(row: CheckRow, before: Collection[str]) -> CiCase:
    passed, known = row.outcome is CheckOutcome.PASS, row.outcome is CheckOutcome.KNOWN
    return CiCase(
        "smoke",
        row.name,
        state=_OUTCOMES[row.outcome][2],
        message=f"known to fail: {row.told}" if known else row.told,
        details=[row.told] if passed else [row.curl] if row.curl else [],
        seconds=row.time_s,
        expected=known or row.name in before,
        in_table=True,
    )
