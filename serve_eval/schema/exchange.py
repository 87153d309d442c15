"""Define one exchange with an endpoint: the Request, and the Response or Failure that ends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from serve_eval.schema.sample import Prompt, RecordedBody, SamplingParams, ToolCall
from serve_eval.schema.score import ExecutionResult, Judgement, Outcome


class AnsweringServers(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The names of the context and the generation server, as the router sent them.

    None: the router did not name it.
    """

    context: str | None = None
    generation: str | None = None


LOOPED = "repetition"
"""The finish_reason of an answer that the server ended because it repeats itself."""


class FailureKind(StrEnum):
    """The reason for a missing score.

    With JUDGE_ERROR there is an answer, but its judges said too little. With SCORER_ERROR there is
    one on which the scorer raised or took too long; it is scored again when the run resumes.
    """

    HTTP_ERROR = "http_error"
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    INVALID_RESPONSE = "invalid_response"
    JUDGE_ERROR = "judge_error"
    SCORER_ERROR = "scorer_error"


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """The request for one sample.

    `extra` holds fields beyond the common OpenAI ones (truncate_prompt_tokens). With
    `prompt_logprobs` it asks for the log-probabilities of the prompt, a text, and for no answer. A
    `recorded` body is sent in place of all others. `headers` go with this request alone.
    """

    sample_id: str
    prompt: Prompt
    sampling: SamplingParams
    extra: Mapping[str, object] = {}
    prompt_logprobs: bool = False
    recorded: RecordedBody | UnsetType = UNSET
    headers: Mapping[str, str] | UnsetType = UNSET


LogprobsForm = Literal["echo", "prompt_logprobs"]
"""Way to ask a server for the log-probabilities of a prompt: by `echo` and `logprobs`, or by vLLM's
field of that name. A probe finds out which one works."""


class PromptLogprobs(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Natural logarithms of the probabilities of a prompt's tokens, in order.

    The first `skipped` tokens have none and are left out. `offsets` is the place in the prompt at
    which each token begins, in characters. If no server reports it and it cannot be computed, it is
    None and `tokens` has the tokens' texts. `likeliest` has a character per token: 1 if no other
    token was likelier, else 0 (None: the server does not report it).
    """

    values: tuple[float, ...]
    skipped: int = 1
    offsets: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    likeliest: str | None = None


class ServerTiming(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Times that an orchestrator reports with an answer.

    `arrival` is when the request arrived there, in seconds on its clock, as the text that it sent.
    `kv_transfer_s` is the time that the KV cache took to the generation server (None: not
    reported).
    """

    arrival: str
    kv_transfer_s: float | None = None


class LostAnswer(StrEnum):
    """The answer that a failed attempt may have lost.

    NOTHING: it failed before generation could begin. ANSWER: generation may have begun, so an
    answer may exist that nobody saw. RESTART: the same, and the server ended meanwhile.
    """

    NOTHING = "nothing"
    ANSWER = "answer"
    RESTART = "restart"


class Attempt(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One attempt of a request: its times, its failure (None: none), and our X-Request-ID.

    `start_s` and `end_s` are seconds since 1970 in UTC, counted from the opening of the client by a
    clock that never jumps. `streamed`: the request asked for an event stream. An answer that may
    belong to another request has the number of its `connection` and its `turn` on that connection;
    0: it surely is the right one. `timing` is what the server reported if it was requested.
    `servers` are those that the reply named, be it an answer or an error. `lost` is set for a
    failed attempt; journals of before 2026-12 lack it.
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
    servers: AnsweringServers | None = None
    lost: LostAnswer | UnsetType = UNSET

    @property
    def lost_answer(self) -> LostAnswer:
        """The answer that the attempt lost, judged by its failure if the journal lacks `lost`."""
        if self.failure is None:
            return LostAnswer.NOTHING
        if self.lost is not UNSET:
            return self.lost
        error = self.status is not None and (self.status >= 500 or self.status == 408)
        cut = self.failure in (FailureKind.TIMEOUT, FailureKind.INVALID_RESPONSE)
        return LostAnswer.ANSWER if error or cut else LostAnswer.NOTHING


def find_lost(attempts: Sequence[Attempt]) -> LostAnswer:
    """Return what the attempts of a sample lost; an answer counts more than a restart."""
    found = LostAnswer.NOTHING
    for attempt in attempts:
        lost = attempt.lost_answer
        if lost is LostAnswer.ANSWER:
            return lost
        if lost is LostAnswer.RESTART:
            found = lost
    return found


LISTED_FINISHES = frozenset({None, "stop", "length", "tool_calls", "function_call", LOOPED})


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Token counts as the server reports them.

    `cached_tokens` are the prompt tokens that came from its prefix cache (None: not reported).
    `reasoning_tokens` are those of `completion_tokens` that are thoughts, which many servers do
    not show (UNSET: none, or not reported).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    reasoning_tokens: int | UnsetType = UNSET

    @property
    def shown_tokens(self) -> int:
        """The generated tokens that are not thoughts. Some servers count thoughts apart."""
        hidden = self.reasoning_tokens or 0
        return self.completion_tokens - (hidden if hidden <= self.completion_tokens else 0)


class Response(Struct, frozen=True, kw_only=True, gc=False):
    """An answer.

    `finish_reason` "length" means that it was cut, which is a flag and not an outcome. `text` is
    what is scored. `reasoning` holds the model's thoughts, even if they came in the text between
    <think> and </think>; `thoughts_ended`: there was a </think>. `stop_reason` is the stop string
    that ended the answer, if the server reports it. For a stream, `ttft_s` is the time to the first
    token and `tpot_s` the mean time per token after it (None: not known), in seconds.
    `tokens_per_step` is the mean number of tokens per step of the engine, more than 1 with
    speculative decoding; trtllm-serve reports it. An answer with `prompt_logprobs` has no text.
    `ran` is the result of running it, for a task that runs answers, and `judgements` what judges
    said of it, for a task that asks them; the scorer receives both, and they are never journalled
    here. `choice_logprobs` has the log-probabilities of the tokens of each of the sample's choices;
    usage, latency and attempts are then those of all their requests together, and there is no text
    either. `choice_greedy` says of each whether greedy decoding would have written it (None: the
    server does not report it). An answer with `tool_calls` often has no text, and is still an
    answer. `answer_id` is the server's id of it.
    `system_fingerprint` names the configuration of the server that gave it, if the server names it.
    `call_faults` says what is wrong with the ids and the indexes of its tool calls, if anything is.
    `server_finish` is the server's own word for `finish_reason`, where it has another.
    The answer to a conversation is the last one of its `exchanges`, with the usage, the latency and
    the attempts of all of them together; it counts as cut if any of them is.
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
    ran: ExecutionResult | None = None
    judgements: tuple[Judgement, ...] = ()
    tokens_per_step: float | None = None
    prompt_logprobs: PromptLogprobs | None = None
    choice_logprobs: tuple[tuple[float, ...], ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    choice_greedy: tuple[bool, ...] | None = None
    answer_id: str | None = None
    system_fingerprint: str | UnsetType = UNSET
    call_faults: tuple[str, ...] | UnsetType = UNSET
    server_finish: str | UnsetType = UNSET
    exchanges: tuple[Exchange, ...] | UnsetType = UNSET

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length" and self.prompt_logprobs is None

    @property
    def looping(self) -> bool:
        """True if the server ended it because it repeats itself."""
        return self.finish_reason == LOOPED or self.stop_reason == "repetition_detected"

    @property
    def unlisted_finish(self) -> bool:
        """True if its finish_reason is one of no known server, so that it may have been cut."""
        return self.finish_reason not in LISTED_FINISHES

    @property
    def stopped_in_reasoning(self) -> bool:
        """True if it ended, without being cut, before any answer.

        Probably a stop string fired too early.
        """
        if not self.reasoning or self.thoughts_ended:
            return False
        ended = self.finish_reason == "stop"
        return ended and not self.text.strip() and not self.tool_calls


def name_empty(response: Response) -> Outcome:
    """Return why an answer is empty."""
    if response.refusal or response.finish_reason == "content_filter":
        return Outcome.REFUSED
    thought = response.reasoning or response.usage.reasoning_tokens
    return Outcome.REASONING_ONLY if thought else Outcome.EMPTY


class Exchange(Struct, frozen=True, kw_only=True, gc=False):
    """One request of a conversation: the user's turn, counted from 0, and the response.

    A turn has several if its answers call tools.
    """

    turn: int
    response: Response


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """No answer after every attempt. It is returned, not raised; scorers never receive one."""

    kind: FailureKind
    message: str
    status: int | None = None
    retryable: bool = True
    attempts: tuple[Attempt, ...] = ()


FEW_TOKENS = 2
"""Value of max_tokens up to which each answer is cut by design."""
UNREADABLE = frozenset({Outcome.UNPARSED, Outcome.EMPTY, Outcome.REASONING_ONLY})
"""Outcomes of an answer in which no result was found."""
_WINDOW = ("context", "model_length", "modellength")
"""Parts of finish reasons, in lower case, by which servers name their window."""


class Cut(StrEnum):
    """The cause of a cut answer.

    WINDOW is the server's limit for prompt and answer together. STOP_STRING ended the answer before
    it had a result.
    """

    MAX_TOKENS = "max_tokens"
    WINDOW = "window"
    STOP_STRING = "stop_string"


def find_cut(response: Response, outcome: Outcome, asked: SamplingParams) -> Cut | None:
    """Return what cut an answer off, or None if it ended, or if `asked` wants a token or two.

    A cut is the server's own if its word for it says so, or if it comes before max_tokens: some
    servers count thoughts apart, so that the tokens of both must be fewer. Without a count it is
    taken to be at max_tokens. A stop string ends most answers to prompts of a base model, so it cut
    only those in which no result was found. Of a conversation, the first cut answer counts.
    """
    if response.prompt_logprobs is not None or response.choice_logprobs is not None:
        return None
    if response.exchanges:
        said = [one.response for one in response.exchanges]
        response = next((one for one in said if one.truncated), said[-1])
    if response.truncated:
        if asked.max_tokens <= FEW_TOKENS:
            return None
        return Cut.WINDOW if _ends_early(response, asked.max_tokens) else Cut.MAX_TOKENS
    if response.looping or outcome not in UNREADABLE:
        return None
    within = response.stopped_in_reasoning and bool(asked.stop)
    return Cut.STOP_STRING if within or response.stop_reason is not None else None


def read_limit(fingerprint: Mapping[str, object]) -> int | None:
    """Return the max_tokens of a protocol, whose fingerprint may hold it as a text, or None."""
    told = str(fingerprint.get("max_tokens"))
    return int(told) if told.isdecimal() else None


def raise_limit(max_tokens: int) -> int:
    """Return the limit to try where this one cut answers: nothing else is known of their length."""
    return 2 * max_tokens


def _ends_early(response: Response, max_tokens: int) -> bool:
    word = response.server_finish or ""
    if any(sign in word.lower() for sign in _WINDOW):
        return True
    usage = response.usage
    counted = usage.completion_tokens + (usage.reasoning_tokens or 0)
    return 0 < counted < max_tokens
