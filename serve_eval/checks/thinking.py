"""Know whether the model thinks before it answers, and give its answers room for that.

A short answer of such a model ends within its thoughts. It is then neither empty nor wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from serve_eval.checks.answer import Answer, AnswerChoice, count_thoughts
from serve_eval.client.wire_format.thinking import CLOSE, OPEN, split_thinking

OFF: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""The switch that the templates of most hybrid models have. Others ignore it."""
ROOM, MOST_ROOM = 512, 4096
"""Fewest and most tokens that an answer is given for its thoughts."""
ROOM_FACTOR = 4
"""Room for thoughts, in multiples of those about an easy sum."""


class Thinking(NamedTuple):
    """The thoughts of a model in chats, as far as a smoke test found out.

    `opened`: the chat template opens them, so that an answer shows only their end. `off` are the
    fields that switch them off; empty if nothing does. `room` is the number of tokens that an
    answer needs for them. `endless`: they did not end in the most room that was tried.
    """

    thinks: bool = False
    opened: bool = False
    off: Mapping[str, Any] = {}
    room: int = 0
    endless: bool = False

    def read(self, choice: AnswerChoice) -> str | None:
        """Return the answer without its thoughts; None if it was cut before it began."""
        opened = self.opened and not self.off
        rest, _ = split_thinking(choice.text, opened=opened)
        return None if not rest.strip() and choice.finish == "length" else rest

    def read_said(self, choice: AnswerChoice) -> str:
        """Return all that a choice says, or its answer alone if the model thinks."""
        return (self.read(choice) or "") if self.thinks else choice.said


NO_THOUGHTS = Thinking()
LOOP_CHARS, LOOP_TIMES = 1000, 8
"""Characters and repetitions at the end of thoughts that are a loop. A line of dashes is none."""


def find_loop(text: str) -> str:
    """Return the piece that a text repeats to its end, empty if it repeats none."""
    end = text.rstrip()
    for period in range(1, len(end) // LOOP_TIMES + 1):
        times = max(LOOP_TIMES, -(-LOOP_CHARS // period))
        if times * period > len(end) or end[-1 - period] != end[-1]:
            continue
        if end.endswith(end[-period:] * times):
            return _begin_at_sentence(end[-period:])
    return ""


def _begin_at_sentence(piece: str) -> str:
    """Return a repeated piece from the beginning of a sentence on, if it has one."""
    ended = max(piece.find(mark) for mark in (". ", "? ", "! ", "\n"))
    return (piece[ended + 1 :] + piece[: ended + 1]) if ended >= 0 else piece


def shows_thoughts(answer: Answer) -> bool:
    """Return True if an answer shows thoughts, or its server counts some that it hides."""
    first = answer.first
    tagged = OPEN in first.text or CLOSE in first.text
    return bool(first.thoughts.strip()) or tagged or count_thoughts(answer.parsed.get("usage")) > 0


def opens_thoughts(choice: AnswerChoice) -> bool:
    """Return True if the text closes thoughts that it did not open."""
    before, closed, _ = choice.text.partition(CLOSE)
    return bool(closed) and OPEN not in before


def room_for(tokens: int | None) -> int:
    """Return the room for thoughts, from the tokens of an answer to an easy sum."""
    return ROOM if tokens is None else min(MOST_ROOM, max(ROOM, ROOM_FACTOR * tokens))
