"""Requests that the simulated endpoint can answer, and their answers as a body or as events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from serve_eval.launchers._http.answers import Events, Generated, TokenUsage, answer_body
from serve_eval.launchers._http.requests import Ask
from serve_eval.launchers._simulated import words
from serve_eval.schema import Prompt


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
        for piece in words.pieces(one.text or ""):
            yield stream.piece(index, piece)
        for place, call in enumerate(one.calls):
            for event in stream.call(index, place, call, words.pieces(call.arguments)):
                yield event
        if finish:
            yield stream.end(index, one)
    for event in stream.finish(asked.usage(generated)):
        yield event
