"""Request and read the log-probabilities of a prompt. Pure.

A server that does not know the fields often ignores them silently. The entries are therefore
counted against the number of prompt tokens that the server reports. Too few are not an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from serve_eval.client.wire_format import bodies, refusal, wire
from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.odd_bodies import refuse_error
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.schema import LogprobsForm, PromptLogprobs

FIELDS: Mapping[LogprobsForm, Mapping[str, object]] = {
    "echo": {"echo": True, "logprobs": 1, "max_tokens": 1},
    "prompt_logprobs": {"prompt_logprobs": 0, "max_tokens": 1},
}
"""The fields that each form sends, which replace all others. One token is generated: some servers
refuse to generate none, and an early trtllm-serve crashed on it."""


class _Listed(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    text_offset: list[int] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _Entry(msgspec.Struct):
    logprob: float
    decoded_token: str | None = None
    rank: int | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    finish_reason: str | None = None
    logprobs: _Listed | None = None
    prompt_logprobs: list[dict[str, _Entry] | None] | None = None


class _Body(msgspec.Struct):
    id: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    system_fingerprint: Any = None


_read = msgspec.json.Decoder(_Body).decode


def decode(body: bytes, content_type: str, prompt: str) -> Said:
    """Return the log-probabilities in a complete 2xx body.

    Raises InvalidResponse if any are missing.
    """
    body = body.removeprefix(bodies.BOM)
    try:
        refuse_error(wire.parse(body), body, answered=True)
        parsed = _read(body)
    except refusal.UNREADABLE as error:
        raise InvalidResponse(
            f"no log-probabilities ({content_type or 'no content type'})", body
        ) from error
    if not parsed.choices:
        raise InvalidResponse("no choices in the answer", body)
    choice, usage = wire.first_choice(parsed.choices, body), bodies.usage(parsed.usage)
    generated = choice.prompt_logprobs is None
    values, tokens, offsets = _entries(choice)
    expected = usage.prompt_tokens
    unlisted = expected > 0 and len(values) == expected + usage.completion_tokens - 1
    if unlisted and _spell(tokens[: expected - 1], prompt):
        expected -= 1  # llama-cpp-python counts the token before a text but does not list it
    return Said(
        id=bodies.answer_id(parsed.id),
        fingerprint=bodies.fingerprint(parsed.system_fingerprint),
        finish_reason=wire.read_finish_reason(choice.finish_reason),
        usage=usage,
        prompt_logprobs=_keep_prompt(
            values,
            tokens,
            offsets,
            likeliest=_likeliest(choice),
            expected=expected,
            generated=generated,
            prompt=prompt,
        ),
    )


def _entries(choice: _Choice) -> tuple[list[float | None], Sequence[str | None], list[int] | None]:
    """Return log-probabilities, texts and offsets of all reported tokens, also generated ones."""
    if choice.prompt_logprobs is not None:
        # The token of the prompt comes first. Some servers add likelier ones.
        first = _first_entries(choice.prompt_logprobs)
        return (
            [e.logprob if e else None for e in first],
            [e.decoded_token if e else None for e in first],
            None,
        )
    listed = choice.logprobs
    if listed is None or listed.token_logprobs is None:
        return [], [], None
    count = len(listed.token_logprobs)
    tokens: Sequence[str | None] = listed.tokens or ()
    offsets = listed.text_offset
    return (
        listed.token_logprobs,
        tokens if len(tokens) == count else [None] * count,
        offsets if offsets is not None and len(offsets) == count else None,
    )


def _first_entries(told: Sequence[Mapping[str, _Entry] | None]) -> list[_Entry | None]:
    return [next(iter(entry.values()), None) if entry else None for entry in told]


def _likeliest(choice: _Choice) -> list[bool | None]:
    """Return for each reported token if it was the likeliest; None if that is unknown."""
    if choice.prompt_logprobs is not None:
        first = _first_entries(choice.prompt_logprobs)
        return [None if e is None or e.rank is None else e.rank == 1 for e in first]
    listed = choice.logprobs
    if listed is None or listed.top_logprobs is None:
        return []
    pairs = zip(listed.token_logprobs or (), listed.top_logprobs, strict=False)
    return [
        None if value is None or not top else value >= max(top.values()) for value, top in pairs
    ]


def _spell(tokens: Sequence[str | None], text: str) -> bool:
    """Return True if tokens spell a text, except for a space that some tokenizers prepend."""
    return bool(text) and "".join(token or "" for token in tokens).removeprefix(
        " "
    ) == text.removeprefix(" ")


def _keep_prompt(
    values: list[float | None],
    tokens: Sequence[str | None],
    offsets: list[int] | None,
    *,
    likeliest: list[bool | None],
    expected: int,
    generated: bool,
    prompt: str,
) -> PromptLogprobs:
    """Return the first `expected` entries, those of the prompt (0: the server reports no number).

    With `generated`, entries of generated tokens may follow. Raises InvalidResponse if there are
    too few, or gaps after the beginning.
    """
    if not expected:
        inside = len(values) if offsets is None else sum(offset < len(prompt) for offset in offsets)
        expected = inside
        if values and offsets is None and generated:
            raise InvalidResponse(
                "neither usage nor text_offset shows which tokens belong to the prompt"
            )
    if len(values) < max(expected, 1):
        raise InvalidResponse(
            f"{len(values)} log-probabilities for a prompt of {expected or 'some'} tokens: "
            "the server does not return those of prompts"
        )
    values, tokens = values[:expected], tokens[:expected]
    skipped = next((i for i, value in enumerate(values) if value is not None), len(values))
    known = [value for value in values[skipped:] if value is not None]
    if len(known) < len(values) - skipped or skipped > 1 or not known:
        raise InvalidResponse(
            f"{len(known)} of {len(values)} tokens of the prompt have a log-probability"
        )
    places = _offsets(tokens, None if offsets is None else offsets[:expected], prompt)
    texts = [token or "" for token in tokens[skipped:]] if places is None and any(tokens) else None
    best = likeliest[skipped:expected]
    return PromptLogprobs(
        values=tuple(known),
        likeliest=(
            "".join("01"[bool(b)] for b in best)
            if len(best) == len(known) and None not in best
            else None
        ),
        skipped=skipped,
        offsets=None if places is None else tuple(places[skipped:]),
        tokens=None if texts is None else tuple(texts),
    )


def _offsets(
    tokens: Sequence[str | None], given: list[int] | None, prompt: str
) -> Sequence[int] | None:
    """Return where tokens begin in the prompt, or None.

    Their texts are more reliable than the server's offsets, which may count the first token even if
    it precedes the text. The prompt may have lost its beginning to truncation.
    """
    first, rest = tokens[0], [token for token in tokens[1:] if token is not None]
    joined = "".join(rest)
    if len(rest) == len(tokens) - 1 and prompt.endswith(joined):
        begin = len(prompt) - len(joined)
        inside = first is not None and prompt[:begin].endswith(first)
        starts = accumulate(map(len, rest[:-1]), initial=begin) if rest else ()
        return [begin - len(first or "") if inside else begin, *starts]
    if given and given[-1] < len(prompt) and all(a <= b for a, b in pairwise(given)):
        return given
    return None
