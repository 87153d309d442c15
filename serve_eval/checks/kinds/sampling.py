"""Check that tokens are sampled as the request says, with the log-probabilities it asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

from serve_eval.checks.answer import Answer, NotAnswered, list_logprobs, read_stream, short
from serve_eval.checks.row import (
    CheckOutcome,
    CheckResult,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession, require_answer
from serve_eval.client.wire_format import logprobs, refusal
from serve_eval.client.wire_format.refusal import describe, find_refused
from serve_eval.evaluation.capabilities import LIKELIEST, TEXT, find_misplaced
from serve_eval.schema import PromptLogprobs

PROMPT = "Write one sentence about something that surprised you."
TOKENS, THOUGHT_TOKENS = 24, 128
HOT = 1.5
GREEDY, SAMPLES = 3, 4
"""Number of answers that must be equal, and of answers of which one must differ."""
AGAIN, LEVEL = 3, 0.02
"""Further answers to a seed whose first two differ, and the probability with which a server that
ignores seeds is called not reproducible instead."""


async def temperature_0(session: CheckSession) -> CheckResult:
    answers = [await session.ask(PROMPT, max_tokens=TOKENS) for _ in range(GREEDY)]
    first, *others = (one.first.said for one in answers)
    for number, other in enumerate(others, 2):
        if other != first:
            session.known.greedy_varies = True
            at = _count_common(first, other)
            return fail_check(
                f"answer {number} of {GREEDY} differs from the first at character {at}",
                answers[-1].sent,
            )
    return pass_check(f"{GREEDY} equal answers: {short(first, 40)!r}")


async def temperature(session: CheckSession) -> CheckResult:
    """Check that answers vary with temperature.

    Each request has a different seed, since trtllm-serve uses a fixed seed if none is sent.
    """
    greedy = require_answer(await session.post(_body(session, temperature=0))).first.said
    sampled = await _hot(session, 1)
    if sampled.refused and find_refused(describe(sampled.content), ("seed",)):
        session.known.takes_seed = False
        sampled = await _hot(session, 1)
    texts = [require_answer(sampled).first.said]
    texts += [
        require_answer(await _hot(session, number)).first.said for number in range(2, SAMPLES + 1)
    ]
    different = len({greedy, *texts}) - 1
    session.known.varied, session.known.sampled = different > 0, texts
    if not different:
        return fail_check(
            f"ignored: all {SAMPLES} answers at {HOT} equal the greedy one", sampled.sent
        )
    return pass_check(f"{len(set(texts))} different answers of {SAMPLES} at {HOT}")


async def _hot(session: CheckSession, seed: int) -> Answer:
    more: dict[str, Any] = {"seed": seed} if session.known.takes_seed else {}
    return await session.post(_body(session, temperature=HOT, **more))


def _body(session: CheckSession, **more: Any) -> dict[str, Any]:
    """Return the body of a request whose answer may vary: thoughts often begin with one phrase."""
    tokens = TOKENS
    if session.known.thinking.endless and not session.known.thinking.off:
        tokens += THOUGHT_TOKENS
        session.allow_more(THOUGHT_TOKENS)
    return session.roomy_body(PROMPT, max_tokens=tokens, most_room=THOUGHT_TOKENS, **more)


async def seed(session: CheckSession) -> CheckResult:
    """Check that one seed gives one answer; if not, find out whether the seed is used at all.

    Servers that do not compute the same numbers twice (speculation, batches) give answers to one
    seed that begin alike and part later.
    """
    known = session.known
    if not known.varied:
        return report_unsupported("cannot be tested, since temperature changes nothing")
    answers = [await _ask_seeded(session) for _ in range(2)]
    if answers[0].first.said == answers[1].first.said:
        return pass_check("the same seed gave the same answer, other seeds gave others")
    answers += [await _ask_seeded(session) for _ in range(AGAIN)]
    same, sent = [one.first.said for one in answers], answers[-1].sent
    counted = f"{len(same)} answers to one seed are {len(set(same))} texts"
    if rate_likeness(same, known.sampled) <= LEVEL:
        return report_unsupported(
            f"not reproducible: {counted}, which begin alike ({count_alike(same):.0f} characters;"
            f" {count_alike(known.sampled):.0f} with other seeds). The seed is used, but the"
            " server does not compute the same twice, as with speculation or in batches",
            sent,
        )
    if known.greedy_varies:
        return report_unsupported(
            f"not reproducible: {counted}, but answers vary at temperature 0 too, so the seed"
            " cannot be judged",
            sent,
        )
    return report_unsupported(f"ignored: {counted}, no more alike than those to other seeds", sent)


def count_alike(texts: Sequence[str]) -> float:
    """Return the mean number of characters with which two of the texts begin alike."""
    pairs = [_count_common(*pair) for pair in combinations(texts, 2)]
    return sum(pairs) / len(pairs)


def _count_common(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def rate_likeness(same: Sequence[str], others: Sequence[str]) -> float:
    """Return the probability that `same` begin this much alike if they are like the `others`.

    An exact permutation test: the share of all choices of as many texts that are as much alike
    (Good 2005, Permutation, Parametric and Bootstrap Tests of Hypotheses, ch. 1).
    """
    seen = count_alike(same)
    chosen = [count_alike(one) for one in combinations([*same, *others], len(same))]
    return sum(one >= seen for one in chosen) / len(chosen)


async def _ask_seeded(session: CheckSession) -> Answer:
    answer = await session.post(_body(session, temperature=HOT, seed=7))
    if not answer.answered:
        raise NotAnswered(answer)
    return answer


async def n(session: CheckSession) -> CheckResult:
    answer = await session.ask(PROMPT, max_tokens=8, temperature=1.0, n=2)
    indices = [choice.number for choice in answer.choices]
    if len(indices) == 1:
        return report_unsupported("ignored: one choice, although two were requested", answer.sent)
    if sorted(indices) != [0, 1]:
        return fail_check(
            f"choices with indices {indices}, although two were requested", answer.sent
        )
    return pass_check(f"two choices, {answer.tokens()} tokens counted")


CHECKS = (
    Check(
        "temperature_0",
        temperature_0,
        requests=GREEDY,
        tokens=GREEDY * TOKENS,
        prompt_tokens=60,
    ),
    Check(
        "temperature",
        temperature,
        requests=2 + SAMPLES,
        tokens=(2 + SAMPLES) * TOKENS,
        prompt_tokens=120,
    ),
    Check(
        "seed",
        seed,
        requests=2 + AGAIN,
        tokens=(2 + AGAIN) * TOKENS,
        prompt_tokens=(2 + AGAIN) * 20,
    ),
    Check("n", n, requests=1, tokens=16, prompt_tokens=20),
)


CERTAIN_PROMPT = "The capital of France is"
CERTAIN_TOKENS = 4
TOP = 2
FORMS = len(logprobs.FIELDS)
BROKEN = "\ufffd"
"""The replacement character, which a decoder writes for an incomplete character."""


async def in_chat(session: CheckSession) -> CheckResult:
    if not session.chat:
        return report_unsupported("chat is not answered")
    answer = await session.ask(
        CERTAIN_PROMPT, chat=True, max_tokens=CERTAIN_TOKENS, logprobs=True, top_logprobs=TOP
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
    answer = await session.ask(CERTAIN_PROMPT, chat=False, max_tokens=CERTAIN_TOKENS, logprobs=1)
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
        session.body(CERTAIN_PROMPT, chat=chat, max_tokens=CERTAIN_TOKENS, stream=True, **fields)
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
    except refusal.InvalidResponse as error:
        return report_unsupported(f"{form}: {short(str(error))}", answer.sent)
    said = await session.post(session.body(TEXT, chat=False, max_tokens=LIKELIEST))
    if said.answered and said.first.text.strip():
        text = TEXT + said.first.text
        again = await _ask_weighed(session, text, fields)
        # As before an evaluation, too little data is no failure.
        with suppress(refusal.InvalidResponse):
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


PROBABILITY_CHECKS = (
    Check(
        "logprobs_chat",
        in_chat,
        requests=2,
        tokens=2 * CERTAIN_TOKENS,
        prompt_tokens=40,
    ),
    Check(
        "logprobs_completions",
        in_completions,
        requests=2,
        tokens=2 * CERTAIN_TOKENS,
        prompt_tokens=20,
    ),
    Check(
        "prompt_logprobs",
        of_prompts,
        requests=3 * FORMS,
        tokens=(2 + LIKELIEST) * FORMS,
        prompt_tokens=50 * FORMS,
    ),
)
