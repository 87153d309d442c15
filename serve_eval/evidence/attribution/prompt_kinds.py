"""Classify prompts by their beginning, which a router may read, and by their subject.

A router with affinity sends prompts that begin alike to one server, such as questions on one text
or with the examples of one subject.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from serve_eval.schema import Sample, Task

SUBJECT, BEGINNING = "subject", "beginning of the prompt"
LENGTH = 64
"""Characters of a beginning, after the part that all prompts share.

That is about 16 tokens, and less than a block of a prefix cache, so that prompts that share a block
of their own are alike.
"""


def kinds_of(task: Task, samples: Sequence[Sample]) -> dict[str, list[Hashable]]:
    """Return the kind of each sample's prompt by subject and by beginning.

    Leaves out a property that is the same for all.
    """
    kinds: dict[str, list[Hashable]] = {
        SUBJECT: [_subject(task, sample) for sample in samples],
        BEGINNING: [*_beginnings([_text(sample) for sample in samples])],
    }
    return {name: kind for name, kind in kinds.items() if len(set(kind)) > 1}


def _subject(task: Task, sample: Sample) -> str | None:
    """Return the first category in the task's breakdown, or None if there is none."""
    try:
        tables = task.breakdown([(sample, 0.0)])
    except Exception:  # a task's own function; the result names the errors that it makes
        return None
    for table in tables.values():
        if isinstance(table, Mapping) and len(table) == 1:
            return str(next(iter(table)))
    return None


def _beginnings(texts: Sequence[str]) -> list[str]:
    """Return the part of each text that follows their common beginning."""
    # All texts share what the first and the last of them share.
    first, last = min(texts, default=""), max(texts, default="")
    shared = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]),
        len(first),
    )
    return [text[shared : shared + LENGTH] for text in texts]


def _text(sample: Sample) -> str:
    """Return the text of a prompt."""
    return (
        sample.prompt
        if isinstance(sample.prompt, str)
        else "\n".join(turn.text for turn in sample.prompt)
    )
