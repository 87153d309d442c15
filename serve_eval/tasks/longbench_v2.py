"""LongBench v2: multiple choice over long documents, 0-shot, of medium length by default.

Asked as TensorRT-LLM's evaluator does. Paper: Bai et al. 2024, "LongBench v2". Data:
zai-org/LongBench-v2 (Apache-2.0), 503 questions, 215 of them of medium length. A sample is "Please
read the following text and answer the question below. ..." and is right if the answer states "The
correct answer is (B)". Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.choice import score_stated_letter
from serve_eval.tasks._samples import break_down, name_document

SOURCE = KNOWN["longbench_v2"]
ROWS = 503
COUNTS = {"short": 180, "medium": 215, "long": 108}
COLUMNS = (
    "_id",
    "length",
    "question",
    "choice_A",
    "choice_B",
    "choice_C",
    "choice_D",
    "answer",
    "context",
)
LETTERS = "ABCD"
MAX_TOKENS = 32000
CHARS_PER_TOKEN = 4
"""A rule of thumb for English text."""

SHORT_CHARS = 192_000
"""A text of the short length has up to 32,000 words, here of six characters with the space."""

Length = Literal["short", "medium", "long"]


def task(
    *,
    length: Annotated[
        Length, Setting("Length of the documents whose questions are asked.")
    ] = "medium",
    num_samples: Annotated[
        int | None, Setting("Number of questions to ask. Not set: all of that length.")
    ] = None,
    max_input_chars: Annotated[
        int | None,
        Setting("Characters that are kept of a longer prompt, half at each end; null: no cut."),
    ] = 480_000,
) -> Task:
    """Return the task with its options.

    The suite keeps the first and the last 60000 tokens of a longer prompt. A client has no
    tokenizer: `max_input_chars` is the number of characters kept at both ends together (null: no
    cut), by default four per token. Raises PlanError for options out of range.
    """
    most = [
        n for n in (max_input_chars, SHORT_CHARS if length == "short" else None) if n is not None
    ]
    count = COUNTS[length] if num_samples is None else num_samples
    if count < 1 or (max_input_chars is not None and max_input_chars < 2):
        raise PlanError("longbench_v2: num_samples must be 1 or more, max_input_chars 2 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        split = local.read_split(
            SOURCE, roots, "data", COLUMNS, wanted=1, published=ROWS, subfolders=("",)
        )
        rows = [row for row in split.rows if row["length"] == length]
        if any(row["answer"] not in tuple(LETTERS) for row in rows):
            raise DatasetError(
                f"{split.file.path}: a question has another answer than A to D",
                hint=local.advice(SOURCE),
            )
        told = f"LongBench v2 is incomplete: {split.file.path} has {len(rows)} {length} questions"
        local.check_rows(roots, len(rows), wanted, told, SOURCE)
        samples = [
            Sample(
                id=row["_id"],
                prompt=(
                    Message(role="user", content=middle_cut(prompt_text(row), max_input_chars)),
                ),
                target=row["answer"],
                metadata={
                    name: str(row.get(name) or "unknown") for name in ("domain", "difficulty")
                },
                group=name_document(row["context"]),
            )
            for row in rows[:wanted]
        ]
        return Dataset(
            samples=samples, files=(split.file.source,), total=len(rows), deviation=split.deviation
        )

    return Task(
        name="longbench_v2",
        version=1,
        datasets=("longbench_v2",),
        reference_file="longbench_v2",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        chat=True,
        protocol={
            "length": length,
            "max_input_chars": max_input_chars,
        },
        load=load,
        score=_score,
        answers=_answers,
        breakdown=break_down("domain", "difficulty"),
        context_tokens=min(most) // CHARS_PER_TOKEN + MAX_TOKENS if most else None,
        scoring="inline",
    )


def prompt_text(row: Mapping[str, Any]) -> str:
    """Return the text, the question and its choices, each stripped."""
    choices = "".join(f"\n({letter}) {row[f'choice_{letter}'].strip()}" for letter in LETTERS)
    return (
        "Please read the following text and answer the question"
        f" below.\n\n<text>\n{row['context'].strip()}\n</text>\n\nWhat is the correct answer to"
        f" this question: {row['question'].strip()}\nChoices:{choices}\n\nFormat your response as"
        ' follows: "The correct answer is (insert answer here)".'
    )


def middle_cut(text: str, limit: int | None) -> str:
    """Return the first and the last half of `limit` characters of a longer text."""
    if limit is None or len(text) <= limit:
        return text
    half = limit // 2
    return text[:half] + text[-half:]


def _score(sample: Sample, response: Response) -> Score:
    return score_stated_letter(response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    wrong = LETTERS[(LETTERS.index(sample.target) + 1) % 4]
    return f"The correct answer is ({sample.target}).", f"The correct answer is ({wrong})."
