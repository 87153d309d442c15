"""Check that the model answers what any instruction-tuned model answers.

These rows test the model, not only its server.
"""

from __future__ import annotations

import asyncio
import random
import re
from functools import partial
from typing import Any, NamedTuple

from serve_eval.checks.answer import short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession, require_answer
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
        name=name,
        run=partial(passkey, tokens=tokens),
        requests=2,
        tokens=1 + KEY_TOKENS,
        prompt_tokens=tokens + 300,
        full=full,
        model=True,
    )


CHECKS = (
    Check(
        name="questions",
        run=arithmetic_and_copying,
        requests=QUESTIONS,
        tokens=QUESTIONS * QUESTION_TOKENS,
        prompt_tokens=QUESTIONS * 40,
        model=True,
    ),
    passkey_check("passkey_1k", 1000),
    passkey_check("passkey_8k", 8000, full=True),
)
