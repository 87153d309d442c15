"""Check many simultaneous requests, and requests that the client cancels."""

from __future__ import annotations

import asyncio
from typing import Any

from serve_eval.checks.answer import Answer, read_stream
from serve_eval.checks.kinds.ending import COUNT
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import ALIVE_TOKENS, Check, CheckSession
from serve_eval.evaluation.capabilities import read_context

AT_ONCE, SHORT = 64, 8
CANCELLED, LONG = 8, 1024
COUNT_TOKENS, SLACK = 128, 8
"""Tokens of the prompt if the server does not count them, and those that are left of a context."""
SEEN_BYTES = 4096
"""Bytes that are read of an answer before it is cancelled: about 12 streamed tokens. An answer that
is complete by then proves nothing."""
PATIENCE_S, TIMES = 5.0, 10.0
"""After cancelled requests, a short request may take PATIENCE_S seconds more than TIMES as long as
before."""


async def concurrency(session: CheckSession) -> CheckResult:
    """Send many requests at once, half of them as streams if those work.

    Some servers answer one stream at a time and cut the others.
    """
    streams = session.known.streams.get(session.chat) is not None
    bodies = [
        session.body(
            f"Say the number {number}.",
            max_tokens=SHORT,
            **({"stream": True} if streams and number % 2 else {}),
        )
        for number in range(AT_ONCE)
    ]
    answers = await asyncio.gather(*map(session.post, bodies))
    bad = [(answer, why) for answer in answers if (why := _wrong(answer))]
    if bad:
        answer, why = bad[0]
        return fail_check(f"{AT_ONCE - len(bad)} of {AT_ONCE} answered; else {why}", answer.sent)
    return pass_check(
        f"{AT_ONCE} of {AT_ONCE} answered, the last after"
        f" {max(one.seconds for one in answers):.2f} s"
    )


def _wrong(answer: Answer) -> str | None:
    if not answer.streams:
        return None if answer.answered else answer.told
    if answer.problem:
        return f"a stream was cut: {answer.problem}"
    stream = read_stream(answer)
    return (
        None
        if stream.finish and not stream.error
        else stream.error or "a stream ended without a finish_reason"
    )


async def cancel(session: CheckSession) -> CheckResult:
    """Cancel long answers near their beginning: the server must free their resources."""
    if session.known.streams.get(session.chat) is None:
        return report_unsupported("no stream was complete")
    before = await session.ask("Hello", max_tokens=ALIVE_TOKENS)
    first, body = await _begin_long(session)
    if not first.cut_by_us:
        whole = first.status == 200 and not first.problem
        return (
            report_unsupported("no answer was long enough", first.sent)
            if whole
            else first.instead()
        )
    cut = await asyncio.gather(
        *(session.post(body, most_bytes=SEEN_BYTES) for _ in range(CANCELLED - 1))
    )
    for answer in cut:
        if answer.status != 200 or (answer.problem and not answer.cut_by_us):
            return fail_check(f"while others were cancelled: {answer.told}", answer.sent)
    limit_s = min(session.timeout_s, PATIENCE_S + TIMES * before.seconds)
    after = await session.post(session.body("Hello", max_tokens=ALIVE_TOKENS), timeout_s=limit_s)
    if not after.answered:
        return fail_check(
            f"after {CANCELLED} cancelled requests, the next one failed: {after.told}", first.sent
        )
    return pass_check(
        f"a request took {after.seconds:.2f} s after {CANCELLED} cancelled ones, and"
        f" {before.seconds:.2f} s before them"
    )


async def _begin_long(session: CheckSession) -> tuple[Answer, dict[str, Any]]:
    """Return the beginning of a long answer, and the body that asked for it.

    The body is changed as the server's refusals say: a shorter answer if they name the context
    length, else one without `ignore_eos`.
    """
    known = session.known
    prompt_tokens = (known.count_tokens or COUNT_TOKENS) + SLACK
    most, more = session.fit(LONG, prompt_tokens), {"ignore_eos": True}
    while True:
        body = session.body(COUNT, max_tokens=most, stream=True, **more)
        first = await session.post(body, most_bytes=SEEN_BYTES)
        context = read_context(first.told) if first.refused else None
        if context is not None and known.context_tokens is None:
            known.context_tokens = context
            most = session.fit(LONG, prompt_tokens)
        elif first.refused and more:
            more = {}
        else:
            return first, body


CHECKS = (
    Check(
        name="concurrency",
        run=concurrency,
        requests=AT_ONCE,
        tokens=AT_ONCE * SHORT,
        prompt_tokens=AT_ONCE * 15,
    ),
)
LAST = (
    Check(
        name="cancel",
        run=cancel,
        requests=4 + CANCELLED,
        tokens=2 * ALIVE_TOKENS + (CANCELLED + 2) * LONG,
        prompt_tokens=300,
        full=True,
    ),
)
