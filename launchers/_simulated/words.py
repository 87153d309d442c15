"""Words as the tokens of a simulated endpoint: count them, and cut answers to a number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from serve_eval.launchers._http.answers import Generated
from serve_eval.schema import Prompt

MEDIA_TOKENS = 64
"""Number of tokens for an image, a sound or a video in a prompt."""

_WORD = re.compile(r"\s*\S+")
_PIECE = re.compile(r"\s*\S+|\s+")


def of_prompt(prompt: Prompt, truncate: int | None) -> int:
    """Return the number of tokens of a prompt; only the last `truncate` count."""
    texts = [prompt] if isinstance(prompt, str) else [turn.text for turn in prompt]
    media = 0 if isinstance(prompt, str) else sum(len(turn.media) for turn in prompt)
    words = sum(len(text.split()) for text in texts) + MEDIA_TOKENS * media
    return words if truncate is None else min(words, truncate)


def pieces(text: str) -> Iterator[str]:
    """Yield a text word by word, each with the white space before it."""
    return (match.group() for match in _PIECE.finditer(text))


def first(text: str, count: int) -> str:
    """Return the text up to the end of its `count`-th word."""
    end = 0
    for word in itertools.islice(_WORD.finditer(text), count):
        end = word.end()
    return text[:end]


def limit(generated: Generated, max_tokens: int, stops: Sequence[str]) -> Generated:
    """Return the answer cut at `max_tokens` words and before the first stop string."""
    text, finish_reason, *_ = generated
    assert text is not None
    if len(text) > max_tokens and len(text.split()) > max_tokens:
        text, finish_reason = first(text, max_tokens), "length"
    ends = [(end, stop) for stop in stops if (end := text.find(stop)) >= 0]
    if ends:
        end, stop = min(ends)
        return Generated(text[:end], "stop", stop)
    return Generated(text, finish_reason)
