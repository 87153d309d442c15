"""Collect the texts that probes are cut from: prompts of tasks, or paragraphs of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import HOLDOUT, Sample

LEAST_CHARS = 20
LEAST_TEXTS = 5


def texts_of_tasks(tasks: Sequence[PreparedTask]) -> list[str]:
    """Return each prompt with its expected answer, except for those that must not be shown.

    Raises PlanError if there are too few.
    """
    found = [
        _text_of(sample)
        for prepared in tasks
        for sample in prepared.dataset.samples
        if HOLDOUT not in sample.metadata
    ]
    return _check([text for text in found if len(text) >= LEAST_CHARS], "the tasks have")


def read_texts(path: Path) -> list[str]:
    """Return the paragraphs of a file. Raises PlanError for a file that has too few."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"verify.text {path}: {error}") from error
    parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n", content)]
    return _check([part for part in parts if len(part) >= LEAST_CHARS], f"verify.text {path} has")


def _check(texts: list[str], who: str) -> list[str]:
    if len(texts) < LEAST_TEXTS:
        raise PlanError(
            f"{who} {len(texts)} texts of {LEAST_CHARS} characters or more;"
            f" probes need {LEAST_TEXTS}",
            hint="Name other tasks with --tasks, or a file of paragraphs: --set verify.text=FILE.",
        )
    return texts


def _text_of(sample: Sample) -> str:
    return "".join(_parts(sample))


def _parts(sample: Sample) -> Iterator[str]:
    if isinstance(sample.prompt, str):
        yield sample.prompt
    else:
        yield "\n".join(message.text for message in sample.prompt)
    yield sample.target
