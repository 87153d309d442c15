"""Define a Task and a Scorer: values that hold functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from serve_eval.schema.exchange import Response
from serve_eval.schema.execution import Program
from serve_eval.schema.judge import Question
from serve_eval.schema.sample import DataRoots, Dataset, Sample, SamplingParams
from serve_eval.schema.score import (
    MEAN,
    Aggregation,
    Breakdown,
    Hypothesis,
    Metric,
    Score,
    Secondary,
    no_breakdown,
    no_secondary,
)

Scoring = Literal["inline", "apart", "loaded"]
"""Where answers are scored. "inline": on the event loop, for what reads any text in time that grows
with its length alone. "apart": in a process of its own, bounded in time, of the sample and the
answer alone. "loaded": likewise, after the task's `load`, for one that keeps there what `score`
reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """How answers to the cases of a file are scored: a value that holds functions, as a task is.

    `expected` is what a case says of its answer, as YAML has it. `problems(expected)` tells what is
    wrong with it, before anything is asked; `score(expected, response)` judges one answer between 0
    and 1; `answers(expected)` is one text that scores full marks and one that scores nothing.
    `version` rises when a score could come out otherwise. `program` is there for one that runs
    answers, as in a Task; `questions(sample, expected, response)` for one that asks judges.
    `decisive` are the options that a score depends on, where others, such as addresses, do not
    matter (None: all of them). `scoring` as in a Task, but that a scorer loads nothing.
    """

    version: int
    score: Callable[[object, Response], Score]
    answers: Callable[[object], tuple[str, str]]
    problems: Callable[[object], Sequence[str]]
    program: Callable[[object, Response], Program | None] | None = None
    requires: frozenset[Need] = frozenset()
    questions: Callable[[Sample, object, Response], Sequence[Question]] | None = None
    decisive: Mapping[str, object] | None = None
    scoring: Scoring = "apart"


class Need(StrEnum):
    """What a task may need an endpoint to do."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    PROMPT_LOGPROBS = "prompt log-probabilities"
    CONTINUATION_LOGPROBS = "log-probabilities of a continuation"
    FIRST_TOKEN = "the log-probability of a text's first token"
    LIKELIEST_TOKENS = "likeliest tokens"
    IMAGES = "images"
    GUIDED_DECODING = "guided decoding"
    TOOLS = "tool calls"
    TOKENS_PER_STEP = "tokens per step"


def file_stem(task: str) -> str:
    """What the files of a task of that name are called."""
    return task.replace(":", "-").replace("/", "-")


def is_mutable(task: str) -> bool:
    """Whether the samples of a task may change from one session of a run folder to the next: those
    of a user's cases.
    """
    return task.startswith("cases:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark: a value that holds functions.

    `load(roots, num_samples)` gives the samples; `score(sample, response)` judges one answer, and
    the value is the mean of the scores, or what `aggregation` makes of them; `breakdown` sees each
    scored sample with its score; `answers(sample)` is one text that scores full marks and one that
    scores nothing, for the contract tests and the simulator. `protocol` names every choice that
    changes the number: it is part of the fingerprint, and a reference is only comparable under the
    same one. With `prompt_logprobs` the prompts' log-probabilities are asked for instead of
    answers; `answers` then gives two numbers as texts, the log-probability of every token, or of
    samples with choices the one that is right and one that is wrong, each behind its head. With
    `chat` its prompts are messages. What is the same for every task, such as system prompt,
    sampling and chat template, is applied to this value by serve_eval.protocol.shared, which also
    names it in `protocol`.

    `program(sample, response)`, of a task that runs what was answered, is what to run (None: there
    is nothing in the answer to run); `score` then finds the result in `response.ran`.

    `questions(sample, response)`, of a task whose answers other models judge, is what to ask of an
    answer: a pure function, so that nothing is judged twice. `score` then finds what was said in
    `response.judgements`.

    Other figures beside the value stand in the report: the mean of each of the scores' `parts`
    times the metric's scale (another filter, the share of valid answers), and what `secondary`
    makes of all scores, in points.

    `requires` is what the endpoint must be able to do, beyond what the requests tell by themselves
    (chat, completions, images, log-probabilities). `context_tokens` is how many tokens the longest
    prompt and its answer take together, where that is known beforehand. What an endpoint lacks is
    found out before the task is asked.

    `failure_mode(sample, response, score)`, where it is there, names in which way an answer without
    full marks failed: it stands with its score, and the report counts them.

    `acceptance_length` is the entry of acceptance_length.yaml by which speculative decoding is
    judged too (None: it is not).

    `judges_empty`: an answer without any text is for the scorer to judge, as it may be a right one.
    `unsafe`: scoring runs what was answered on this machine, without any isolation, as scorers of
    others do.

    `scoring` says where `score` and `failure_mode` are called: in another process, unless they are
    known to be quick. What they keep is lost there; `remember(sample, score)`, where it is there,
    is called in the process of the run with every score, for an aggregation that needs more of an
    answer than a number, which then stands in `score.kept`.
    """

    name: str
    version: int
    reference_file: str
    metric: Metric
    hypothesis: Hypothesis
    sampling: SamplingParams
    protocol: Mapping[str, object]
    load: Callable[[DataRoots, int], Dataset]
    score: Callable[[Sample, Response], Score]
    answers: Callable[[Sample], tuple[str, str]]
    extra: Mapping[str, object] = field(default_factory=dict)
    breakdown: Breakdown = no_breakdown
    program: Callable[[Sample, Response], Program | None] | None = None
    questions: Callable[[Sample, Response], Sequence[Question]] | None = None
    aggregation: Aggregation = MEAN
    secondary: Secondary = no_secondary
    prompt_logprobs: bool = False
    chat: bool = False
    requires: frozenset[Need] = frozenset()
    context_tokens: int | None = None
    acceptance_length: str | None = None
    failure_mode: Callable[[Sample, Response, Score], str] | None = None
    judges_empty: bool = False
    unsafe: bool = False
    scoring: Scoring = "loaded"
    remember: Callable[[Sample, Score], None] | None = None

    @property
    def file_stem(self) -> str:
        """What its files are called: a member of a family has a colon in its name, and that is no
        good in a path.
        """
        return file_stem(self.name)
