"""Check unusual requests: token ids, too long prompts, many at once, or cancelled ones."""

from __future__ import annotations

import asyncio
from typing import Any

from serve_eval.checks.answer import Answer, NotAnswered, read_stream, short
from serve_eval.checks.kinds.ending import COUNT
from serve_eval.checks.kinds.quality import lines_of, tokens_per_line
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import ALIVE_TOKENS, Check, CheckSession, require_answer
from serve_eval.evaluation.capabilities import read_context
from serve_eval.tasks._passkey import NOISE

IDS = list(range(100, 108))
"""Token ids that any vocabulary contains."""
UNKNOWN_FIELD = "serve_eval_unknown_field"
TOO_LONG = 1.25
"""Length of the over-long prompt, as a multiple of the context."""


async def token_ids(session: CheckSession) -> CheckResult:
    if not session.text:
        return report_unsupported("completions are not answered")
    body = session.body("", chat=False, max_tokens=2)
    answer = require_answer(await session.post({**body, "prompt": IDS}))
    counted = answer.tokens("prompt_tokens")
    if counted is not None and counted not in (len(IDS), len(IDS) + 1):
        return fail_check(
            f"{len(IDS)} token ids were counted as {counted} prompt tokens", answer.sent
        )
    return pass_check(f"{len(IDS)} ids, {counted} prompt tokens counted")


async def batch(session: CheckSession) -> CheckResult:
    if not session.text:
        return report_unsupported("completions are not answered")
    body = session.body("", chat=False, max_tokens=2)
    answer = require_answer(await session.post({**body, "prompt": ["One and", "Two and"]}))
    indices = sorted(choice.number for choice in answer.choices)
    if indices != [0, 1]:
        return fail_check(f"{len(indices)} answers to two prompts", answer.sent)
    return pass_check("two answers to two prompts")


async def unknown_field(session: CheckSession) -> CheckResult:
    """Report whether an unknown field is refused or ignored. Both are right.

    An endpoint that ignores fields does not report a misspelt one.
    """
    answer = await session.post({**session.body("Hello", max_tokens=1), UNKNOWN_FIELD: 1})
    if answer.refused:
        return pass_check(f"refused: {short(answer.told, 80)}")
    if not answer.answered:
        raise NotAnswered(answer)
    return pass_check("ignored")


async def long_prompt(session: CheckSession) -> CheckResult:
    """Check that a prompt beyond the context is refused with a reason, and the server survives."""
    context = session.known.context_tokens
    if context is None:
        return report_unsupported(
            "the context length is not known: give --set smoke.context_tokens=N"
        )
    prompt = NOISE * lines_of(int(TOO_LONG * context), await tokens_per_line(session))
    answer = await session.post(session.body(prompt, max_tokens=1))
    if not await session.alive():
        return fail_check(
            f"{answer.told}; after that a short request was no longer answered", answer.sent
        )
    if answer.answered:
        counted = answer.tokens("prompt_tokens")
        return fail_check(
            f"accepted: {counted} prompt tokens, although the context has {context}", answer.sent
        )
    if answer.wraps_a_refusal:
        return report_unsupported(
            f"refused by a worker, and forwarded as {answer.told}", answer.sent
        )
    if answer.status not in (400, 413, 422):
        return fail_check(answer.told, answer.sent)
    if not any(
        word in answer.told.lower() for word in ("length", "context", "token", "long", "exceed")
    ):
        return fail_check(f"refused without a reason: {answer.told}", answer.sent)
    return pass_check(answer.told)


CHECKS = (
    Check("token_ids", token_ids, requests=1, tokens=2, prompt_tokens=10),
    Check("batch", batch, requests=1, tokens=4, prompt_tokens=10),
    Check("unknown_field", unknown_field, requests=1, tokens=1, prompt_tokens=10),
)


def long_prompt_check(context_tokens: int | None) -> Check:
    """Return the check for a context of `context_tokens`; None if it is not yet known."""
    cost = 300 + int(TOO_LONG * (context_tokens or 0))
    return Check(
        "long_prompt",
        long_prompt,
        requests=3,
        tokens=2 + ALIVE_TOKENS,
        prompt_tokens=cost,
        full=True,
    )


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


LOAD_CHECKS = (
    Check(
        "concurrency",
        concurrency,
        requests=AT_ONCE,
        tokens=AT_ONCE * SHORT,
        prompt_tokens=AT_ONCE * 15,
    ),
)
LAST = (
    Check(
        "cancel",
        cancel,
        requests=4 + CANCELLED,
        tokens=2 * ALIVE_TOKENS + (CANCELLED + 2) * LONG,
        prompt_tokens=300,
        full=True,
    ),
)
