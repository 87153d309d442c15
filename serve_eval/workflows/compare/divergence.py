"""Find the first token in which two endpoints differ, with a summary of all such places.

Both are asked the same prompt again, with log-probabilities. The numerics of a kernel or a batch
decide only between tokens that are nearly equally likely. A wrong cache or weight also changes
other tokens. An endpoint that writes a token which it ranks below another has its ranking
overruled: by a penalty, a bias or a temperature that it adds to the request.

A fault before the first token is generated (the prompt, its cache) shows at token 0. A fault that
begins later shows later, and the numerics of a sound pair differ anywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from serve_eval.client.client import Client
from serve_eval.evaluation.probe_server import AnswerToken, Unreadable, ask_tokens
from serve_eval.evidence.answer_texts import BAR, RANGES, find_token, is_clear, name_range
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import Divergence, DivergencePlaces, Flip, Parting, Request, Sample, Task

NEAR_TIE_NATS = 0.1
"""Tokens whose log-probabilities differ by less than this many nats are a near tie."""
GUIDES = {
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "logit_bias",
    "tools",
}
"""Fields with which a request itself may keep the likeliest token from being written."""
ROUNDED_NATS = 0.001
"""Nats below the likeliest token from which a token was no tie of rounded numbers."""
TOGETHER = 8
"""Prompts that are examined at the same time."""


async def look(task: Task, sample: Sample, a: Client, b: Client) -> Divergence:
    """Ask both endpoints for the sample again, and return their first divergence."""
    if sample.conversation is not None:
        return Divergence(kind="unknown", why="a conversation has an answer for each turn")
    request = request_of(task, sample)
    try:
        one, other = await asyncio.gather(_tokens(request, a), _tokens(request, b))
    except Unreadable as error:
        return Divergence(kind="unknown", why=str(error))
    greedy = request.sampling.temperature == 0 and not GUIDES & request.extra.keys()
    return first_divergence(one, other, greedy=greedy)


async def look_at_all(task: Task, samples: list[Sample], a: Client, b: Client) -> list[Divergence]:
    """Return the divergences of several samples, asked TOGETHER at a time.

    If the first response has no log-probabilities, the other samples are not asked.
    """
    if task.prompt_logprobs or not samples or samples[0].choices:
        return [
            Divergence(kind="unknown", why="the task requests probabilities, not an answer")
            for _ in samples
        ]
    found = [await look(task, samples[0], a, b)]
    if found[0].kind == "unknown":
        return found * len(samples)
    for start in range(1, len(samples), TOGETHER):
        found += await asyncio.gather(
            *(look(task, sample, a, b) for sample in samples[start : start + TOGETHER])
        )
    return found


async def place_partings(
    task: Task, parted: Sequence[tuple[Sample, Parting]], client: Client
) -> dict[str, int]:
    """Return, by sample, the token at which its answers parted, where new answers show it.

    The samples are asked TOGETHER at a time, and no more of them once none of these is found.
    """
    if task.prompt_logprobs or any(s.choices or s.conversation for s, _ in parted[:1]):
        return {}

    async def place(sample: Sample, parting: Parting) -> int | None:
        try:
            tokens = await _tokens(request_of(task, sample), client)
        except Unreadable:
            return None
        texts = [token.text for token in tokens]
        return find_token(texts, parting.character, parting.before)

    found: dict[str, int] = {}
    for start in range(0, len(parted), TOGETHER):
        some = parted[start : start + TOGETHER]
        places = await asyncio.gather(*(place(*one) for one in some))
        known = {s.id: at for (s, _), at in zip(some, places, strict=True) if at is not None}
        found |= known
        if not known:
            break
    return found


def first_divergence(
    one: Sequence[AnswerToken], other: Sequence[AnswerToken], *, greedy: bool = False
) -> Divergence:
    """Return the first divergence of two answers. Pure.

    `greedy`: the request asks for the likeliest token, whatever it is.

    A token that is not among the likeliest of the other endpoint is less likely there than each of
    them. The gap is then at least the one to the least likely of them.
    """
    place = next(
        (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x.text != y.text), None
    )
    if place is None and len(one) == len(other):
        return Divergence(kind="same again")
    if place is None:
        longer = "A" if len(one) > len(other) else "B"
        return Divergence(
            kind="unknown",
            token=min(len(one), len(other)),
            why=f"the shorter answer is the beginning of the answer of {longer}",
        )
    x, y = one[place], other[place]
    gaps = _gap(x, y.text), _gap(y, x.text)
    overruled = find_overruled(x, y) if greedy else None
    if overruled is not None:
        kind = "overruled"
    elif max(gap for gap, _ in gaps) >= NEAR_TIE_NATS:
        kind = "confident"
    elif all(known for _, known in gaps):
        kind = "near tie"
    else:
        kind = "unknown"
    return Divergence(
        kind=kind,  # type: ignore[arg-type]
        token=place,
        tokens=(x.text, y.text),
        gaps=(round(gaps[0][0], 6), round(gaps[1][0], 6)),
        why=(
            ""
            if kind != "unknown"
            else "the response has no log-probability for the token of the other endpoint"
        ),
        overruled=overruled,
    )


def find_overruled(a: AnswerToken, b: AnswerToken) -> Literal["A", "B"] | None:
    """Return the endpoint whose ranking something overruled; None if neither or both.

    Its own numbers say so, from the same step as its token: numerics cannot. Both must give the
    tokens the same log-probabilities, so that weights, cache and prompt are the same up to
    numerics.
    """
    known = a.top.keys() & b.top.keys()
    alike = known and all(abs(a.top[text] - b.top[text]) < NEAR_TIE_NATS for text in known)
    below = [max(one.top.values(), default=one.logprob) - one.logprob for one in (a, b)]
    if not alike or (below[0] >= ROUNDED_NATS) is (below[1] >= ROUNDED_NATS):
        return None
    return "A" if below[0] > below[1] else "B"


def _gap(token: AnswerToken, text: str) -> tuple[float, bool]:
    """Return by how many nats a token was preferred to `text`, and True if that is exact.

    The number is a lower bound if the second value is False.
    """
    if text in token.top:
        return token.logprob - token.top[text], True
    return max(0.0, token.logprob - min(token.top.values(), default=token.logprob)), False


async def _tokens(request: Request, client: Client) -> Sequence[AnswerToken]:
    """Return the tokens of an answer to the request. Raises Unreadable."""
    found = await ask_tokens(request, client)
    if not found.tokens:
        raise Unreadable("the answer has no log-probabilities")
    return found.tokens


LEAST_EXAMINED = 3
"""Flips with a result that a summary needs."""
LEAST_OVERRULED = 2
"""Flips in which one side must be overruled; two thirds of the examined ones must be, too."""
SHORT_ANSWER = 16
"""Characters of an extracted answer beyond which texts may well part inside it."""
SAME, UNKNOWN = "same again", "unknown"


def find_places(flips: Sequence[Flip]) -> DivergencePlaces | None:
    """Return where the examined flips first differ; None if too few gave a result."""
    examined = [(flip, flip.divergence) for flip in flips if flip.divergence is not None]
    counts = Counter(_range(one) for _, one in examined)
    if len(examined) - counts[UNKNOWN] < LEAST_EXAMINED:
        return None
    sure = Counter(_range(one) for _, one in examined if one.kind == "confident")
    (side, times), *_ = Counter(one.overruled for _, one in examined).most_common(1)
    overruled = side if 3 * times >= 2 * len(examined) and times >= LEAST_OVERRULED else None
    return DivergencePlaces(
        counts={place: counts[place] for place in (*RANGES, SAME, UNKNOWN)},
        confident={place: sure[place] for place in RANGES},
        reading=phrase_overruled(overruled, times, len(examined)) if overruled else _read(examined),
        overruled=overruled,
    )


def draw_places(places: DivergencePlaces) -> Iterator[str]:
    """Yield the lines of a histogram, at most 80 columns wide."""
    filled = [place for place in RANGES if places.counts.get(place)]
    shown = [*RANGES[: RANGES.index(filled[-1]) + 1 if filled else 0]]
    shown += [place for place in (SAME, UNKNOWN) if places.counts.get(place)]
    scale = max(1.0, max(places.counts.values(), default=0) / BAR)
    for place in shown:
        count, sure = places.counts.get(place, 0), places.confident.get(place, 0)
        length, dark = round(count / scale), round(sure / scale)
        name = place if place in (SAME, UNKNOWN) else f"token{'s' * (place != '0')} {place}"
        bar = "#" * dark + "." * (length - dark)
        yield f"  {name:<13} {count:>5}  {bar}".rstrip()


def _range(one: Divergence) -> str:
    if one.token is None:
        return SAME if one.kind == SAME else UNKNOWN
    return name_range(one.token)


def _read(examined: Sequence[tuple[Flip, Divergence]]) -> str:
    """Return the sentence about a token at which most flips differ, or an empty text.

    After token 0, flips whose answers begin alike count once: a form of the answers that all share,
    such as "The answer is", also brings them to the same token.
    """
    sure = [
        (one.token, flip)
        for flip, one in examined
        if one.kind == "confident" and one.token is not None and not _parts_in_answer(flip)
    ]
    unlike = {(token, _beginning(flip) if token else flip.id) for token, flip in sure}
    for token, alike in Counter(token for token, _ in unlike).most_common(1):
        if is_clear(alike, len(examined)):
            return _phrase(token, sum(one == token for one, _ in sure), len(examined))
    return ""


def phrase_overruled(side: str, times: int, examined: int) -> str:
    """Return the sentence about an endpoint that does not write its likeliest tokens."""
    return (
        f"in {times} of {examined} flips {side} writes a token that it ranks below another, with"
        f" the log-probabilities of {'B' if side == 'A' else 'A'}: {side} adds a penalty, a bias or"
        " a temperature (generation_config.json), and weights, cache and prompt are the same"
    )


def _phrase(token: int, alike: int, examined: int) -> str:
    if token == 0:
        return (
            f"the first token already differs in {alike} of {examined} flips: look at the prompt"
            " and its KV cache (template, prefix, transfer)"
        )
    where = (
        "the first step of generation (the KV cache that a generation server received)"
        if token == 1
        else "the step that begins there (speculation, a new cache block, a limit of tokens)"
    )
    return f"{alike} of {examined} flips first differ at token {token}: look at {where}"


def _beginning(flip: Flip) -> str:
    """Return the text of A up to the first difference."""
    place = flip.first_difference
    return flip.texts[0] if place is None else flip.texts[0][: place.character]


def _parts_in_answer(flip: Flip) -> bool:
    """Return True if the texts part where both have a short extracted answer.

    Flips differ there at the latest, whatever the fault.
    """
    if flip.first_difference is None:
        return False
    place = flip.first_difference.character
    return all(
        answer is not None and _stands_at(place, answer.lower(), text.lower())
        for text, answer in zip(flip.texts, flip.answers, strict=True)
    )


def _stands_at(place: int, answer: str, text: str) -> bool:
    if not 0 < len(answer) <= SHORT_ANSWER:
        return False
    start = text.find(answer, max(0, place - len(answer) + 1))
    return start >= 0 and not text[place:start].strip()
