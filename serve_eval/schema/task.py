"""Task and Scorer: values that hold functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.schema.exchange import Response
from serve_eval.schema.sample import DataRoots, Dataset, Prompt, Sample, SamplingParams
from serve_eval.schema.score import (
    MEAN,
    Aggregation,
    Breakdown,
    Hypothesis,
    Metric,
    Program,
    Question,
    Score,
    Secondary,
    no_breakdown,
    no_secondary,
)

CountTokens = Callable[[Prompt], int]
"""Returns the tokens of a prompt as the endpoint will count them."""
Fit = Callable[[CountTokens, int | None, DataRoots], Mapping[str, object]]
"""Returns the options that fit prompts to an endpoint with that context length, if it is known."""
REQUESTS = "requests"
"""The task whose samples are recorded requests."""
LENGTHS, SIZES = "lengths", "sizes"
FITTED = (LENGTHS, SIZES)
"""Names of the options that `fit` of a Task may return."""
Scoring = Literal["inline", "apart", "loaded"]
"""Place where answers are scored. "inline": on the event loop, for scorers that read any text in
time proportional to its length. "apart": in a separate process, with a time limit, from the sample
and the answer alone. "loaded": the same, after the task's `load`, for a task that keeps there what
`score` reads."""


@freeze
class Scorer:
    """The scoring of answers to the cases of a file: a value that holds functions, like a task.

    `expected` is what a case says of its answer, as YAML has it. `problems(expected)` returns what
    is wrong with it, before any request; `score(expected, response)` scores one answer from 0 to 1;
    `answers(expected)` is one text with full marks and one with score 0. `version` rises when a
    score could change. `program` is for one that runs answers, as in a Task; `questions(sample,
    expected, response)` for one that asks judges. `decisive` are the options that a score depends
    on, if others, such as addresses, do not matter (None: all of them). `scoring` is as in a Task,
    except that a scorer loads nothing.
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
    """A capability that a task may need of an endpoint."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    PROMPT_LOGPROBS = "prompt log-probabilities"
    CONTINUATION_LOGPROBS = "log-probabilities of a continuation"
    FIRST_TOKEN = "the log-probability of a text's first token"
    LIKELIEST_TOKENS = "likeliest tokens"
    IMAGES = "images"
    AUDIO = "sounds"
    VIDEO = "videos"
    GUIDED_DECODING = "guided decoding"
    TOOLS = "tool calls"
    TOKENS_PER_STEP = "tokens per step"


def file_stem(task: str) -> str:
    """Return the stem of the file names of a task."""
    return task.replace(":", "-").replace("/", "-")


def is_mutable(task: str) -> bool:
    """Return True if the samples of a task may change between sessions of a run folder.

    Those of a user's cases may.
    """
    return task.startswith("cases:")


@freeze
class Task:
    """A benchmark: a value that holds functions.

    `load(roots, num_samples)` returns the samples; `score(sample, response)` scores one answer, and
    the value is the mean of the scores, or the result of `aggregation`; `breakdown` receives each
    scored sample with its score; `answers(sample)` is one text with full marks and one with score
    0, for `data check` and the simulator. `protocol` names every choice that changes the
    number: it is part of the fingerprint, and a reference is only comparable under the same one.
    With `prompt_logprobs` requests ask for the prompts' log-probabilities instead of answers;
    `answers` then gives two numbers as texts, the log-probability of every token, or for samples
    with choices the right one and a wrong one, each with its head. With `chat` its prompts are
    messages. Choices that are the same for every task, such as system prompt, sampling and chat
    template, are applied to this value by serve_eval.protocol.shared, which also names them in
    `protocol`.

    `program(sample, response)`, of a task that runs answers, is the program to run (None: the
    answer has none); `score` then finds the result in `response.ran`.

    `questions(sample, response)`, of a task whose answers other models judge, is what to ask about
    an answer: a pure function, so that nothing is judged twice. `score` then finds the judgements
    in `response.judgements`.

    The report has further figures: the mean of each of the scores' `parts` times the metric's scale
    (another filter, the share of valid answers), and the results of `secondary` over all scores, in
    points.

    `requires` is what the endpoint must be able to do, beyond what the requests themselves show
    (chat, completions, images, log-probabilities). `context_tokens` is the number of tokens of the
    longest prompt with its answer, if that is known beforehand. What an endpoint lacks is found out
    before the first request of the task.

    `fit(count, context, roots)`, of a task whose prompts have a given number of tokens, returns the
    options of FITTED with which they have it at an endpoint (None: it has these options already, or
    needs none). It is called before `load` where the endpoint's tokenizer is known.

    `failure_mode(sample, response, score)`, if set, names the way in which an answer without full
    marks failed: it is stored with the score, and the report counts it. None names none.

    `acceptance_length` is the entry of acceptance_length.yaml by which speculative decoding is
    judged too (None: it is not).

    `control_of` is the task whose control this is, if any: both ask the same questions, with the
    same ids, and this one without what may disturb the model there. If both are in a run, the
    verdict of the other one also compares the two.

    `datasets` are the names of its data sets for `serve-eval data fetch`.

    `no_gold` says why the data has no gold answers ("": it has). `answers` then makes texts up, and
    `serve-eval data check` says so.

    `judges_empty`: the scorer scores an answer without text, because it may be right. `unsafe`:
    scoring runs answers on this machine without isolation, as some third-party scorers do.

    `scoring` says where `score` and `failure_mode` are called: in another process, unless they are
    known to be quick. State that they keep is lost there. `remember(sample, score)`, if set, is
    called in the process of the run with every score, for an aggregation that needs more of an
    answer than a number; that is then in `score.kept`.

    `recorded`: its samples are requests that clients once sent, and are sent as they were but for
    the fields that a plan sets.

    `reference_fields` are recorded with a reference and compared with it like `protocol`. They are
    about the samples, which a fingerprint holds anyway.

    `answers_by_turn(sample)` has the texts of `answers` for each turn of a conversation.
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
    control_of: str | None = None
    datasets: Sequence[str] = ()
    no_gold: str = ""
    fit: Fit | None = None
    failure_mode: Callable[[Sample, Response, Score], str | None] | None = None
    judges_empty: bool = False
    unsafe: bool = False
    scoring: Scoring = "loaded"
    remember: Callable[[Sample, Score], None] | None = None
    reference_fields: Mapping[str, object] = field(default_factory=dict)
    answers_by_turn: Callable[[Sample], Sequence[tuple[str, str]]] | None = None
    recorded: bool = False

    @property
    def file_stem(self) -> str:
        """The stem of its file names.

        A member of a family has a colon in its name, which is not allowed in a path.
        """
        return file_stem(self.name)
