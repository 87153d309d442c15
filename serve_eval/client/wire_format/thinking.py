"""Separate a model's thoughts from its answer. Pure."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str | None]:
    """Return (answer, thoughts). The thoughts are the text between <think> and </think>, or None.

    `opened`: the prompt ended in <think>. A </think> without a <think> closes the one that the chat
    template opened. Thoughts without an end leave no answer, because no text in them was meant as
    one.
    """
    opens, closes = text.find(OPEN), text.find(CLOSE)
    if opens < 0 and closes < 0 and not opened:
        return text, None
    thinking = opened or (closes >= 0 and (opens < 0 or closes < opens))
    answer: list[str] = []
    thoughts: list[str] = []
    rest, mark = text, CLOSE
    while mark:
        piece, mark, rest = rest.partition(CLOSE if thinking else OPEN)
        (thoughts if thinking else answer).append(piece)
        thinking = thinking != bool(mark)
    if thinking:
        return "", text
    return "".join(answer), "\n".join(thought for thought in thoughts if thought.strip()) or None


def leaves_thinking_open(prompt: str) -> bool:
    """Return True if a prompt ends with an open <think>, as some chat templates do."""
    last = prompt[-1:]
    return (last == ">" or last.isspace()) and prompt.rstrip().endswith(OPEN)
