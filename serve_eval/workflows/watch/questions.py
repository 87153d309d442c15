"""A task for a watch without a data set: sums, and invented words to copy."""

from __future__ import annotations

from serve_eval.checks.kinds.quality import (
    QUESTION_TOKENS,
    QualityQuestion,
    choose_wording,
    is_right,
    questions,
)
from serve_eval.checks.thinking import Thinking
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Outcome,
    Prompt,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)

NAME = "questions"
SEED = 1
"""The seed differs from that of serve-eval smoke, so that the questions differ."""


def task(*, chat: bool, thinking: Thinking) -> Task:
    """Return the task, with chat prompts or with texts that start with two examples.

    Answers have no thoughts, or room for them.
    """

    def load(roots: DataRoots, wanted: int) -> Dataset:
        samples = [
            Sample(id=f"question-{i}", prompt=_prompt(one.text, chat=chat), target=one.wanted)
            for i, one in enumerate(questions(SEED, wanted))
        ]
        return Dataset(samples=samples, files=(), total=wanted)

    return Task(
        name=NAME,
        version=1,
        reference_file=NAME,
        metric=Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(
            max_tokens=QUESTION_TOKENS + thinking.room, stop=() if chat else ("\n",)
        ),
        extra=thinking.off,
        protocol={},
        load=load,
        score=_score,
        answers=lambda sample: (sample.target, ""),
        chat=chat,
        scoring="inline",
    )


def _prompt(text: str, *, chat: bool) -> Prompt:
    worded = choose_wording(text, chat=chat)
    return (Message(role="user", content=worded),) if chat else worded


def _score(sample: Sample, response: Response) -> Score:
    right = is_right(QualityQuestion("", sample.target), response.text)
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)
