"""Name the causes for which two sides read a prompt as different tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from serve_eval.evidence.prompt_audit.causes import PromptCause
from serve_eval.evidence.prompt_audit.dates import find_today
from serve_eval.evidence.prompt_audit.differences import name_difference
from serve_eval.evidence.prompt_audit.first_token import split_first_token
from serve_eval.evidence.prompt_audit.reading import (
    NamedCause,
    PromptFinding,
    PromptReading,
    shorten_prompt,
)
from serve_eval.schema import Prompt


def compare(
    expected: PromptReading, found: PromptReading, *, prompt: Prompt, today: date
) -> list[PromptFinding]:
    """Return the findings about one prompt, of which there is at least one.

    `found` is the reading of the endpoint in question, `expected` that of the other side. A wrong
    first token, a date, and routes that disagree are findings of their own, next to any other
    difference.
    """
    named = list(_check_routes(expected, found))
    if expected.ids is None or found.ids is None:
        named.append(_compare_counts(expected, found))
    else:
        named += _compare_ids(expected, found, prompt, today)
    same = _same(expected, found)
    if not named:
        told = f"{found.length} tokens on both sides ({found.source}, {expected.source})"
        named = [NamedCause(PromptCause.SAME, told)]
    return [
        PromptFinding(prompt=shorten_prompt(prompt), cause=one.cause, told=one.told, same=same)
        for one in named
    ]


def _same(expected: PromptReading, found: PromptReading) -> bool | None:
    """Return if both sides read the same tokens, None if that is not known.

    Ids that are not as many as answers count are not those that the engine read.
    """
    if expected.ids and found.ids and expected.agrees and found.agrees:
        return expected.ids == found.ids
    if expected.length is None or found.length is None or expected.length == found.length:
        return None
    return False


def _check_routes(*readings: PromptReading) -> Iterator[NamedCause]:
    for one in readings:
        if not one.agrees:
            told = f"{one.side}: {one.source} gives {len(one.ids or ())} tokens"
            yield NamedCause(
                PromptCause.ROUTES_DISAGREE, f"{told}, but its answers count {one.count}"
            )


def _compare_counts(expected: PromptReading, found: PromptReading) -> NamedCause:
    for one in (found, expected):
        if one.length is None:
            return NamedCause(PromptCause.NOT_READ, f"{one.side}: {one.problem}")
    assert expected.length is not None
    assert found.length is not None
    if expected.length == found.length:
        told = f"{found.length} tokens on both sides; ids are not available"
        return NamedCause(PromptCause.SAME_COUNT, told)
    more = found.length - expected.length
    word = "more" if more > 0 else "fewer"
    told = f"{found.side} counts {found.length} tokens, {abs(more)} {word} than {expected.side}"
    return NamedCause(PromptCause.COUNT_DIFFERS, f"{told}; ids are not available")


def _compare_ids(
    expected: PromptReading, found: PromptReading, prompt: Prompt, today: date
) -> list[NamedCause]:
    named, expected, found = split_first_token(expected, found, prompt)
    if expected.ids != found.ids:
        named.append(name_difference(expected, found, prompt))
    if isinstance(prompt, str) or any(one.cause is PromptCause.DATE for one in named):
        return named
    asked = "\n".join(turn.text for turn in prompt)
    for one in (found, expected):
        written = find_today(one.text or "", today)
        if written is not None and written not in asked:
            told = f"the chat template of {one.side} writes the date {written}"
            return [*named, NamedCause(PromptCause.DATE, told)]
        if one.dated:
            told = f"the chat template of {one.side} renders another text on another day"
            return [*named, NamedCause(PromptCause.DATE, told)]
    return named
