"""Check unusual prompts (token ids, several, too long), and unknown fields."""

from __future__ import annotations

from serve_eval.checks.answer import NotAnswered, short
from serve_eval.checks.kinds.quality import lines_of, tokens_per_line
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import ALIVE_TOKENS, Check, CheckSession, require_answer
from serve_eval.tasks._passkey import NOISE

IDS = list(range(100, 108))
"""Token ids that are small enough for every vocabulary."""
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

    Where fields are ignored, a misspelt field goes unnoticed.
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
    Check(name="token_ids", run=token_ids, requests=1, tokens=2, prompt_tokens=10),
    Check(name="batch", run=batch, requests=1, tokens=4, prompt_tokens=10),
    Check(name="unknown_field", run=unknown_field, requests=1, tokens=1, prompt_tokens=10),
)


def long_prompt_check(context_tokens: int | None) -> Check:
    """Return the check for a context of `context_tokens`; None if it is not yet known."""
    cost = 300 + int(TOO_LONG * (context_tokens or 0))
    return Check(
        name="long_prompt",
        run=long_prompt,
        requests=3,
        tokens=2 + ALIVE_TOKENS,
        prompt_tokens=cost,
        full=True,
    )
