"""Find the answer of the simulated endpoint to a request, in words as its tokens.

The answer file has one JSON object per line: `sha256` of the prompt
(`serve_eval.schema.media`), the texts `right` and `wrong`, and the `probability` of the right
one. A token is a word with the white space before it.

Hashes decide chance. The answer is right if a uniform number of (seed, run, prompt) is below the
probability times (1 - damage), so more damage only adds wrong answers. The prompts that fail, are
cut or come back empty depend on (seed, prompt).
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import msgspec

from serve_eval.launchers._http.answers import Events, Generated, TokenUsage, answer_body
from serve_eval.launchers._http.requests import Ask
from serve_eval.launchers._simulated import guided
from serve_eval.launchers._simulated import guided as tools
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.schema import Prompt
from serve_eval.schema.media import uniform

UNKNOWN_ANSWER = "I do not know."
SAMPLED_ANSWERS = (
    UNKNOWN_ANSWER,
    "I cannot tell.",
    "That is unknown to me.",
    "Nobody told me that.",
    "I have no answer to this.",
)
"""Answers to a prompt that the answer file does not know: the first, or with a temperature, one
that the request's seed decides."""


class _Entry(msgspec.Struct):
    """A line of the answer file."""

    sha256: str
    right: str
    wrong: str
    probability: float


class AnswerFile:
    """Draws chance once, when it reads the answer file; a request then only looks up.

    `by_hash` has the answer of each known prompt, `failing` the hashes of the prompts that fail.
    Raises OSError or msgspec.MsgspecError for a bad answer file.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self.by_hash: dict[str, Generated] = {}
        self.failing: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._drawn: Counter[str] = Counter()
        lines = config.answers.read_bytes() if config.answers else b""
        for entry in msgspec.json.Decoder(_Entry).decode_lines(lines):
            self.by_hash[entry.sha256] = self._draw(entry)
            if config.varied:
                self._entries[entry.sha256] = entry
            if uniform(f"{config.seed}:fail:{entry.sha256}") < config.failure_rate:
                self.failing.add(entry.sha256)

    def answer(self, key: str, ask: Ask) -> Generated:
        """Return the answer to a prompt by its hash, or a made-up one if it is unknown.

        With `varied`, it is drawn again each time.
        """
        if key in self._entries:
            again = self._drawn[key]
            self._drawn[key] += 1
            return self._draw(self._entries[key], again)
        return self.by_hash.get(key) or self._make_up(key, ask)

    def _draw(self, entry: _Entry, again: int = 0) -> Generated:
        config, key = self._config, entry.sha256
        drawn = f"{config.seed}:{config.run}:{key}" + (f":{again}" if again else "")
        right = uniform(drawn) < entry.probability * (1.0 - config.damage)
        text = entry.right if right else entry.wrong
        if uniform(f"{config.seed}:empty:{key}") < config.empty_rate:
            return Generated("", "stop")
        if uniform(f"{config.seed}:truncate:{key}") < config.truncate_rate:
            return Generated(first(text, max(1, len(text.split()) // 2)), "length")
        return Generated(text, "stop")

    def _make_up(self, key: str, ask: Ask) -> Generated:
        if ask.response_format and not self._config.no_guided:
            schema = guided.schema_of(ask.response_format)
            if schema is not None:
                return Generated(guided.generate_text(schema), "stop")
        if ask.tools:
            return Generated(tools.generate_call(ask.tools), "stop")
        draw = (
            int(len(SAMPLED_ANSWERS) * uniform(f"{ask.seed or 0}:{key}")) if ask.temperature else 0
        )
        return Generated(SAMPLED_ANSWERS[draw], "stop")


class Asked(NamedTuple):
    """A request that can be answered, with its token counts."""

    ask: Ask
    prompts: Sequence[Prompt]
    hashes: Sequence[str]
    max_tokens: int
    prompt_tokens: int

    def usage(self, generated: Sequence[Generated]) -> TokenUsage:
        """Count the words of the prompts and of their answers."""
        said = [
            text
            for one in generated
            for text in (one.text, *(call.arguments for call in one.calls))
        ]
        return TokenUsage(self.prompt_tokens, sum(len(text.split()) for text in said if text))


def whole(asked: Asked, number: int, generated: Sequence[Generated]) -> bytes:
    """Return the answer as one JSON body."""
    return answer_body(asked.ask, number, generated, asked.usage(generated))


async def events(
    asked: Asked, number: int, generated: Sequence[Generated], *, finish: bool = True
) -> AsyncIterator[bytes]:
    """Yield the answer as server-sent events, one per word."""
    stream = Events(asked.ask, number)
    for index, one in enumerate(generated):
        for event in stream.begin_choice(index, one):
            yield event
        for piece in pieces(one.text or ""):
            yield stream.piece(index, piece)
        for place, call in enumerate(one.calls):
            for event in stream.call(index, place, call, pieces(call.arguments)):
                yield event
        if finish:
            yield stream.end(index, one)
    for event in stream.finish(asked.usage(generated)):
        yield event


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
