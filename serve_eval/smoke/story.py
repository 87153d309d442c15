"""The story of a smoke test: which checks, what they cost at most, and row by row what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from serve_eval.errors import EndpointError, PlanError
from serve_eval.folders import nearest
from serve_eval.report.exit_code import FAIL, INFRASTRUCTURE, PASS
from serve_eval.smoke.answer import NotAnswered
from serve_eval.smoke.check import Check
from serve_eval.smoke.checks import (
    answering,
    ending,
    guided,
    load,
    messages,
    probabilities,
    prompts,
    quality,
    reach,
    sampling,
    sdk,
)
from serve_eval.smoke.row import Found, Outcome, Row, Sent, failed
from serve_eval.smoke.session import Session, StillStarting

Level = Literal["quick", "full"]


def chosen(level: Level, *, passkey_tokens: int | None = None, context_tokens: int | None = None) -> list[Check]:
    """The checks of a level, in their order. `passkey_tokens` adds a key hidden in so many. What has ended early
    versions of servers comes last."""
    given = [quality.passkey_check("passkey", passkey_tokens)] if passkey_tokens else []
    every = [
        *reach.CHECKS,
        *answering.CHECKS,
        *ending.CHECKS,
        *sampling.CHECKS,
        *probabilities.CHECKS,
        *guided.CHECKS,
        *messages.CHECKS,
        *prompts.CHECKS,
        *sdk.CHECKS,
        *load.CHECKS,
        *quality.CHECKS,
        *given,
        *load.LAST,
        prompts.long_prompt_check(context_tokens),
        *ending.LAST,
    ]
    return [check for check in every if level == "full" or not check.full]


def required(names: Sequence[str], checks: Sequence[Check]) -> frozenset[str]:
    """The names of --require. Raises PlanError for one that is not checked."""
    known = [check.name for check in checks]
    everywhere = [check.name for check in chosen("full")]
    problems = []
    for name in names:
        if name in known:
            continue
        if name in everywhere:
            problems.append(f"--require: {name} is checked at --level full only")
        else:
            problems.append(f"--require: there is no check {name!r}.{nearest(name, known)}")
    if problems:
        raise PlanError(problems)
    return frozenset(names)


def cost(checks: Sequence[Check]) -> str:
    """What the checks send at most, in a line."""
    requests, tokens = sum(one.requests for one in checks), sum(one.tokens for one in checks)
    read = sum(one.prompt_tokens for one in checks)
    line = (
        f"{len(checks)} checks: at most {requests} requests, {tokens} generated tokens, about {read} prompt tokens; "
        "one short request more after each check that fails"
    )
    full = any(one.name == "long_prompt" for one in checks)
    return f"{line}; and a prompt beyond the context, where its length is known" if full else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoke:
    """A finished smoke test. `stopped` says why checks were left out ("": none was). `generated` counts tokens as far
    as the endpoint told; those of the official package are not among them."""

    rows: Sequence[Row]
    exit_code: int
    stopped: str
    requests: int
    generated: int
    seconds: float


async def smoke(
    session: Session,
    checks: Sequence[Check],
    *,
    needed: Collection[str] = (),
    curl: Callable[[Sent], str],
    told: Callable[[Row], None] = lambda row: None,
) -> Smoke:
    """Runs the checks one after the other; each row is `told` as soon as it is had. UNSUPPORTED in `needed` is FAIL.

    Stops where nothing is left to be checked: the endpoint is starting, is not reached, answers neither kind of
    request, or does not answer a short request after a check that failed.
    """
    began, rows, stopped = time.monotonic(), [], ""
    for check in checks:
        start = time.monotonic()
        session.allow(check.requests, check.tokens)
        try:
            found = await check.run(session)
        except NotAnswered as error:
            found = error.answer.instead()
        except StillStarting as error:
            stopped = f"{error}. {error.hint}".rstrip(". ")
            break
        except EndpointError as error:
            asked = session.known.models
            found = failed(f"{error}. {error.hint}".rstrip(". "), asked.sent if asked is not None else None)
            stopped = "the endpoint could not be asked"
        row = _row(check, found, time.monotonic() - start, session, needed, curl)
        rows.append(row)
        told(row)
        if not stopped:
            stopped = await _stops(check, row, session)
        if stopped:
            break
    if session.chat or session.text:
        code = FAIL if any(row.outcome is Outcome.FAIL for row in rows) else PASS
    else:
        code = INFRASTRUCTURE
    return Smoke(
        rows=rows,
        exit_code=code,
        stopped=stopped,
        requests=session.requests,
        generated=session.generated,
        seconds=time.monotonic() - began,
    )


def _row(
    check: Check,
    found: Found,
    seconds: float,
    session: Session,
    needed: Collection[str],
    curl: Callable[[Sent], str],
) -> Row:
    outcome, said = found.outcome, session.client.masking.message(found.told)
    if outcome is Outcome.UNSUPPORTED and check.name in needed:
        outcome, said = Outcome.FAIL, f"required: {said}"
    return Row(
        name=check.name,
        outcome=outcome,
        told=said,
        time_s=round(seconds, 3),
        model=check.model,
        curl=None if found.sent is None or outcome is Outcome.PASS else curl(found.sent),
    )


async def _stops(check: Check, row: Row, session: Session) -> str:
    """Why nothing more can be checked; nothing where it can."""
    if check.name == "completions" and not (session.chat or session.text):
        return "the endpoint answers neither chat nor completions"
    if row.outcome is Outcome.FAIL and (session.chat or session.text) and not await session.alive():
        return f"after {check.name} a short request was not answered any more"
    return ""


def summary(done: Smoke) -> Iterator[str]:
    """The lines below the table."""
    counts = {outcome: sum(row.outcome is outcome for row in done.rows) for outcome in Outcome}
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    yield f"{said}; {done.requests} requests, {done.generated} generated tokens, {done.seconds:.1f} s"
    if done.stopped:
        yield f"stopped: {done.stopped}"
    if any(row.model and row.outcome is Outcome.FAIL for row in done.rows):
        yield "questions and passkeys test the model: one that is no instructed model fails them on a sound server"
