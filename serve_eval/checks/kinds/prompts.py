"""Prompts that are no single short text, and fields that nobody knows."""

from __future__ import annotations

from serve_eval.checks.answer import NotAnswered, short
from serve_eval.checks.check import Check
from serve_eval.checks.kinds.quality import lines_of, tokens_per_line
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import ALIVE_TOKENS, CheckSession, require_answer
from serve_eval.tasks._passkey import NOISE

IDS = list(range(100, 108))
"""Small enough for every vocabulary."""
UNKNOWN_FIELD = "serve_eval_unknown_field"
TOO_LONG = 1.25
"""The over-long prompt, as a multiple of the context."""


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
    """Both are right, and good to know: where fields are ignored, a misspelt one is never
    noticed.
    """
    answer = await session.post({**session.body("Hello", max_tokens=1), UNKNOWN_FIELD: 1})
    if answer.refused:
        return pass_check(f"refused: {short(answer.told, 80)}")
    if not answer.answered:
        raise NotAnswered(answer)
    return pass_check("ignored")


async def long_prompt(session: CheckSession) -> CheckResult:
    """A prompt that does not fit has to be refused, saying so, by a server that then goes on."""
    context = session.known.context_tokens
    if context is None:
        return report_unsupported("the context length is not told: give it as --context-tokens")
    prompt = NOISE * lines_of(int(TOO_LONG * context), await tokens_per_line(session))
    answer = await session.post(session.body(prompt, max_tokens=1))
    if not await session.alive():
        return fail_check(
            f"{answer.told}; then a short request was not answered any more", answer.sent
        )
    if answer.answered:
        counted = answer.tokens("prompt_tokens")
        return fail_check(
            f"taken: {counted} prompt tokens where the context has {context}", answer.sent
        )
    if answer.wraps_a_refusal:
        return report_unsupported(
            f"refused by a worker, and handed on as {answer.told}", answer.sent
        )
    if answer.status not in (400, 413, 422):
        return fail_check(answer.told, answer.sent)
    if not any(
        word in answer.told.lower() for word in ("length", "context", "token", "long", "exceed")
    ):
        return fail_check(f"refused without saying why: {answer.told}", answer.sent)
    return pass_check(answer.told)


CHECKS = (
    Check(name="token_ids", run=token_ids, requests=1, tokens=2, prompt_tokens=10),
    Check(name="batch", run=batch, requests=1, tokens=4, prompt_tokens=10),
    Check(name="unknown_field", run=unknown_field, requests=1, tokens=1, prompt_tokens=10),
)


def long_prompt_check(context_tokens: int | None) -> Check:
    """The check for a context of so many tokens; None: it stays to be found out."""
    cost = 300 + int(TOO_LONG * (context_tokens or 0))
    return Check(
        name="long_prompt",
        run=long_prompt,
        requests=3,
        tokens=2 + ALIVE_TOKENS,
        prompt_tokens=cost,
        full=True,
    )
