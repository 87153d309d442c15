"""What a model thought aloud, apart from its answer. Pure."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str | None]:
    """(answer, thoughts): the thoughts are what stands between <think> and </think>, None where
    there are none.

    `opened`: the prompt ended in <think>. A </think> that nothing opened closes what the chat
    template opened. Thoughts that never end leave no answer: whatever stands in them was not meant
    as one.
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
    """Whether a prompt ends with the model thinking, as the templates of some models do."""
    return prompt.rstrip().endswith(OPEN)
