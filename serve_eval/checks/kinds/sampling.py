"""Is the model sampled as the request says?"""

from __future__ import annotations

from typing import Any

from serve_eval.checks.answer import Answer, NotAnswered, short
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckResult, failed, passed, unsupported
from serve_eval.checks.session import CheckSession, answered

PROMPT = "Write one sentence about something that surprised you."
TOKENS = 24
HOT = 1.5
GREEDY, SAMPLES = 3, 4
"""Answers that have to be equal, and answers of which one has to differ."""


async def temperature_0(s: CheckSession) -> CheckResult:
    answers = [await s.ask(PROMPT, max_tokens=TOKENS) for _ in range(GREEDY)]
    first, *others = (one.first.said for one in answers)
    for number, other in enumerate(others, 2):
        if other != first:
            at = next((i for i, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), len(min(first, other)))
            return failed(f"answer {number} of {GREEDY} differs from the first at character {at}", answers[-1].sent)
    return passed(f"{GREEDY} answers alike: {short(first, 40)!r}")


async def temperature(s: CheckSession) -> CheckResult:
    """With different seeds, since trtllm-serve has a fixed one where none is sent."""
    greedy = (await s.ask(PROMPT, max_tokens=TOKENS)).first.said
    sampled = await _hot(s, 1)
    if sampled.refused and "seed" in sampled.told.lower():
        s.known.takes_seed = False
        sampled = await _hot(s, 1)
    texts = [answered(sampled).first.said]
    texts += [answered(await _hot(s, number)).first.said for number in range(2, SAMPLES + 1)]
    different = len({greedy, *texts}) - 1
    s.known.varied = different > 0
    if not different:
        return failed(f"ignored: {SAMPLES} answers at {HOT} all equal the greedy one", sampled.sent)
    return passed(f"{len(set(texts))} different answers of {SAMPLES} at {HOT}")


async def _hot(s: CheckSession, seed: int) -> Answer:
    more: dict[str, Any] = {"seed": seed} if s.known.takes_seed else {}
    return await s.post(s.body(PROMPT, max_tokens=TOKENS, temperature=HOT, **more))


async def seed(s: CheckSession) -> CheckResult:
    if not s.known.varied:
        return unsupported("cannot be told, since temperature changes nothing")
    one, other = await _seeded(s), await _seeded(s)
    if one.first.said != other.first.said:
        return unsupported("ignored: one seed gave two answers", other.sent)
    return passed("one seed gave one answer twice, other seeds gave others")


async def _seeded(s: CheckSession) -> Answer:
    answer = await s.post(s.body(PROMPT, max_tokens=TOKENS, temperature=HOT, seed=7))
    if not answer.answered:
        raise NotAnswered(answer)
    return answer


async def n(s: CheckSession) -> CheckResult:
    answer = await s.ask(PROMPT, max_tokens=8, temperature=1.0, n=2)
    indices = [choice.number for choice in answer.choices]
    if len(indices) == 1:
        return unsupported("ignored: one choice where two were asked for", answer.sent)
    if sorted(indices) != [0, 1]:
        return failed(f"choices with the indices {indices} where two were asked for", answer.sent)
    return passed(f"two choices, {answer.tokens()} tokens counted")


CHECKS = (
    Check(name="temperature_0", run=temperature_0, requests=GREEDY, tokens=GREEDY * TOKENS, prompt_tokens=60),
    Check(name="temperature", run=temperature, requests=2 + SAMPLES, tokens=(2 + SAMPLES) * TOKENS, prompt_tokens=120),
    Check(name="seed", run=seed, requests=2, tokens=2 * TOKENS, prompt_tokens=40),
    Check(name="n", run=n, requests=1, tokens=16, prompt_tokens=20),
)
