"""Tell prompts apart by what a router may look at, and by what the task says of them.

A router with affinity sends prompts that begin alike, such as questions on one text or with the
examples of one subject, to one server.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from serve_eval.schema import Sample, Task

SUBJECT, BEGINNING = "subject", "beginning of the prompt"
LENGTH = 64
"""Characters of a beginning, behind what all prompts begin with: some 16 tokens, and less than a
block of a prefix cache, so that prompts with a block of their own in common are alike."""


def kinds_of(task: Task, samples: Sequence[Sample]) -> dict[str, list[Hashable]]:
    """Return the kind of each sample's prompt by its subject and by its beginning, where these tell
    some apart.
    """
    kinds: dict[str, list[Hashable]] = {
        SUBJECT: [_subject(task, sample) for sample in samples],
        BEGINNING: [*_beginnings([_text(sample) for sample in samples])],
    }
    return {name: kind for name, kind in kinds.items() if len(set(kind)) > 1}


def _subject(task: Task, sample: Sample) -> str | None:
    """Name what the task's breakdown tells apart first; None where it has none."""
    for table in task.breakdown([(sample, 0.0)]).values():
        if isinstance(table, Mapping) and len(table) == 1:
            return str(next(iter(table)))
    return None


def _beginnings(texts: Sequence[str]) -> list[str]:
    """Cut out of each text what follows the beginning that all have."""
    first, last = (
        min(texts, default=""),
        max(texts, default=""),
    )  # what these two share, all between them do
    shared = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        len(first),
    )
    return [text[shared : shared + LENGTH] for text in texts]


def _text(sample: Sample) -> str:
    """Return what of a prompt is text."""
    return (
        sample.prompt
        if isinstance(sample.prompt, str)
        else "\n".join(turn.text for turn in sample.prompt)
    )
