"""Check that the model answers what any model answers, with thoughts that end.

These rows test the model, not only its server.
"""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

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
from serve_eval.client.wire_format.bodies import CLOSE, OPEN, split_thinking
from serve_eval.tasks._passkey import HEAD, NOISE, context

QUESTIONS, ENOUGH = 20, 16
"""Number of questions, and of right answers that suffice. A model that is right with probability
.97 falls short with probability .0003; one that is right with .5 suffices with probability .006
(binomial)."""
QUESTION_TOKENS, KEY_TOKENS = 128, 256
MEASURED_LINES = 8
_SHOTS = (
    "Question: What is 2 + 3?\nAnswer: 5\n\nQuestion: Repeat exactly: tovel 902\nAnswer: tovel"
    " 902\n\n"
)
_NUMBER = re.compile(r"\d+")


class QualityQuestion(NamedTuple):
    """A question, and the text that an answer must contain."""

    text: str
    wanted: str


def questions(seed: int = 0, count: int = QUESTIONS) -> list[QualityQuestion]:
    """Return the questions, the same for each seed.

    Half of them are sums of two two-digit numbers, the others made-up words to copy.
    """
    rng = random.Random(f"smoke:{seed}")
    asked = []
    for _ in range(count // 2):
        a, b = rng.randint(11, 89), rng.randint(11, 89)
        asked.append(QualityQuestion(f"What is {a} + {b}?", str(a + b)))
        word = "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        copied = f"{word} {rng.randint(100, 999)}"
        asked.append(QualityQuestion(f"Repeat exactly: {copied}", copied))
    return asked


async def arithmetic_and_copying(session: CheckSession) -> CheckResult:
    right, cut, missed = 0, 0, None
    asked = questions()
    chat = session.judges_chats
    stop: dict[str, Any] = {} if chat else {"stop": ["\n"]}
    bodies = [
        session.roomy_body(
            choose_wording(one.text, chat=chat), chat=chat, max_tokens=QUESTION_TOKENS, **stop
        )
        for one in asked
    ]
    for question, answer in zip(
        asked, await asyncio.gather(*map(session.post, bodies)), strict=True
    ):
        first = require_answer(answer).first
        said = session.known.thinking.read(first) if chat else first.text
        if said is None:
            cut += 1
        elif is_right(question, said):
            right += 1
        elif missed is None:
            missed = answer.sent, f"{question.text!r} got {short(said, 40)!r}"
    told = f"{right} of {QUESTIONS} right; at least {ENOUGH} are needed"
    if right >= ENOUGH:
        return pass_check(told)
    if right + cut >= ENOUGH:
        return report_unsupported(
            f"{told}; {cut} were cut within their thoughts after"
            f" {QUESTION_TOKENS + session.known.thinking.room} tokens: not judged"
        )
    sent, why = missed or (None, "")
    return fail_check(f"{told}; {why}", sent)


def choose_wording(text: str, *, chat: bool) -> str:
    """Return the prompt for a question: an instruction for chat, examples for completions."""
    return f"{text}\nReply with the answer only." if chat else f"{_SHOTS}Question: {text}\nAnswer:"


def is_right(question: QualityQuestion, said: str) -> bool:
    if question.wanted.isdigit():
        return _NUMBER.findall(said)[-1:] == [question.wanted]
    return question.wanted.lower() in " ".join(said.lower().split())


# ------------------------------------------------------------------------------------------------
# Long texts


async def tokens_per_line(session: CheckSession) -> float:
    """Return the tokens of a line of noise, as the server counts them.

    If the server does not count them, assume one token for every four characters.
    """
    if session.known.tokens_per_line is None:
        answer = await session.ask(NOISE * MEASURED_LINES, max_tokens=1)
        counted = answer.tokens("prompt_tokens")
        session.known.tokens_per_line = (
            counted or len(NOISE) * MEASURED_LINES / 4
        ) / MEASURED_LINES
    return session.known.tokens_per_line


def lines_of(tokens: int, per_line: float) -> int:
    """Return the number of noise lines that take about `tokens` tokens."""
    return max(1, round(tokens / per_line))


def hide_key(tokens: int, per_line: float) -> tuple[str, str]:
    """Return a text of about `tokens` tokens that hides a key in its middle, and the key.

    The text ends with the question for the key.
    """
    key = str(random.Random(f"smoke:passkey:{tokens}").randint(10000, 99999))
    lines = lines_of(tokens, per_line)
    return f"{HEAD}{context(key, lines // 2, lines)}\nWhat is the pass key?", key


async def passkey(session: CheckSession, *, tokens: int) -> CheckResult:
    known = session.known.context_tokens
    if known is not None and known < tokens + KEY_TOKENS:
        return report_unsupported(f"the context has {known} tokens")
    text, key = hide_key(tokens, await tokens_per_line(session))
    chat = session.judges_chats
    prompt = f"{text} Reply with the number only." if chat else f"{text}\n\nThe pass key is"
    answer = await session.ask_roomy(prompt, chat=chat, max_tokens=KEY_TOKENS if chat else 8)
    counted = answer.tokens("prompt_tokens")
    size = "" if counted is None else f" in {counted} prompt tokens"
    said = session.known.thinking.read(answer.first) if chat else answer.first.text
    if said is None and chat:
        return report_unsupported(session.tell_cut(), answer.sent)
    if key in _NUMBER.findall(said or ""):
        return pass_check(f"found{size}")
    return fail_check(f"not found{size}: {short(said or '', 60)!r}", answer.sent)


def passkey_check(name: str, tokens: int, *, full: bool = False) -> Check:
    """Return the check for one length in tokens."""
    return Check(
        name,
        partial(passkey, tokens=tokens),
        requests=2,
        tokens=1 + KEY_TOKENS,
        prompt_tokens=tokens + 300,
        full=full,
        model=True,
    )


CHECKS = (
    Check(
        "questions",
        arithmetic_and_copying,
        requests=QUESTIONS,
        tokens=QUESTIONS * QUESTION_TOKENS,
        prompt_tokens=QUESTIONS * 40,
        model=True,
    ),
    passkey_check("passkey_1k", 1000),
    passkey_check("passkey_8k", 8000, full=True),
)


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
    [check] = REASONING_CHECKS
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


REASONING_CHECKS = (
    Check(
        "reasoning",
        reasoning,
        requests=3,
        tokens=TOKENS + PLAIN_TOKENS,
        prompt_tokens=90,
    ),
)
