"""Write an answer file for the stand-in: the right and a wrong answer to each prompt of a plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Plan
from serve_eval.schema.media import prompt_sha256


def write_answers(
    plan: Plan, path: Path, chance: Callable[[str, str], float] | None = None
) -> Path:
    """Write the file and return it.

    `chance` is the probability of a right answer by task and sample; without it, three of four
    answers are right.
    """
    with path.open("wb") as file:
        for p in prepare(plan):
            for number, sample in enumerate(p.dataset.samples):
                right, wrong = p.task.answers(sample)
                given = chance(p.task.name, sample.id) if chance else float(number % 4 > 0)
                line = {"sha256": prompt_sha256(sample.prompt), "right": right, "wrong": wrong}
                file.write(msgspec.json.encode({**line, "probability": given}) + b"\n")
    return path
