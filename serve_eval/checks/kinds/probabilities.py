"""Log-probabilities: of what is generated, by both kinds of requests, and of prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from serve_eval.checks.answer import Answer, short
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckOutcome, CheckResult, failed, passed, unsupported
from serve_eval.checks.session import CheckSession
from serve_eval.client.wire_format import logprobs, wire
from serve_eval.evaluation.capabilities import LIKELIEST, TEXT, misplaced
from serve_eval.schema import PromptLogprobs

PROMPT = "The capital of France is"
TOKENS = 4
TOP = 2
FORMS = len(logprobs.FIELDS)
BROKEN = "\ufffd"
"""What a decoder writes for a part of a character."""


async def in_chat(s: CheckSession) -> CheckResult:
    if not s.chat:
        return unsupported("chat is not answered")
    answer = await s.ask(PROMPT, chat=True, max_tokens=TOKENS, logprobs=True, top_logprobs=TOP)
    told = answer.first.raw.get("logprobs")
    content = told.get("content") if isinstance(told, dict) else None
    if not content:
        return _untold(answer)
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        return failed("logprobs.content is no list of tokens", answer.sent)
    if wrong := _wrong([one.get("logprob") for one in content], answer):
        return failed(wrong, answer.sent)
    if not all(one.get("top_logprobs") for one in content):
        return failed(f"top_logprobs of {TOP} were asked for and are missing", answer.sent)
    return passed(f"{len(content)} tokens")


async def in_completions(s: CheckSession) -> CheckResult:
    if not s.text:
        return unsupported("completions are not answered")
    answer = await s.ask(PROMPT, chat=False, max_tokens=TOKENS, logprobs=1)
    told = answer.first.raw.get("logprobs")
    if not isinstance(told, dict):
        return _untold(answer)
    values, tokens = told.get("token_logprobs"), told.get("tokens")
    if not isinstance(values, list) or not isinstance(tokens, list):
        form = "in the form of chat (content)" if told.get("content") else "without tokens and token_logprobs"
        return failed(f"logprobs come {form}", answer.sent)
    if len(values) != len(tokens):
        return failed(f"{len(values)} log-probabilities for {len(tokens)} tokens", answer.sent)
    if wrong := _wrong(values, answer):
        return failed(wrong, answer.sent)
    return passed(f"{len(values)} tokens")


def _untold(answer: Answer) -> CheckResult:
    """Servers leave tokens out that are a part of a character: all of them may be, of an untrained model."""
    if BROKEN in answer.first.said:
        return unsupported("cannot be told: the answer has broken characters, and no logprobs", answer.sent)
    return unsupported("ignored: an answer without logprobs", answer.sent)


def _wrong(values: Sequence[Any], answer: Answer) -> str | None:
    """What is wrong with the log-probabilities of an answer. A token that ends it may be left out."""
    counted = answer.tokens()
    fewer = counted is not None and len(values) < counted - 1 and BROKEN not in answer.first.said
    if counted is not None and (len(values) > counted or fewer):
        return f"{len(values)} log-probabilities for {counted} tokens"
    bad = [one for one in values if not isinstance(one, int | float) or math.isnan(one) or one > 1e-6]
    return f"{bad[0]!r} is no log-probability" if bad else None


async def of_prompts(s: CheckSession) -> CheckResult:
    """In any form that our client knows, each told as far as it came, and judged as before an evaluation."""
    if not s.text:
        return unsupported("completions are not answered")
    seen: list[CheckResult] = []
    for form, fields in logprobs.FIELDS.items():
        seen.append(await _in_form(s, form, fields))
        if seen[-1].outcome is CheckOutcome.PASS:
            return seen[-1]
    worst = next((one for one in seen if one.outcome is CheckOutcome.FAIL), seen[-1])
    return replace(worst, told="; ".join(one.told for one in seen))


async def _in_form(s: CheckSession, form: str, fields: Mapping[str, object]) -> CheckResult:
    answer = await _weighed(s, TEXT, fields)
    if answer.status != 200 or answer.problem:
        return replace(answer.instead(), told=f"{form}: {short(answer.told, 80)}")
    try:
        told = _read(answer, TEXT)
    except wire.InvalidResponse as error:
        return unsupported(f"{form}: {short(str(error), 80)}", answer.sent)
    said = await s.post(s.body(TEXT, chat=False, max_tokens=LIKELIEST))
    if said.answered and said.first.text.strip():
        text = TEXT + said.first.text
        again = await _weighed(s, text, fields)
        with suppress(wire.InvalidResponse):  # too little to tell, as before an evaluation
            if wrong := misplaced(_read(again, text)):
                return failed(f"{form}: {wrong}", again.sent)
    return passed(f"{form}: {len(told.values)} tokens")


async def _weighed(s: CheckSession, text: str, fields: Mapping[str, object]) -> Answer:
    return await s.post({**s.body(text, chat=False, max_tokens=1), **fields})


def _read(answer: Answer, text: str) -> PromptLogprobs:
    """Raises InvalidResponse when it does not say all of it."""
    told = logprobs.decode(answer.content, answer.content_type, text).prompt_logprobs
    assert told is not None
    return told


CHECKS = (
    Check(name="logprobs_chat", run=in_chat, requests=1, tokens=TOKENS, prompt_tokens=20),
    Check(name="logprobs_completions", run=in_completions, requests=1, tokens=TOKENS, prompt_tokens=10),
    Check(
        name="prompt_logprobs",
        run=of_prompts,
        requests=3 * FORMS,
        tokens=(2 + LIKELIEST) * FORMS,
        prompt_tokens=50 * FORMS,
    ),
)
