"""Check log-probabilities: of generated tokens, in chat and completions, and of prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from serve_eval.checks.answer import Answer, list_logprobs, read_stream, short
from serve_eval.checks.row import (
    CheckOutcome,
    CheckResult,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.wire_format import logprobs, wire
from serve_eval.evaluation.capabilities import LIKELIEST, TEXT, find_misplaced
from serve_eval.schema import PromptLogprobs

PROMPT = "The capital of France is"
TOKENS = 4
TOP = 2
FORMS = len(logprobs.FIELDS)
BROKEN = "\ufffd"
"""The replacement character, which a decoder writes for an incomplete character."""


async def in_chat(session: CheckSession) -> CheckResult:
    if not session.chat:
        return report_unsupported("chat is not answered")
    answer = await session.ask(
        PROMPT, chat=True, max_tokens=TOKENS, logprobs=True, top_logprobs=TOP
    )
    told = answer.first.raw.get("logprobs")
    content = told.get("content") if isinstance(told, dict) else None
    if not content:
        return _untold(answer)
    if wrong := _wrong_content(content, answer):
        return fail_check(wrong, answer.sent)
    if not all(one.get("top_logprobs") for one in content):
        return fail_check(f"{TOP} top_logprobs were requested and are missing", answer.sent)
    return await _in_a_stream(session, answer, chat=True, logprobs=True, top_logprobs=TOP)


async def in_completions(session: CheckSession) -> CheckResult:
    """Check the form of completions. That of chat, as llama-server sends it, is a dialect."""
    if not session.text:
        return report_unsupported("completions are not answered")
    answer = await session.ask(PROMPT, chat=False, max_tokens=TOKENS, logprobs=1)
    told = answer.first.raw.get("logprobs")
    if not isinstance(told, dict):
        return _untold(answer)
    values, tokens = told.get("token_logprobs"), told.get("tokens")
    if values is None and tokens is None and told.get("content"):
        return _in_the_form_of_chat(told["content"], answer)
    if not isinstance(values, list) or not isinstance(tokens, list):
        return fail_check("logprobs come without tokens and token_logprobs", answer.sent)
    if len(values) != len(tokens):
        return fail_check(f"{len(values)} log-probabilities for {len(tokens)} tokens", answer.sent)
    if wrong := _wrong(values, answer):
        return fail_check(wrong, answer.sent)
    return await _in_a_stream(session, answer, chat=False, logprobs=1)


async def _in_a_stream(
    session: CheckSession, whole: Answer, *, chat: bool, **fields: Any
) -> CheckResult:
    """Ask for the same as a stream, whose log-probabilities must be those of the whole answer.

    A stream without them is named and no failure; neither is one that fails in another way, which
    the check of streams finds. A near tie may change the text, and then nothing is compared.
    """
    values = list_logprobs(whole.first.raw.get("logprobs"))
    told = f"{len(values)} tokens"
    answer = await session.post(
        session.body(PROMPT, chat=chat, max_tokens=TOKENS, stream=True, **fields)
    )
    if not answer.streams:
        return pass_check(told)
    stream = read_stream(answer)
    if stream.error or stream.broken or not stream.finish:
        return pass_check(told)
    if not stream.logprobs:
        return pass_check(f"{told}; streamed: none")
    if stream.said != whole.first.said:
        return pass_check(f"{told}; streamed: {len(stream.logprobs)}, of another text")
    if len(stream.logprobs) != len(values):
        return fail_check(
            f"{len(stream.logprobs)} log-probabilities in a stream, {len(values)} in the whole"
            " answer of the same text",
            answer.sent,
        )
    if wrong := _wrong(stream.logprobs, whole):
        return fail_check(f"in a stream: {wrong}", answer.sent)
    return pass_check(f"{told}, also streamed")


def _in_the_form_of_chat(content: Any, answer: Answer) -> CheckResult:
    """Return the row for completions with log-probabilities in the form of chat."""
    if wrong := _wrong_content(content, answer):
        return fail_check(f"in the form of chat: {wrong}", answer.sent)
    return report_unsupported(
        "logprobs come in the form of chat (content): ask for them by chat", answer.sent
    )


def _wrong_content(content: Any, answer: Answer) -> str | None:
    """Return what is wrong with log-probabilities in the form of chat, or None."""
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        return "logprobs.content is not a list of tokens"
    return _wrong([one.get("logprob") for one in content], answer)


def _untold(answer: Answer) -> CheckResult:
    """Return the row for an answer without log-probabilities.

    Servers omit tokens that are part of a character. With an untrained model that can be all of
    them.
    """
    if BROKEN in answer.first.said:
        return report_unsupported(
            "cannot be tested: the answer has broken characters and no logprobs", answer.sent
        )
    return report_unsupported("ignored: an answer without logprobs", answer.sent)


def _wrong(values: Sequence[Any], answer: Answer) -> str | None:
    """Return what is wrong with the log-probabilities of an answer, or None.

    The token that ends the answer may be missing.
    """
    counted = answer.shown_tokens
    fewer = counted is not None and len(values) < counted - 1 and BROKEN not in answer.first.said
    if counted is not None and (len(values) > counted or fewer):
        return f"{len(values)} log-probabilities for {counted} tokens"
    bad = [
        one for one in values if not isinstance(one, int | float) or math.isnan(one) or one > 1e-6
    ]
    return f"{bad[0]!r} is not a log-probability" if bad else None


async def of_prompts(session: CheckSession) -> CheckResult:
    """Check prompt log-probabilities in every form that the client knows.

    The row reports each form. They are judged as before an evaluation.
    """
    if not session.text:
        return report_unsupported("completions are not answered")
    seen: list[CheckResult] = []
    for form, fields in logprobs.FIELDS.items():
        seen.append(await _in_form(session, form, fields))
        if seen[-1].outcome is CheckOutcome.PASS:
            return seen[-1]
    worst = next((one for one in seen if one.outcome is CheckOutcome.FAIL), seen[-1])
    return replace(worst, told="; ".join(one.told for one in seen))


async def _in_form(session: CheckSession, form: str, fields: Mapping[str, object]) -> CheckResult:
    answer = await _ask_weighed(session, TEXT, fields)
    if answer.status != 200 or answer.problem:
        return replace(answer.instead(), told=f"{form}: {short(answer.told)}")
    try:
        told = _read(answer, TEXT)
    except wire.InvalidResponse as error:
        return report_unsupported(f"{form}: {short(str(error))}", answer.sent)
    said = await session.post(session.body(TEXT, chat=False, max_tokens=LIKELIEST))
    if said.answered and said.first.text.strip():
        text = TEXT + said.first.text
        again = await _ask_weighed(session, text, fields)
        # As before an evaluation, too little data is no failure.
        with suppress(wire.InvalidResponse):
            if wrong := find_misplaced(_read(again, text)):
                return fail_check(f"{form}: {wrong}", again.sent)
    return pass_check(f"{form}: {len(told.values)} tokens")


async def _ask_weighed(session: CheckSession, text: str, fields: Mapping[str, object]) -> Answer:
    return await session.post({**session.body(text, chat=False, max_tokens=1), **fields})


def _read(answer: Answer, text: str) -> PromptLogprobs:
    """Return the log-probabilities of a prompt. Raises InvalidResponse if any are missing."""
    told = logprobs.decode(answer.content, answer.content_type, text).prompt_logprobs
    assert told is not None
    return told


CHECKS = (
    Check(name="logprobs_chat", run=in_chat, requests=2, tokens=2 * TOKENS, prompt_tokens=40),
    Check(
        name="logprobs_completions",
        run=in_completions,
        requests=2,
        tokens=2 * TOKENS,
        prompt_tokens=20,
    ),
    Check(
        name="prompt_logprobs",
        run=of_prompts,
        requests=3 * FORMS,
        tokens=(2 + LIKELIEST) * FORMS,
        prompt_tokens=50 * FORMS,
    ),
)
