"""Check that the model is sampled as the request says."""

from __future__ import annotations

from typing import Any

from serve_eval.checks.answer import Answer, NotAnswered, short
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import CheckSession, require_answer

PROMPT = "Write one sentence about something that surprised you."
TOKENS = 24
HOT = 1.5
GREEDY, SAMPLES = 3, 4
"""Number of answers that must be equal, and of answers of which one must differ."""


async def temperature_0(session: CheckSession) -> CheckResult:
    answers = [await session.ask(PROMPT, max_tokens=TOKENS) for _ in range(GREEDY)]
    first, *others = (one.first.said for one in answers)
    for number, other in enumerate(others, 2):
        if other != first:
            at = next(
                (i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b),
                len(min(first, other)),
            )
            return fail_check(
                f"answer {number} of {GREEDY} differs from the first at character {at}",
                answers[-1].sent,
            )
    return pass_check(f"{GREEDY} equal answers: {short(first, 40)!r}")


async def temperature(session: CheckSession) -> CheckResult:
    """Check that answers vary with temperature.

    Each request has a different seed, since trtllm-serve uses a fixed seed if none is sent.
    """
    greedy = (await session.ask(PROMPT, max_tokens=TOKENS)).first.said
    sampled = await _hot(session, 1)
    if sampled.refused and "seed" in sampled.told.lower():
        session.known.takes_seed = False
        sampled = await _hot(session, 1)
    texts = [require_answer(sampled).first.said]
    texts += [
        require_answer(await _hot(session, number)).first.said for number in range(2, SAMPLES + 1)
    ]
    different = len({greedy, *texts}) - 1
    session.known.varied = different > 0
    if not different:
        return fail_check(
            f"ignored: all {SAMPLES} answers at {HOT} equal the greedy one", sampled.sent
        )
    return pass_check(f"{len(set(texts))} different answers of {SAMPLES} at {HOT}")


async def _hot(session: CheckSession, seed: int) -> Answer:
    more: dict[str, Any] = {"seed": seed} if session.known.takes_seed else {}
    return await session.post(session.body(PROMPT, max_tokens=TOKENS, temperature=HOT, **more))


async def seed(session: CheckSession) -> CheckResult:
    if not session.known.varied:
        return report_unsupported("cannot be tested, since temperature changes nothing")
    one, other = await _ask_seeded(session), await _ask_seeded(session)
    if one.first.said != other.first.said:
        return report_unsupported("ignored: the same seed gave two answers", other.sent)
    return pass_check("the same seed gave the same answer, other seeds gave others")


async def _ask_seeded(session: CheckSession) -> Answer:
    answer = await session.post(session.body(PROMPT, max_tokens=TOKENS, temperature=HOT, seed=7))
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
    Check(name="seed", run=seed, requests=2, tokens=2 * TOKENS, prompt_tokens=40),
    Check(name="n", run=n, requests=1, tokens=16, prompt_tokens=20),
)
