"""Compare the first token of a model, such as <s>, at the beginning of two readings. Pure."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.evidence.prompt_audit.causes import PromptCause
from serve_eval.evidence.prompt_audit.pieces import looks_special
from serve_eval.evidence.prompt_audit.reading import NamedCause, PromptReading
from serve_eval.schema import Prompt


def split_first_token(
    expected: PromptReading, found: PromptReading, prompt: Prompt
) -> tuple[list[NamedCause], PromptReading, PromptReading]:
    """Return findings about the first token, and both readings without its copies.

    Nothing is removed if the first token is not known: from the files of the model, or because one
    side has exactly this token more.
    """
    bos = expected.bos if expected.bos is not None else found.bos
    if bos is None:
        bos = _guess(expected, found, prompt)
    if bos is None:
        return [], expected, found
    copies, name = _count(found, bos), _name(bos, found, expected)
    named = [
        NamedCause(PromptCause.BOS_DOUBLED, f"{one.side} begins {count} times with {name}")
        for one in (found, expected)
        if (count := _count(one, bos)) > 1
    ]
    lacking = _count(expected, bos)
    if lacking and not copies:
        told = f"{found.side} lacks the first token {name} of {expected.side}"
        named.append(NamedCause(PromptCause.BOS_MISSING, told))
    elif copies and not lacking:
        told = f"{found.side} begins with {name}; {expected.side} does not"
        named.append(NamedCause(PromptCause.BOS_ADDED, told))
    return named, _without(expected, lacking), _without(found, copies)


def _guess(expected: PromptReading, found: PromptReading, prompt: Prompt) -> int | None:
    """Return a token that one side has more than the other at its beginning, or twice, or None.

    A text that begins with white space can lose that as its first token.
    """
    for longer, shorter in ((found, expected), (expected, found)):
        ids = longer.ids or ()
        if len(ids) < 2:
            continue
        if longer.pieces is not None and not looks_special(longer.pieces[0]):
            continue
        if longer.pieces is None and isinstance(prompt, str) and prompt[:1].isspace():
            continue
        doubled = longer.pieces is not None and ids[0] == ids[1]
        if ids[1:] == shorter.ids or doubled:
            return ids[0]
    return None


def _count(reading: PromptReading, bos: int) -> int:
    ids = reading.ids or ()
    return next((at for at, token in enumerate(ids) if token != bos), len(ids))


def _name(bos: int, *readings: PromptReading) -> str:
    for one in readings:
        if one.pieces and one.ids and one.ids[0] == bos:
            return f"{one.pieces[0]} (id {bos})"
    return f"id {bos}"


def _without(reading: PromptReading, copies: int) -> PromptReading:
    pieces = None if reading.pieces is None else reading.pieces[copies:]
    return replace(reading, ids=(reading.ids or ())[copies:], pieces=pieces)
