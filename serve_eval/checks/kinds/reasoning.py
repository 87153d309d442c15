"""Check that thoughts end and are separate, and find out how later checks allow for them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn

from serve_eval.checks.answer import (
    MOST_ROOM,
    OFF,
    Answer,
    NotAnswered,
    Thinking,
    find_loop,
    opens_thoughts,
    room_for,
    short,
    shows_thoughts,
)
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import TEMPLATE_TOKENS, Check, CheckSession, require_answer
from serve_eval.client.client import Client
from serve_eval.client.wire_format.answer import CLOSE, OPEN, split_thinking

QUESTION = "What is 7 + 5? Answer with the number."
TOKENS = 512
SAMPLED = {"temperature": 0.6, "top_p": 0.95}
"""Sampling of most cards of thinking models, under which thoughts of sound ones do not loop."""
PLAIN_TOKENS = 32
"""Token limit of an answer without thoughts."""


async def find_thinking(client: Client, model: str) -> Thinking:
    """Return what is known of a model's thoughts after up to three requests to its chat.

    Nothing, if it does not answer them.
    """
    session = CheckSession(
        client, model=model, openai=_no_package, timeout_s=client.limits.sample_timeout_s
    )
    session.chat = True
    [check] = CHECKS
    session.allow(check.requests, check.tokens)
    with suppress(NotAnswered):
        await check.run(session)
    return session.known.thinking


def _no_package(url: str) -> NoReturn:
    raise AssertionError(url)


async def reasoning(session: CheckSession) -> CheckResult:
    """Check that reasoning ends, if there is any, and that it is separate from the answer.

    A model of which nothing is known after 512 tokens is asked with its thoughts switched off, and
    then with more room: its chat template may have opened them.
    """
    if not session.chat:
        return report_unsupported("chat is not answered")
    answer = require_answer(await session.post(_body(session, TOKENS)))
    cut = answer.first.finish == "length"
    if not cut and not shows_thoughts(answer):
        return report_unsupported("the model showed no thoughts")
    plain = await session.post(session.body(QUESTION, chat=True, max_tokens=PLAIN_TOKENS, **OFF))
    heeded = plain.answered and plain.first.finish == "stop" and not shows_thoughts(plain)
    if cut and (not shows_thoughts(answer) or not _has_answer(answer)):
        session.allow_more(MOST_ROOM)
        longer = await session.post(_body(session, MOST_ROOM))
        answer = longer if longer.answered else answer
    # An easy sum that gets thousands of tokens may get thoughts that the chat template opens.
    unended = answer.first.finish == "length"
    if not shows_thoughts(answer) and not unended:
        return report_unsupported("the model showed no thoughts")
    endless = answer.first.finish == "length" and not _has_answer(answer)
    session.known.thinking = Thinking(
        thinks=True,
        opened=opens_thoughts(answer.first) or not shows_thoughts(answer),
        off=OFF if heeded else {},
        room=0 if heeded or endless else room_for(answer.tokens()),
        endless=endless,
    )
    if endless and (loop := find_loop(answer.first.said)):
        return await _judge_loop(session, answer, loop)
    return _judge(session, answer)


async def _judge_loop(session: CheckSession, answer: Answer, loop: str) -> CheckResult:
    """Return the row for greedy thoughts that repeat themselves until they are cut.

    Sound models may do so at temperature 0: cards of thinking models warn of it. So they are asked
    once more as such cards say.
    """
    session.allow_more(MOST_ROOM, requests=1)
    warm = await session.post({**_body(session, MOST_ROOM), **SAMPLED})
    told = f"the thoughts loop: {short(loop.strip() or loop, 40)!r} comes again and again"
    if not warm.answered or warm.first.finish != "length" or _has_answer(warm):
        sampled = "with a temperature of 0.6 they end" if warm.answered else warm.told
        return report_unsupported(f"at temperature 0 {told}; {sampled}", answer.sent)
    if not find_loop(warm.first.said):
        why = f"with a temperature of 0.6 they are cut after {MOST_ROOM} tokens without a loop"
        return report_unsupported(f"at temperature 0 {told}; {why}", answer.sent)
    return fail_check(f"{told}, also with a temperature of 0.6, until they are cut", answer.sent)


def _judge(session: CheckSession, answer: Answer) -> CheckResult:
    """Return the row for an answer with thoughts."""
    first, thinking = answer.first, session.known.thinking
    tagged = OPEN in first.text or CLOSE in first.text
    if first.thoughts and (tagged or OPEN in first.thoughts or CLOSE in first.thoughts):
        return fail_check(
            "thoughts are separate, but still have their tags: try another reasoning parser",
            answer.sent,
        )
    off = "; later checks switch them off" if thinking.off else ""
    if thinking.endless:
        within = "cut within its thoughts" if shows_thoughts(answer) or off else "no answer"
        told = f"{within} after {MOST_ROOM} tokens: whether they end is not known"
        return report_unsupported(f"{told}{off}", answer.sent)
    rest, _ = split_thinking(first.text)
    if not rest.strip() and first.finish != "length":
        return fail_check("the thoughts never end: no answer follows them", answer.sent)
    if tagged:
        by = ", opened by the chat template" if thinking.opened else ""
        return pass_check(
            f"closed; they are in the text{by}, since the server has no reasoning parser{off}"
        )
    return pass_check(f"closed: {len(first.thoughts)} characters, separate from the answer{off}")


def _has_answer(answer: Answer) -> bool:
    """Return True if an answer began behind its thoughts."""
    rest, thoughts = split_thinking(answer.first.text)
    return bool(rest.strip()) and bool(thoughts or answer.first.thoughts)


def _body(session: CheckSession, tokens: int) -> dict[str, Any]:
    most = session.fit(tokens, TEMPLATE_TOKENS)
    return session.body(QUESTION, chat=True, max_tokens=most)


CHECKS = (
    Check(
        name="reasoning",
        run=reasoning,
        requests=3,
        tokens=TOKENS + PLAIN_TOKENS,
        prompt_tokens=90,
    ),
)
