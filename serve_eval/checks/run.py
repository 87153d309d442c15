"""Run checks one after the other, and keep a row for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal

from serve_eval.checks.answer import NotAnswered
from serve_eval.checks.kinds import (
    answering,
    chat_features,
    ending,
    media,
    quality,
    reach,
    sampling,
    tokens,
    unusual_requests,
)
from serve_eval.checks.kinds.tokens import prompt_tokens_check
from serve_eval.checks.row import CheckOutcome, CheckResult, CheckRow, SentRequest, fail_check
from serve_eval.checks.session import Check, CheckSession, StillStarting
from serve_eval.errors import EndpointError
from serve_eval.evidence.prompt_tokens import LocalTokenizer
from serve_eval.frozen import freeze

Level = Literal["quick", "full"]


def choose_checks(
    level: Level,
    *,
    passkey_tokens: int | None = None,
    context_tokens: int | None = None,
    local: LocalTokenizer | None = None,
    items: bool = False,
) -> list[Check]:
    """Return the checks of a level in their order.

    `passkey_tokens` adds a check with a key hidden in a prompt of that length, and `local` one that
    compares the tokens of prompts with the files of the model. `items` adds the check of
    /v1/responses. Requests that have crashed early versions of servers come last.
    """
    given = [quality.passkey_check("passkey", passkey_tokens)] if passkey_tokens else []
    every = [
        *reach.CHECKS,
        *answering.CHECKS,
        *quality.REASONING_CHECKS,
        *ending.CHECKS,
        *sampling.CHECKS,
        *ending.FIRST_TOKEN_CHECKS,
        *sampling.PROBABILITY_CHECKS,
        *chat_features.GUIDED_CHECKS,
        *chat_features.CHECKS,
        *_items_checks(items),
        *unusual_requests.CHECKS,
        *tokens.CHECKS,
        *([] if local is None else [prompt_tokens_check(local)]),
        *answering.SDK_CHECKS,
        *unusual_requests.LOAD_CHECKS,
        *quality.CHECKS,
        *given,
        *media.CHECKS,
        *unusual_requests.LAST,
        unusual_requests.long_prompt_check(context_tokens),
        *ending.LAST,
    ]
    return [check for check in every if level == "full" or not check.full]


def _items_checks(wanted: bool) -> tuple[Check, ...]:
    if not wanted:
        return ()
    from serve_eval.checks.kinds import responses  # few servers have the route

    return responses.CHECKS


@freeze
class CheckedRows:
    """The rows of the checks.

    `stopped` says why the remaining checks did not run ("" if all ran), and `died` names the check
    during which the server died ("" if it lives).
    """

    rows: Sequence[CheckRow]
    stopped: str
    died: str = ""


async def run_checks(
    session: CheckSession,
    checks: Sequence[Check],
    *,
    needed: Collection[str] = (),
    curl: Callable[[SentRequest], str],
    judge: Callable[[CheckRow], CheckRow] = lambda row: row,
    notify: Callable[[CheckRow], None] = lambda row: None,
) -> CheckedRows:
    """Run the checks one after the other, and pass each row to `notify` immediately.

    UNSUPPORTED counts as FAIL for the checks in `needed`. `judge` returns the row that is kept.

    Stops when nothing is left to check: the endpoint is starting, cannot be reached, answers
    neither chat nor completions, or does not answer a short request after a failed check. If
    nothing listens there any more, the server died, and the outcome of the last row is ERROR.
    """
    rows, stopped, died = list[CheckRow](), "", ""
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
            found = fail_check(
                f"{error}. {error.hint}".rstrip(". "), asked.sent if asked is not None else None
            )
            stopped = "the endpoint cannot be checked"
        row = _row(check, found, time.monotonic() - start, session, needed, curl)
        if not stopped and await _is_dead(row, session):
            died = check.name
        rows.append(_mark_dead(row) if died else judge(row))
        notify(rows[-1])
        if not (stopped or died):
            stopped = await _stops(check, row, session)
            if stopped and await _is_dead(row, session):
                rows[-1], died = _mark_dead(row), check.name
        if stopped or died:
            break
    if died:
        stopped = f"the server died during {died}"
    return CheckedRows(rows=rows, stopped=stopped, died=died)


async def _is_dead(row: CheckRow, session: CheckSession) -> bool:
    """Return True if a check failed and nothing listens at the endpoint any more."""
    return row.outcome is CheckOutcome.FAIL and not await session.listens()


def _mark_dead(row: CheckRow) -> CheckRow:
    return replace(
        row, outcome=CheckOutcome.ERROR, told=f"the server died during this check: {row.told}"
    )


def _row(
    check: Check,
    found: CheckResult,
    seconds: float,
    session: CheckSession,
    needed: Collection[str],
    curl: Callable[[SentRequest], str],
) -> CheckRow:
    outcome, said = found.outcome, session.client.masking.message(found.told)
    if outcome is CheckOutcome.UNSUPPORTED and check.name in needed:
        outcome, said = CheckOutcome.FAIL, f"required: {said}"
    return CheckRow(
        name=check.name,
        outcome=outcome,
        told=said,
        time_s=round(seconds, 3),
        model=check.model,
        curl=None if found.sent is None or outcome is CheckOutcome.PASS else curl(found.sent),
    )


async def _stops(check: Check, row: CheckRow, session: CheckSession) -> str:
    """Return why no further check can run, or "" if one can."""
    if check.name == "completions" and not (session.chat or session.text):
        return "the endpoint answers neither chat nor completions"
    if (
        row.outcome is CheckOutcome.FAIL
        and (session.chat or session.text)
        and not await session.alive()
    ):
        return f"a short request was no longer answered after {check.name}"
    return ""
