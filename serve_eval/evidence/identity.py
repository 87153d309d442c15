"""Judge by probes of a task's own requests if a deployment is the one of a reference. Pure.

The probes are a random sample of the requests that a run would send. If a fault changes the first
tokens of a share x of the requests, k probes miss it with a probability of at most (1 - x)^k. Any
difference rejects identity, since a false rejection costs only the tokens of the run that follows.

Distances are those of log-probabilities, in nats. The limit is the distance of the reference's
server from itself, asked again at the same load; a reference that differs by more than MOST_LIMIT
proves no identity. Within that limit, the mean distance must be as small as the server's own, since
a change of the numerics moves most probes by a little and few by much.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from serve_eval.evidence.probe_floor import CLEAR_GAP, MARGIN, compare_tokens, find_step
from serve_eval.frozen import freeze
from serve_eval.schema import IdentityProbe, IdentityProbes, IdentityReading

MISSED_ALPHA = 0.05
"""Probability with which a fault of the share that is named would be missed."""
MOST_LIMIT = CLEAR_GAP
"""Nats beyond which a server differs too much from itself to be recognized."""
MOST_MEAN = 1.5
"""Factor by which the mean distance may exceed the one of the reference's server from itself."""
UNCERTAIN = math.log(0.9)
"""Log-probability of the likeliest token below which a token says something of the numerics."""
LEAST_UNCERTAIN = 10
"""Probes with an uncertain token without which no small change of the model would show."""
_UNLISTED = {False: (0,), True: (0, 1)}
"""Tokens that may lack a log-probability, by whether the answer ended: servers may not list the
token that ends it."""
_CUT_CHARACTER = "�"


@freeze
class Likeness:
    """The comparison of an answer with the one of the reference.

    `nats` is the largest distance of the tokens before the first other one (`flipped`). `odd` says
    what no numerics explain ("": nothing).
    """

    nats: float = 0.0
    flipped: bool = False
    odd: str = ""


@freeze
class ProbesJudged:
    """The figures of all probes of a task. `why` says what speaks against identity ("": nothing).

    `limit` is the distance that is allowed, in nats, and `largest` the largest one that was seen.
    """

    why: str
    limit: float
    largest: float


def find_unseen(probes: int) -> float:
    """Return the smallest share of bad requests that is seen with a probability of .95.

    It is exact: no one of k random requests is bad with a probability of (1 - x)^k.
    """
    return 1.0 if probes < 1 else 1.0 - MISSED_ALPHA ** (1.0 / probes)


def compare_answers(known: IdentityReading, now: IdentityReading, length: int) -> Likeness:
    """Return how an answer of up to `length` tokens differs from the beginning of the known one.

    An answer of another length than was asked for was not made for this request: a cache, or
    another limit.
    """
    if odd := _compare_prompts(known, now):
        return Likeness(odd=odd)
    if now.count > length or now.count - len(now.tokens) not in _UNLISTED[now.finish != "length"]:
        return Likeness(
            odd=f"the answer has {now.count} tokens, {len(now.tokens)} of them with a"
            f" log-probability, and {length} were asked for"
        )
    nats = 0.0
    for one, other in zip(known.tokens[:length], now.tokens, strict=False):
        nats = max(nats, compare_tokens(one, other)[0])
        if one.text != other.text:
            return Likeness(nats=nats, flipped=True)
    if now.count != min(length, known.count):
        return Likeness(nats=nats, odd=f"the answer ends after {now.count} tokens")
    if now.count < length and now.finish != known.finish:
        odd = f"the answer ends by {now.finish!r}, the reference's by {known.finish!r}"
        return Likeness(nats=nats, odd=odd)
    if not (_begins(known.text, now.text) and _begins(known.thoughts, now.thoughts)):
        odd = "the same tokens become another message: another parser, or other options of it"
        return Likeness(nats=nats, odd=odd)
    return Likeness(nats=nats)


def compare_whole(known: IdentityReading, now: IdentityReading) -> str:
    """Return how a whole answer differs from the reference's; empty if it does not."""
    if odd := _compare_prompts(known, now):
        return odd
    for name, one, other in (
        ("text", known.text, now.text),
        ("thoughts", known.thoughts, now.thoughts),
        ("tool calls", known.calls, now.calls),
        ("finish_reason", known.finish, now.finish),
        ("number of tokens", known.count, now.count),
    ):
        if one != other:
            return f"a whole answer has another {name}"
    return ""


def _compare_prompts(known: IdentityReading, now: IdentityReading) -> str:
    if known.prompt_tokens == now.prompt_tokens:
        return ""
    return (
        f"the server reads {now.prompt_tokens} prompt tokens, the reference's"
        f" {known.prompt_tokens}: another chat template or tokenizer"
    )


def _begins(whole: str, beginning: str) -> bool:
    return whole.startswith(beginning.rstrip(_CUT_CHARACTER))


def list_noise(probes: Sequence[IdentityProbe], length: int) -> Iterator[Likeness]:
    """Yield how each repeated answer of the reference's server differs from its first one."""
    for probe in probes:
        for one in probe.again:
            yield compare_answers(probe.reading, _cut(one, length), length)


def _cut(reading: IdentityReading, length: int) -> IdentityReading:
    """Return what is compared of an answer of more tokens: its texts cannot be cut by tokens."""
    if reading.count <= length:
        return reading
    return IdentityReading(
        tokens=reading.tokens[:length], count=length, prompt_tokens=reading.prompt_tokens
    )


def find_limit(known: IdentityProbes) -> float:
    """Return the distance that the reference's noise and the rounding explain, in nats."""
    noise = max((one.nats for one in list_noise(known.probes, known.length)), default=0.0)
    step = find_step([probe.reading for probe in known.probes])
    return max(MARGIN * noise, step)


def count_uncertain(probes: Sequence[IdentityProbe], length: int) -> int:
    """Return the probes with an uncertain token among the first `length`."""
    return sum(
        any(
            max([token.logprob, *token.top.values()]) < UNCERTAIN
            for token in probe.reading.tokens[:length]
        )
        for probe in probes
    )


def explain_unfit(known: IdentityProbes, shortest: int) -> str:
    """Return why probes of at least `shortest` tokens prove no identity; empty if they can."""
    limit = find_limit(known)
    if limit > MOST_LIMIT:
        return (
            f"the reference's server differs from itself by {limit / MARGIN:.3g} nat, and beyond"
            f" {MOST_LIMIT / MARGIN:.2g} another model could hide"
        )
    if odd := next((one.odd for one in list_noise(known.probes, known.length) if one.odd), ""):
        return f"the reference's server answered one request in two ways: {odd}"
    least = min(LEAST_UNCERTAIN, len(known.probes))
    found = count_uncertain(known.probes, shortest)
    if found < least:
        return (
            f"only {found} of {len(known.probes)} answers begin with an uncertain token, and"
            f" {least} are needed: certain ones hide a change of the model"
        )
    if not known.whole:
        return (
            "no whole answer of the reference came twice, so that nothing shows what a parser makes"
            " of the end of an answer"
        )
    return ""


def judge_probes(
    known: IdentityProbes,
    readings: Sequence[tuple[int, IdentityReading | None]],
    whole: Sequence[IdentityReading | None],
) -> ProbesJudged:
    """Return what the answers to all probes say. Each reading comes with the tokens asked for.

    A request without an answer speaks against identity too: a fault can be what kept it away.
    """
    limit = find_limit(known)
    lost = sum(one is None for _, one in readings) + sum(one is None for one in whole)
    if lost:
        total = len(readings) + len(whole)
        return ProbesJudged(why=f"{lost} of {total} probes got no answer", limit=limit, largest=0.0)
    found = [
        compare_answers(probe.reading, one, length)
        for probe, (length, one) in zip(known.probes, readings, strict=True)
        if one is not None
    ]
    largest = max((one.nats for one in found), default=0.0)
    return ProbesJudged(
        why=_explain_other(known, readings, whole, found, limit), limit=limit, largest=largest
    )


def _explain_other(
    known: IdentityProbes,
    readings: Sequence[tuple[int, IdentityReading | None]],
    whole: Sequence[IdentityReading | None],
    found: Sequence[Likeness],
    limit: float,
) -> str:
    """Return what speaks against identity, that first which names a cause."""
    if odds := [one.odd for one in found if one.odd]:
        return f"{len(odds)} of {len(found)} probes: {odds[0]}"
    far = [one.nats for one in found if one.nats > limit]
    if far:
        return (
            f"{len(far)} of {len(found)} probes are further away than {limit:.2g} nat, by up to"
            f" {max(far):.2g}: another model, precision or cache"
        )
    own = [
        one.nats
        for probe, (length, _) in zip(known.probes, readings, strict=True)
        for one in list_noise([probe], length)
    ]
    step = find_step([probe.reading for probe in known.probes])
    mean, usual = fmean(one.nats for one in found), fmean(own) if own else 0.0
    if mean > MOST_MEAN * usual + step:
        return (
            f"the probes are {mean:.2g} nat away in the mean, and the reference's server is"
            f" {usual:.2g} nat away from itself: other numerics"
        )
    for probe, one in zip(known.whole, whole, strict=True):
        if one is not None and (odd := compare_whole(probe.reading, one)):
            return odd
    return ""
