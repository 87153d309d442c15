"""Run a smoke test: choose checks, estimate their cost, and judge their rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from serve_eval.checks.row import CheckOutcome, CheckRow, SentRequest, curl
from serve_eval.checks.run import choose_checks, run_checks
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.connection import connect, openai_client
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import Endpoint, Plan
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    What fails as `known` says is KNOWN. `notify` receives each row immediately. Raises PlanError
    for an invalid connection.
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
