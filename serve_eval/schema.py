"""Every noun of serve-eval, in the order in which a run meets them. Read this file first.

A Plan says what to run; a launcher yields an Endpoint; a Task turns Samples into Requests; the client turns Requests
into Responses or Failures; scorers give Scores; a verdict rule compares the TaskResult with a Reference and says a
Verdict; the Report keeps it all. What is made for every request is a Struct: it costs a quarter of a dataclass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Literal

from msgspec import Struct

# --------------------------------------------------------------------------------------------------- what to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A file of a folder of alternatives (a task, a launcher, a verdict rule) with its keyword arguments."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySpec:
    """What a reference is matched on. The user declares it: no server tells it."""

    dtype: str = "auto"
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    spec_dec_algo: str | None = None
    extra_acc_spec: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How an endpoint is reached: the *name* of the key's variable ("": no key is sent) and unexpanded `${VAR}` values,
    never a key.

    `max_tokens_field` is the name under which the server wants the most tokens of an answer.
    """

    api_key_env: str = "OPENAI_API_KEY"
    headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    ca_bundle: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


Order = Literal["natural", "random", "prefix", "longest"]
"""In which order samples are started: as the protocol has them; at random; those that share a prefix together, for the
server's prefix cache; those with the longest expected answers first, so that the end of a run does not wait for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How fast, how long, how patient: limits never change what is asked, so a resumed run may use others.

    `concurrency` is the number of requests in flight, "auto" to find it while the run goes on; `rate_limit` bounds the
    starts of requests per second (None: not at all). `order_seed` is the seed of the random order of a run that begins
    (None: it is drawn). `stream` asks for event streams, which adds the time to the first token and per token to the
    report and changes no score.

    `max_attempts` is per sample and `retry_budget` per run: so many retries in all (None: a quarter of the samples that
    are asked, at least 100). `max_error_rate` is the share of failed samples beyond which the run stops.

    `connect_timeout_s` bounds the TCP and TLS set-up of one attempt, `stall_timeout_s` the time without data,
    `sample_timeout_s` a whole sample with all its attempts and pauses; `max_response_bytes` is read of an answer.
    `outage_timeout_s` is how long requests wait while no server listens, or it is starting (0: the run ends at once).
    `scorer_timeout_s` bounds the scoring of one answer, where that is done in a process of its own.
    """

    concurrency: int | Literal["auto"] = 64
    rate_limit: float | None = None
    order: Order = "random"
    order_seed: int | None = None
    stream: bool = False
    max_attempts: int = 4
    retry_budget: int | None = None
    max_error_rate: float = 0.10
    connect_timeout_s: float = 60.0
    stall_timeout_s: float = 900.0
    sample_timeout_s: float = 3600.0
    outage_timeout_s: float = 60.0
    max_response_bytes: int = 16 * 1024 * 1024
    scorer_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides what a run asks and how it is judged. Pure data; saved with the run.

    `model` is the name that is sent and under which references are looked up; `reference_model` overrides the second.
    `limit` is the size of a seeded random subset per task (None: all planned samples), each of which is asked `repeats`
    times, or as often as `repeats_of` says of its task. `early_stop` is the probability with which the classic verdict
    of a task that is not asked to its end may differ from that of the whole (None: all is asked); under a paired rule,
    that of too many answers missing unseen. `no_reference`: none is used, and values are printed without a verdict;
    `allow_missing_reference`: so they are where none applies. `allow_code_execution`: code that the endpoint wrote may
    be run on this machine. `include_path` are folders of the user's own tasks, scorers, launchers and verdict rules.
    """

    model: str | None
    launcher: Spec
    tasks: tuple[Spec, ...]
    verdict: Spec = Spec(name="classic")
    reference_model: str | None = None
    accuracy_spec: AccuracySpec = AccuracySpec()
    dataset_roots: tuple[str, ...] = ()
    allow_hub: bool = False
    references_dir: str | None = None
    limit: int | None = None
    repeats: int = 1
    repeats_of: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    no_reference: bool = False
    allow_missing_reference: bool = False
    allow_mismatch: tuple[str, ...] = ()
    integration_test: bool = False
    early_stop: float | None = None
    allow_code_execution: bool = False
    include_path: tuple[str, ...] = ()
    connection: Connection = Connection()
    limits: Limits = Limits()

    def times(self, task: str) -> int:
        """Return how often each prompt of a task is asked."""
        return self.repeats_of.get(task, self.repeats)


# ---------------------------------------------------------------------------------------------- where it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running OpenAI-compatible endpoint. `base_url` ends before `/completions`; `info` is told, never trusted."""

    base_url: str
    model: str | None = None
    info: Mapping[str, object] = field(default_factory=dict)


AnswerFileWriter = Callable[[Path, Callable[[str, str], float]], None]
"""Writes the simulator's answer file to a path, given (task name, sample id) -> probability of a right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What the story hands to every launcher: the model's name, a folder for logs, and, for launchers that play a
    model themselves, a function that writes down the right and a wrong answer to every prompt.

    `patience_s` is how long the client waits for a sample at most. `told` gets a line about what the launch waits for.
    """

    model: str | None
    log_dir: Path
    write_answer_file: AnswerFileWriter | None = None
    patience_s: float = 3600.0
    told: Callable[[str], None] = lambda line: None


# ------------------------------------------------------------------------------------------- what is asked


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """Text within a turn that has images too. Parts have the form in which they are sent."""

    text: str


class ImageUrl(Struct, frozen=True):
    """Where an image is: for us always a `data:image/...;base64,` URL that holds it."""

    url: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """An image within a turn."""

    image_url: ImageUrl


Content = str | tuple[TextPart | ImagePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat prompt: a text, or parts in their order."""

    role: str
    content: Content

    @property
    def text(self) -> str:
        """The text of it, without images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return () if isinstance(self.content, str) else tuple(p for p in self.content if isinstance(p, ImagePart))


Prompt = str | tuple[Message, ...]
"""A text goes to /v1/completions, messages go to /v1/chat/completions; there is no other switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Always sent in full: an omitted temperature means sampling at 1.0 on trtllm-serve. None leaves a field out, for
    servers that refuse it, and is then part of the protocol."""

    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What a sample asks otherwise than its task. None leaves the task's own; `extra` goes over the task's, field by
    field. Samples that ask alike share one."""

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question. `id` is unique within its task and stable between runs. `metadata` is for scorers and tables, and
    never sent.

    With `choices`, continuations of a prompt that is a text, no answer is asked for, but how likely each of them is:
    by a request of its own for each. The sample has a response when all of them were answered. `heads`, where there are
    any, stand one before each choice and behind the prompt, and belong to what is given: choices that have a context of
    their own."""

    id: str
    prompt: Prompt
    target: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    override: Override | None = None
    choices: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    @property
    def continued(self) -> tuple[tuple[str, str], ...]:
        """Each choice behind the text that it continues."""
        prompt, heads = str(self.prompt), self.heads or ("",) * len(self.choices)
        return tuple((prompt + head, choice) for head, choice in zip(heads, self.choices, strict=True))


HOLDOUT = "holdout"
"""Key of the metadata of samples whose texts are not to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoots:
    """Where a task may look for its data: folders in the order of search, and the hub only when asked for."""

    roots: tuple[Path, ...] = ()
    allow_hub: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that a data set was read from, with its checksum as `sha256sum` prints it."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The samples of one run of a task, in the order of the protocol, and the files they were read from.

    `total` counts the rows before any subset was taken. `deviation` says how the data differs from the published set
    (None: not, as far as counts tell): the references of others do not apply to it then. `notes` are for the report.
    """

    samples: Sequence[Sample]
    files: tuple[SourceFile, ...]
    total: int
    deviation: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A score per sample lies in [lo, hi] (None: unbounded); the task's value is `scale` times their mean, or times
    what else its Aggregation makes of them."""

    name: str = "accuracy"
    higher_is_better: bool = True
    lo: float | None = 0.0
    hi: float | None = 1.0
    scale: float = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Parameters of the classic test, in the units of the value (points). A task that registers no `num_samples` is
    planned for a minimum detectable effect of `theta` points; where its data then gives another number of samples, that
    one counts."""

    num_samples: int | None = None
    sigma: float = 50.0
    alpha: float = 0.05
    beta: float = 0.2
    theta: float = 3.0


# ---------------------------------------------------------------------------------------- what came back


class FailureKind(StrEnum):
    """Why there is no score. With JUDGE_ERROR there is an answer, of which its judges said too little, and with
    SCORER_ERROR one on which the scorer raised or took too long: it is scored again when the run goes on."""

    HTTP_ERROR = "http_error"
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    INVALID_RESPONSE = "invalid_response"
    JUDGE_ERROR = "judge_error"
    SCORER_ERROR = "scorer_error"


class Outcome(StrEnum):
    """What an answer was worth. All but CORRECT and PARTIAL are scored with the metric's worst value or 0."""

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSED = "unparsed"
    EMPTY = "empty"
    REASONING_ONLY = "reasoning_only"
    REFUSED = "refused"


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """What is sent for one sample. `extra` holds fields beyond the common OpenAI ones (truncate_prompt_tokens). With
    `prompt_logprobs` the log-probabilities of the prompt, a text, are asked for, and no answer."""

    sample_id: str
    prompt: Prompt
    sampling: SamplingParams
    extra: Mapping[str, object] = {}
    prompt_logprobs: bool = False


LogprobsForm = Literal["echo", "prompt_logprobs"]
"""How a server is asked for the log-probabilities of a prompt: by `echo` and `logprobs`, or by vLLM's field of that
name. Which one it is, a probe finds out."""


class PromptLogprobs(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Natural logarithms of the probabilities of a prompt's tokens, in order, but for the first `skipped`, which have
    none. `offsets` says where in the prompt each of them begins, in characters; where no server tells and it cannot be
    worked out, it is None and `tokens` has their texts. `likeliest` has a character for each: 1 where no other token
    would have been likelier, else 0 (None: the server does not tell)."""

    values: tuple[float, ...]
    skipped: int = 1
    offsets: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    likeliest: str | None = None


class ServerTiming(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an orchestrator told with an answer: when the request arrived there, in seconds on its clock, as the text
    that it sent; how long the KV cache took to the generation server (None: it did not tell)."""

    arrival: str
    kv_transfer_s: float | None = None


class Attempt(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One try of a request: when, what went wrong (None: nothing), the X-Request-ID that we sent.

    `start_s` and `end_s` are seconds since 1970 in UTC, counted on from the opening of the client by a clock that never
    jumps. `streamed`: an event stream was asked for. An answer that may be that to another request has the number of
    its `connection` and the `turn` that it had on it; 0: it surely is the right one. `timing` is what the server told
    of it where it was asked for.
    """

    start_s: float
    end_s: float
    failure: FailureKind | None
    status: int | None
    request_id: str
    streamed: bool = False
    connection: int = 0
    turn: int = 0
    timing: ServerTiming | None = None


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Token counts as the server reports them. `cached_tokens` are those of the prompt that its prefix cache had (None:
    it does not say)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


class ToolCall(Struct, frozen=True, gc=False):
    """A call of a tool that an answer asks for. `arguments` are the text that came: JSON, where all is well."""

    name: str
    arguments: str = ""


class Ended(StrEnum):
    """How a program ended: after its last line; by an exception, or an exit with its status 1; before its last line by
    another exit of its own; by a signal, which some of the limits send, or by us when all its processes together took
    too much; at the time limit."""

    PASSED = "passed"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    TIMEOUT = "timeout"


class Ran(Struct, frozen=True, kw_only=True, gc=False):
    """What became of a program. `exit` is its exit status, 128 + n after signal n, None when it was ended by us."""

    ended: Ended
    exit: int | None
    stdout: str = ""
    stderr: str = ""


class Judgement(Struct, frozen=True, kw_only=True, gc=False):
    """What a judge said of an answer, as a number between 0 and 1 where 1 is good; None where it cannot be read."""

    judge: str
    metric: str
    round: int
    value: float | None


class Response(Struct, frozen=True, kw_only=True, gc=False):
    """An answer. `finish_reason` "length" means that it was cut, which is a flag and not an outcome.

    `text` is what is scored: what a model thought aloud stands in `reasoning`, also when it came in the text between
    <think> and </think>; `thoughts_ended`: a </think> was seen. `stop_reason` is the stop string that ended the answer,
    where the server tells it. Of a stream, `ttft_s` is the time to the first token and `tpot_s` the mean time per token
    after it (None: not known), in seconds. `tokens_per_step` is how many tokens a step of the engine gave on average,
    more than 1 with speculative decoding; trtllm-serve tells it. An answer with `prompt_logprobs` has no text. `ran` is
    what running it gave, for a task that runs answers, and `judgements` what judges said of it, for a task that asks
    them; both are looked up for the scorer and never journalled here.
    `choice_logprobs` has the log-probabilities of the tokens of each of the sample's choices; usage, latency and
    attempts are then those of all their requests together, and there is no text either. `choice_greedy` says of each
    whether greedy decoding would have written it (None: the server does not tell). An answer with `tool_calls` often
    has no text, and is none the less an answer. `answer_id` is what the server calls it.
    """

    text: str
    finish_reason: str | None
    reasoning: str | None = None
    refusal: str | None = None
    stop_reason: str | None = None
    thoughts_ended: bool = False
    usage: Usage = Usage()
    latency_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    attempts: tuple[Attempt, ...] = ()
    ran: Ran | None = None
    judgements: tuple[Judgement, ...] = ()
    tokens_per_step: float | None = None
    prompt_logprobs: PromptLogprobs | None = None
    choice_logprobs: tuple[tuple[float, ...], ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    choice_greedy: tuple[bool, ...] | None = None
    answer_id: str | None = None

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length" and self.prompt_logprobs is None

    @property
    def stopped_in_reasoning(self) -> bool:
        """Whether it ended, and was not cut, before there was an answer: probably a stop string fired too early."""
        ended = self.finish_reason in ("stop", "stop_sequence") and not self.thoughts_ended
        return ended and bool(self.reasoning) and not self.text.strip() and not self.tool_calls


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """No answer after every attempt. Returned, not raised; a scorer can never be given one."""

    kind: FailureKind
    message: str
    status: int | None = None
    retryable: bool = True
    attempts: tuple[Attempt, ...] = ()


# --------------------------------------------------------------------------------------- what it is worth


class Score(Struct, frozen=True, kw_only=True, gc=False):
    """`answer` is what was extracted (None: nothing could be); `parts` are named sub-scores, such as one per filter;
    `mode` is in which way it failed, where the scorer knows that better than a comparison of texts could tell. `kept`
    is for the task's own `remember`."""

    value: float
    outcome: Outcome
    answer: str | None = None
    parts: Mapping[str, float] = {}
    mode: str | None = None
    kept: object = None


class Program(Struct, frozen=True, kw_only=True, gc=False):
    """Python code to be run away from everything: `code` first, then `checks` in a process of their own, with the names
    that it left. It has passed when both came to their end within `wall_s` seconds."""

    code: str
    checks: str = ""
    stdin: str = ""
    wall_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model that says what answers of another are worth. `base_url` None: the endpoint that is judged itself, which
    is then reached as the plan says. `name` stands in the report and with what it said. `concurrency` None: that of the
    plan; `rate_limit` None: none. `connection` holds the name of the key's variable, never a key.
    """

    name: str
    sampling: SamplingParams
    base_url: str | None = None
    model: str | None = None
    connection: Connection = Connection()
    extra: Mapping[str, object] = field(default_factory=dict)
    concurrency: int | None = None
    rate_limit: float | None = None


class Question(Struct, frozen=True, kw_only=True, gc=False):
    """What a judge is asked of one answer: by one `metric`, for the `round`-th time from 1 on. `read` makes a number
    between 0 and 1 of what it says, or None where that cannot be read."""

    judge: Judge
    metric: str
    round: int
    prompt: tuple[Message, ...]
    read: Callable[[str], float | None]


Scoring = Literal["inline", "apart", "loaded"]
"""Where answers are scored. "inline": on the event loop, for what reads any text in time that grows with its length
alone. "apart": in a process of its own, bounded in time, of the sample and the answer alone. "loaded": likewise, after
the task's `load`, for one that keeps there what `score` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """How answers to the cases of a file are scored: a value that holds functions, as a task is.

    `expected` is what a case says of its answer, as YAML has it. `problems(expected)` tells what is wrong with it,
    before anything is asked; `score(expected, response)` judges one answer between 0 and 1; `answers(expected)` is one
    text that scores full marks and one that scores nothing. `version` rises when a score could come out otherwise.
    `program` is there for one that runs answers, as in a Task; `questions(sample, expected, response)` for one that
    asks judges. `decisive` are the options that a score depends on, where others, such as addresses, do not matter
    (None: all of them). `scoring` as in a Task, but that a scorer loads nothing.
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


Scored = Iterable[tuple[Sample, Score]]
"""Samples with their scores. Of a score the value, the outcome and the parts are kept, the answer is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """How the scores of a task become its value. `of` is a pure function of at least one sample with its score, whose
    result the metric's scale is applied to; `name` is what the report calls it.

    `monotone`: it reads nothing of a score but the value, and never falls when one rises. Only then do missing answers
    bound the value (Manski). What needs a plain mean refuses anything else by name: an early stop, the paired
    comparison and its rules, `power --from`, the drift chart. Repeats are so many more samples; how much a run varies
    is then taken from the values of the repeats.
    """

    name: str
    of: Callable[[Scored], float]
    monotone: bool = False


def _mean(scored: Scored) -> float:
    values = [score.value for _, score in scored]
    return math.fsum(values) / len(values)


MEAN = Aggregation(name="mean", of=_mean, monotone=True)


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


def lives(task: str) -> bool:
    """Whether the samples of a task may change from one session of a run folder to the next: those of a user's
    cases."""
    return task.startswith("cases:")


Secondary = Callable[[Scored], Mapping[str, float]]


def no_secondary(scored: Scored) -> Mapping[str, float]:
    """The default of the values beside the value: none."""
    return {}


Breakdown = Callable[[Iterable[tuple[Sample, float]]], Mapping[str, object]]


def no_breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """The default breakdown: none."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A benchmark: a value that holds functions.

    `load(roots, num_samples)` gives the samples; `score(sample, response)` judges one answer, and the value is the mean
    of the scores, or what `aggregation` makes of them; `breakdown` sees each scored sample with its score;
    `answers(sample)` is one text that scores full marks and one that scores nothing, for the contract tests and the
    simulator. `protocol` names every choice that changes the number: it is part of the fingerprint, and a reference is
    only comparable under the same one. With `prompt_logprobs` the prompts' log-probabilities are asked for instead of
    answers; `answers` then gives two numbers as texts, the log-probability of every token, or of samples with choices
    the one that is right and one that is wrong, each behind its head. With `chat` its prompts are messages. What is the
    same for every task, such as system prompt, sampling and chat template, is applied to this value by
    serve_eval.protocol, which also names it in `protocol`.

    `program(sample, response)`, of a task that runs what was answered, is what to run (None: there is nothing in the
    answer to run); `score` then finds the result in `response.ran`.

    `questions(sample, response)`, of a task whose answers other models judge, is what to ask of an answer: a pure
    function, so that nothing is judged twice. `score` then finds what was said in `response.judgements`.

    Other figures beside the value stand in the report: the mean of each of the scores' `parts` times the metric's
    scale (another filter, the share of valid answers), and what `secondary` makes of all scores, in points.

    `requires` is what the endpoint must be able to do, beyond what the requests tell by themselves (chat, completions,
    images, log-probabilities). `context_tokens` is how many tokens the longest prompt and its answer take together,
    where that is known beforehand. What an endpoint lacks is found out before the task is asked.

    `failure_mode(sample, response, score)`, where it is there, names in which way an answer without full marks failed:
    it stands with its score, and the report counts them.

    `acceptance_length` is the entry of acceptance_length.yaml by which speculative decoding is judged too (None: it is
    not).

    `judges_empty`: an answer without any text is for the scorer to judge, as it may be a right one. `unsafe`: scoring
    runs what was answered on this machine, without any isolation, as scorers of others do.

    `scoring` says where `score` and `failure_mode` are called: in another process, unless they are known to be quick.
    What they keep is lost there; `remember(sample, score)`, where it is there, is called in the process of the run with
    every score, for an aggregation that needs more of an answer than a number, which then stands in `score.kept`.
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
        """What its files are called: a member of a family has a colon in its name, and that is no good in a path."""
        return file_stem(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """What `repeats` of the same prompts say of one another; `prompts` are those with a score each time.

    `sd` is the standard deviation of one run's value in points that comes from the endpoint's own noise: by the
    variance of the scores of a prompt, or of the repeats' values where the value is no mean. For
    right-or-wrong scores: `flip_rate`, the chance that two repeats disagree on a prompt; `mixed`, the share of prompts
    that were both; Cochran's Q with `df` and `p`, low when repeats differ as a whole. `pass_at` has pass@k in percent
    by k; `majority` is the value in points when the repeats vote (None: answers are not discrete, or the value is no
    mean).
    """

    repeats: int
    prompts: int
    sd: float
    flip_rate: float | None
    mixed: float | None
    cochran_q: float | None
    df: int
    p: float | None
    pass_at: Mapping[str, float]
    majority: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerError:
    """An error of a scorer, or that it took too long: on `count` samples, of which `sample` is one."""

    told: str
    count: int
    sample: str

    @property
    def line(self) -> str:
        """It in a line."""
        answers = "1 answer has" if self.count == 1 else f"{self.count} answers have"
        return f"{answers} no score, such as that to {self.sample}: {self.told}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What a task gave. Counts: planned = scored + failed + spared (by an early stop).

    `value` (points) is over the scored samples only and None when there are none; `bounds` are the lowest and highest
    value that the missing answers allow (Manski bounds), None where something is missing and the metric is unbounded or
    the aggregation not monotone, and after an early stop. With repeats each of them counts as a sample, and `stability`
    tells how they agree. `aggregation` is the name of what made the value of the scores, `secondary` are values beside
    it in points. `modes` counts in which ways answers failed, for a task that tells. `scorer_errors` are behind the
    failures of that kind, the most frequent first; `hook_errors` tell what the task's other functions raised, without
    which the figures that they make are left out.
    """

    task: str
    metric: Metric
    planned: int
    scored: int
    failed: int
    truncated: int
    stopped_in_reasoning: int
    outcomes: Mapping[str, int]
    failures: Mapping[str, int]
    value: float | None
    bounds: tuple[float, float] | None
    parts: Mapping[str, float]
    breakdown: Mapping[str, object]
    spared: int = 0
    stability: Stability | None = None
    aggregation: str = MEAN.name
    secondary: Mapping[str, float] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    scorer_errors: tuple[ScorerError, ...] = ()
    hook_errors: tuple[str, ...] = ()

    @property
    def unparsed(self) -> int:
        return self.outcomes.get(Outcome.UNPARSED, 0)


# ------------------------------------------------------------------------------------ what it is compared with


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceRuns:
    """The runs that a reference is the mean of: `values` in points and in their order, `sigma` the standard deviation
    of a sample's score in points. `samples` is a file with the scores of each sample, beside the reference file, with
    its checksum. `cochran_q`, with `df` degrees of freedom and its `p`, says whether the runs differ as a whole (None:
    a single run, too few prompts whose score varied, or an entry of an older version)."""

    values: tuple[float, ...]
    n: int
    sigma: float
    samples: str
    sha256: str
    endpoint: str | None = None
    hardware: str | None = None
    cochran_q: float | None = None
    df: int | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A registered value (points) for a task, a model and an accuracy specification. None: the task's own default.

    `protocol` None means that the source recorded none: the task's defaults are then assumed. `threshold` is an
    explicit cutoff that replaces the computed one. `metric` is the key that the value stands under. `old` marks a row
    that only an older file of the source has. `runs` are our own, where the value was registered from them;
    `replaced` are the entries that stood here before, each with the reason.
    """

    task: str
    model: str
    spec: AccuracySpec
    value: float
    num_samples: int | None = None
    sigma: float | None = None
    alpha: float | None = None
    beta: float | None = None
    higher_is_better: bool | None = None
    threshold: float | None = None
    reference_note: str | None = None
    source: str | None = None
    date: str | None = None
    protocol: Mapping[str, object] | None = None
    old: bool = False
    runs: ReferenceRuns | None = None
    replaced: tuple[Mapping[str, object], ...] = ()
    metric: str = "accuracy"
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorComparison:
    """The test of a drop among the anchors, the prompts that every reference run but the last had right.

    `reference_lost` of the `anchors` prompts are those that the last reference run, which did not choose them, had
    wrong, `candidate_lost` those of the candidate's first run. `p` is that of "no drop"; `p_range` holds it with every
    missing answer at its best and at its worst.
    """

    anchors: int
    reference_lost: int
    candidate_lost: int
    p: float | None
    p_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The same prompts, answered by the runs of a reference and by this one. In points; negative is worse.

    `difference` is the mean over the complete pairs, `p` that of "no drop"; a drop beyond `lower` is excluded at
    1 - `alpha` (None: none is). `down` and `up` count right turned wrong and wrong turned right against the
    reference's first run, where answers are right or wrong. `margin` is the drop that matters. `finding` is PASS,
    SMALL_DROP (proven, and excluded from reaching the margin), FAIL or INCONCLUSIVE, with its reasons.

    `cochran_q` with its `cochran_p` tests whether the runs of a side differ as a whole (None: no side has several);
    `inflation` is the factor on every standard error that follows, 1 where they do not. `anchors` is a test of its own.
    """

    reference_runs: int
    candidate_runs: int = 1
    pairs: int
    missing: int
    method: str
    difference: float
    se: float | None
    df: int | None
    down: int | None
    up: int | None
    flip_rate: float | None
    p: float | None
    p_exact: float | None
    alpha: float
    margin: float
    lower: float | None
    upper: float | None
    noninferior: bool
    equivalent: bool
    finding: str
    reasons: tuple[str, ...] = ()
    cochran_q: float | None = None
    cochran_p: float | None = None
    inflation: float = 1.0
    anchors: AnchorComparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningShare:
    """The share of bad answers among the latest `window` requests that are looked at, at some requests counted from 1
    over the run: in the order of their starts, and in that of their ends, in which long answers come late whatever the
    endpoint does."""

    window: int
    at: tuple[int, ...]
    by_start: tuple[float, ...]
    by_end: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """A run that turned worse on its way, by the order in which its requests were started.

    `measure` says in what: the value, or answers that are empty, repeat themselves, or are longer or shorter than most.
    `since` is the number of the first request that is worse, `noticed` that of the one at which there was no doubt
    left, counted from 1. `before` and `after` are the shares of bad answers before `since` and from it on. `started_s`
    is when that request was started, in seconds since 1970 in UTC. `counted` says which answers are bad, and of which
    prompts, where a reference decides it; both shares are among those then, and the numbers still of all requests.
    """

    measure: str
    since: int
    noticed: int
    of: int
    before: float
    after: float
    started_s: float
    course: RunningShare | None = None
    counted: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """What came of the answers that one worker had a hand in, beside those of all others of its role.

    `role` is context, generation, pair (of both) or server; `measure` what is counted as bad: wrong answers, empty
    answers, failures. A pair is named as `CONTEXT + GENERATION`. `p` is that of an exact one-sided test that this
    worker is no worse than the others (serve_eval.stats.contingency), `p_holm` the same corrected over all rows of the
    task. `accused`: it is, beyond the level that stands in the attribution.
    """

    worker: str
    role: str
    measure: str
    answers: int
    bad: int
    others: int
    others_bad: int
    p: float
    p_holm: float
    accused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What was measured of the requests that one worker had a hand in: medians, None where the server tells nothing.

    `kv_transfer_s` is the time that the KV cache of a prompt took from the context to the generation server, and
    `kv_bytes` its size. `cached_tokens` of `prompt_tokens`, in all, came out of a prefix cache.
    """

    worker: str
    role: str
    answers: int
    kv_transfer_s: float | None = None
    kv_bytes: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How long the answers took that one worker had a hand in, beside those of the others (medians, in seconds).

    `role` and names are those of a WorkerShare; a `worker` without a name are all servers of the role, beside those of
    the other. `longer` of `answers` took more than twice as long as those beside them; `p` is that of the sign test
    that no more than half do, `p_holm` the same corrected over all rows. `slow`: that is .01 or below.
    """

    worker: str
    role: str
    taken_s: float
    others_s: float
    longer: int
    answers: int
    p: float
    p_holm: float
    slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which of the workers behind one door had a hand in which answers, and who is to blame.

    `how` says how that is known: ids (of responses), times (of arrival) or asked (each worker, or pair, was asked by
    itself). `joined` of `planned` samples are known. `alpha` is the probability of accusing anybody of healthy workers.
    `times` tell who lets wait, which is no accusation. `counted` says which answers are wrong ones, and of which
    prompts, where a reference decides it. `dealt_by` names what the router's choice had to do with (subject, beginning,
    place, difficulty): only answers to prompts that are alike in it were compared.
    """

    how: str
    joined: int
    planned: int
    alpha: float
    rows: tuple[WorkerShare, ...]
    figures: tuple[WorkerFigures, ...] = ()
    times: tuple[WorkerTimes, ...] = ()
    counted: str = ""
    dealt_by: tuple[str, ...] = ()


class VerdictOutcome(StrEnum):
    """What is said of a task in the end."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NO_REFERENCE = "NO REFERENCE"
    NOT_JUDGED = "INTEGRATION TEST"
    UNSUPPORTED = "UNSUPPORTED"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """Whether an endpoint does what is needed, as a probe found it: `works` (None: not found out, and the task is
    asked), what was `seen`, and what would help where it does not."""

    need: str
    works: bool | None
    seen: str
    help: str = ""


PAIRED_RULES = ("paired", "noninferiority")
"""Verdict rules that compare sample by sample. An early stop under one of them spends a part of its alpha on looks."""
EARLY_RULES = ("classic", *PAIRED_RULES)
"""Verdict rules that can be decided before all was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """How far a task came that may stop early.

    When it was `stopped` under the classic `rule`, its verdict equals that of all `planned` samples except with
    probability `eps` at most. Under a paired rule a drop of `margin` points was excluded or shown with an error of
    `alpha` at most, which is what the looks may spend of the task's alpha, and too many answers would have been missing
    with probability `eps` at most.

    Decided on the first `looked_at` samples of a random order (`order_seed`), of which `missing` have no answer;
    `estimate` is the mean of the others in points, and partial. `paired`: the reference's scores per sample were known,
    and not only their mean. `saved` samples have no result and need none; the requests of a few of them were in flight.
    The wealths of the bets are natural logarithms (None: without bound): 2 / `eps` decides, or 1 / `alpha`, once that
    for few missing answers has reached 1 / `eps`. `held` is how often a decision was put off because the latest answers
    looked worse than those before.
    """

    eps: float
    order_seed: int
    paired: bool
    planned: int
    looked_at: int
    missing: int
    stopped: bool
    decision: str | None
    estimate: float | None
    saved: int
    log_wealth_pass: float | None
    log_wealth_fail: float | None
    log_wealth_answered: float | None = None
    rule: str = "classic"
    alpha: float | None = None
    margin: float | None = None
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceCheck:
    """Whether speculative decoding still saves steps: the `length` (tokens per step) against the least that passes.

    `test` is the entry of acceptance_length.yaml, with its `reference` and `least`. `length` is None, and so is
    `passed`, where too few answers tell it.
    """

    test: str
    reference: float
    least: float
    length: float | None
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of one task. Values, bounds, reference, threshold, theta and sigma are in points.

    `num_samples` is the n of the formula: the registered one for a full run, the number asked under `--limit`.
    `protocol` says what the reference is known to have been taken under. `paired` is there when the reference has
    scores per sample, whatever the rule, and `early` when the run may stop early. `evaluated` is None when it did.
    `acceptance` is there when the acceptance length is judged too: the outcome is that of both, and where that one
    fails, `rule` names it.
    """

    task: str
    outcome: VerdictOutcome
    rule: str
    evaluated: float | None
    bounds: tuple[float, float] | None = None
    reference: float | None = None
    threshold: float | None = None
    theta: float | None = None
    alpha: float | None = None
    beta: float | None = None
    sigma: float | None = None
    num_samples: int | None = None
    protocol: str | None = None
    paired: PairedComparison | None = None
    early: EarlyStop | None = None
    acceptance: AcceptanceCheck | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Tokens per step of speculative decoding, over the `answers` that tell it: see docs/method.md for the formulas.

    `length` leaves out the first step of each answer, which has no draft, and is what references are compared with
    (None: no answer had a second step). `all_steps` counts it. `per_answer` is the mean of what the answers tell.
    """

    answers: int
    length: float | None
    all_steps: float
    per_answer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What it took to get the answers of a task, over all sessions.

    `attempts` counts requests, `retries` those beyond a sample's first by what had gone wrong before
    ("http_error 429"), `not_streamed` those among them that asked without streaming for an answer that a stream had
    lost. Times are percentiles (p50, p90, p99, max) in seconds of answered requests; empty where nothing was measured.
    `acceptance` is there when answers tell how many tokens a step gave. `cached_tokens` of the prompts came out of a
    prefix cache (None: no answer tells).
    """

    attempts: int
    retries: Mapping[str, int]
    not_streamed: int
    latency_s: Mapping[str, float]
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    prompt_tokens: int
    completion_tokens: int
    acceptance: Acceptance | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A change of the number of requests in flight, seconds after the session's first request, and what was seen under
    the number before: samples finished per second and their mean latency in seconds."""

    at_s: float
    concurrency: int
    samples_per_s: float
    latency_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the engine did in one session. `loop_lag_s` is how long our own event loop was late at most: the error of
    the times that were measured. `steps` are the changes of an automatic concurrency. `cancelled` counts the requests
    in flight that an early stop, or the end of the session, gave up, `met_start` those that waited while the endpoint
    said that it was starting."""

    limits: Limits
    order_seed: int
    finished: int
    wall_s: float
    max_in_flight: int
    retries: int
    retry_budget: int
    loop_lag_s: float
    steps: tuple[Step, ...] = ()
    cancelled: int = 0
    met_start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What kept generated code from this machine, as a probe found it from within.

    `network` and `writable` are what it could reach: whether any, and which folders. `uid` is the user that it was to
    the kernel, `python` the version that ran it, `limits` what one program may take (bytes, seconds, counts).
    """

    name: str
    network: bool
    writable: tuple[str, ...]
    uid: int
    python: str
    limits: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """What was asked of a judge of a task's answers. Counts are of judgements: of the `planned` ones, `unreadable` held
    no verdict (`truncated`: so many of these were cut), `failed` got no answer, and `missing` were not asked for.
    `traffic` is over all sessions.
    """

    name: str
    model: str | None
    base_url: str | None
    planned: int
    unreadable: int
    truncated: int
    failed: int
    missing: int
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One task of a report: what was asked, what came back, what is said of it. `isolations` are those in which answers
    were run, in the order of their first use; `degradations` tell from when on the run turned worse, `judges` who was
    asked about the answers, `attribution` which worker had a hand in them (None: not known)."""

    spec: Spec
    version: int
    dataset: Mapping[str, object]
    fingerprint: Mapping[str, str]
    result: TaskResult
    traffic: Traffic
    reference: Reference | None
    verdict: Verdict
    isolations: tuple[Isolation, ...] = ()
    degradations: tuple[Degradation, ...] = ()
    judges: tuple[JudgeReport, ...] = ()
    attribution: Attribution | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The truth about a run: what report.json holds and every other output is made from. `loads` has one entry per
    session that asked something."""

    schema_version: int
    plan: Plan
    endpoint: Endpoint
    environment: Mapping[str, object]
    tasks: tuple[TaskReport, ...]
    loads: tuple[Load, ...]
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------- many runs


Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """One plan of a suite. `name` is also the name of its folder; `attributes` are the user's own words about it, such
    as size or quantisation, and decide nothing; nor do `notes`, which tell what of its case files is not asked."""

    name: str
    plan: Plan
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A known FAIL that does not fail its suite up to the end of the day `until` (UTC). `match` says of which runs and
    tasks: see serve_eval.suite.match."""

    match: Mapping[str, object]
    reason: str
    until: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Runs that give one verdict together, in the order in which they are shown."""

    name: str
    runs: tuple[SuiteRun, ...]
    waivers: tuple[Waiver, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError:
    """What ended a run of a suite without a report: the error's name, message and hint, and the exit code that the run
    would have had alone."""

    kind: str
    message: str
    hint: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRow:
    """One task of one run in the light of the whole suite. Values, bounds, reference and threshold are in points.

    `estimate` stands instead of a value after an early stop. `own` is the outcome that the run alone gave, `outcome`
    the one after the correction for many tests. `p` is that of the paired comparison; `p_holm` is there where the
    paired rule judged, `q_bh` wherever there is a p. `finding` is the paired one after the correction. `waiver` is the
    one that keeps this row from failing the suite.
    """

    run: str
    task: str
    model: str | None
    attributes: Mapping[str, Scalar]
    rule: str
    own: VerdictOutcome
    outcome: VerdictOutcome
    failed: int = 0
    evaluated: float | None = None
    estimate: float | None = None
    bounds: tuple[float, float] | None = None
    reference: float | None = None
    threshold: float | None = None
    p: float | None = None
    p_holm: float | None = None
    q_bh: float | None = None
    finding: str | None = None
    waiver: Waiver | None = None
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class WaiverState(StrEnum):
    """What became of a waiver: it kept a FAIL from counting; its day is over; what it names passes; what it names was
    not decided; it names nothing of the suite."""

    APPLIED = "applied"
    EXPIRED = "expired"
    NOT_NEEDED = "not needed"
    UNDECIDED = "undecided"
    NO_MATCH = "no match"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaiverUse:
    """A waiver with its state and the rows that it names and that fail, as `run/task`."""

    waiver: Waiver
    state: WaiverState
    failing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRunReport:
    """How one run of a suite ended. `folder` is relative to the suite's; `kept`: its report was there already."""

    name: str
    attributes: Mapping[str, Scalar]
    folder: str
    kept: bool
    error: RunError | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteReport:
    """The truth about a suite: what suite_report.json holds. `alpha` is the chance of any false alarm among the paired
    gates together; `verdict` is the exit code in a word."""

    schema_version: int
    name: str
    verdict: str
    exit_code: int
    alpha: float
    runs: tuple[SuiteRunReport, ...]
    rows: tuple[SuiteRow, ...]
    waivers: tuple[WaiverUse, ...]
    started_at: str
    wall_s: float


# ------------------------------------------------------------------------------------------- two runs side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where two texts begin to differ: the character and the word, counted from 0, and how each goes on from a little
    before there."""

    character: int
    word: int
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token in which two endpoints differ, asked again with log-probabilities.

    `kind`: "near tie" where at both endpoints the two tokens are less than 0.1 nat apart, which other numerics decide;
    "confident" where they are farther apart at one of them; "same again" where the answers did not differ this time;
    "unknown" with the reason in `why`. `gaps` says by how many nats each endpoint preferred its own token, at least.
    """

    kind: Literal["near tie", "confident", "same again", "unknown"]
    token: int | None = None
    tokens: tuple[str, str] | None = None
    gaps: tuple[float, float] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A prompt that A and B are not given the same score for: scores, extracted answers and texts of A and B."""

    id: str
    scores: tuple[float, float]
    answers: tuple[str | None, str | None]
    target: str
    texts: tuple[str, str]
    first_difference: FirstDifference | None
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of `prompts` that were answered twice: `identical` to the character, `same_answer` in other words, and the
    others. Without an extracted answer two texts count as the same when they have the same score."""

    prompts: int
    identical: int
    same_answer: int
    different: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfFlips:
    """Whether two endpoints differ more than one of them does from itself.

    The one that was asked twice is `endpoint`. Over the `prompts` with a score each time: `own` changed their score
    (for an Invariant: their answer) between its two answers, `other` between its first one and the other endpoint's;
    `only_own` and `only_other` of them in that way alone. `own_texts` and `other_texts` count changed texts likewise.
    The other endpoint's answer lies farther from the first one than the own second one does in `score_farther` prompts
    by the distance of the scores, nearer in `score_nearer`; by the place where the texts part in `text_farther` and
    `text_nearer`. None: not counted, as where there are no texts, or by the version that wrote the file.

    `p` is that of "the other endpoint's answers are such as its own second ones" (one-sided, mid-p, corrected for the
    two measures). `measure` names the one that carried it; "": nothing differed, or an older file. `more` is that p
    being `alpha` at most.
    """

    endpoint: str
    prompts: int
    own: int
    other: int
    only_own: int
    only_other: int
    p: float
    alpha: float
    more: bool
    agreement: Agreement
    measure: Literal["", "score", "text"] = ""
    score_farther: int | None = None
    score_nearer: int | None = None
    own_texts: int | None = None
    other_texts: int | None = None
    text_farther: int | None = None
    text_nearer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTask:
    """One task, answered by A and by B. `verdict` is that of B with A in the place of the reference. `worse` and
    `better` count the prompts whose score fell and rose from A's first run to B's; `flips` are some of them, the worse
    ones first. `itself` is None where neither was asked twice. `apart_s` is the median time between the two requests
    for a prompt in seconds: what lies far apart was not asked under the same load. `attributions` tell of either side
    which of its workers gave the bad answers (None: not known)."""

    task: str
    a: TaskResult
    b: TaskResult
    traffic: tuple[Traffic, Traffic]
    verdict: Verdict
    worse: int
    better: int
    agreement: Agreement
    apart_s: float | None
    itself: SelfFlips | None
    flips: tuple[Flip, ...]
    warnings: tuple[str, ...] = ()
    attributions: tuple[Attribution | None, Attribution | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """A or B: the run folder with what it answered, where it was reached, the version of the software that it told, and
    requests answered per second in the session that asked last (None: not known). `servers` tells of each kind of
    server behind it; `hidden_retries` is what its orchestrator asked them again, by kind, where it counts that."""

    folder: str
    model: str | None
    base_url: str
    version: str | None
    per_second: float | None
    servers: Mapping[str, str] = field(default_factory=dict)
    hidden_retries: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The truth about two runs beside each other: what comparison.json holds."""

    schema_version: int
    a: ComparedSide
    b: ComparedSide
    rule: Spec
    tasks: tuple[ComparedTask, ...]
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """What asking each worker by itself told: what attribution.json holds.

    `alone` is each worker answering whole, `in_pairs` every context server handing over to every generation server
    (None: not asked). Both have half of the level where both were asked. `asked` are the prompts, `requests` all that
    were sent.
    """

    schema_version: int
    run: str
    model: str | None
    workers: tuple[tuple[str, str], ...]
    asked: int
    requests: int
    alone: Attribution
    in_pairs: Attribution | None
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A change that should change no answer, for one task: `arm` names it and `what` tells it.

    `changed` counts the prompts that it made answered otherwise, beside those that are answered otherwise when nothing
    is changed; its `endpoint` is the arm. `p_holm` is its p after Holm's correction over all arms and tasks; `broken`:
    that is the alpha of all together at most.

    Where a sound server may change answers (the arm `alone`), the p is that of the scores instead: they `fell` from one
    request at a time to many in so many prompts and `rose` in so many (two-sided sign test, mid-p). None: by changes.
    """

    task: str
    arm: str
    what: str
    changed: SelfFlips
    agreement: Agreement
    p_holm: float
    broken: bool
    fell: int | None = None
    rose: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariants:
    """What holds of one endpoint whatever the load, the order and the form of its requests: what invariants.json holds.
    `skipped` says which arms were not tried, and why."""

    schema_version: int
    model: str | None
    base_url: str
    alpha: float
    results: tuple[Invariant, ...]
    skipped: Mapping[str, str]
    exit_code: int
    started_at: str
    wall_s: float
