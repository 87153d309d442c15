"""Check that the model is sampled as the request says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from serve_eval.checks.answer import Answer, NotAnswered, short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession, require_answer
from serve_eval.client.wire_format.refusal import find_refused
from serve_eval.client.wire_format.wire import describe

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
        name="temperature_0",
        run=temperature_0,
        requests=GREEDY,
        tokens=GREEDY * TOKENS,
        prompt_tokens=60,
    ),
    Check(
        name="temperature",
        run=temperature,
        requests=2 + SAMPLES,
        tokens=(2 + SAMPLES) * TOKENS,
        prompt_tokens=120,
    ),
    Check(
        name="seed",
        run=seed,
        requests=2 + AGAIN,
        tokens=(2 + AGAIN) * TOKENS,
        prompt_tokens=(2 + AGAIN) * 20,
    ),
    Check(name="n", run=n, requests=1, tokens=16, prompt_tokens=20),
)
