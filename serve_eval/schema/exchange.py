"""Hold one exchange with an endpoint: the Request, and the Response or Failure that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from serve_eval.schema.execution import ExecutionResult
from serve_eval.schema.judge import Judgement
from serve_eval.schema.sample import Prompt, SamplingParams


class FailureKind(StrEnum):
    """Why there is no score. With JUDGE_ERROR there is an answer, of which its judges said too
    little, and with SCORER_ERROR one on which the scorer raised or took too long: it is scored
    again when the run goes on.
    """

    HTTP_ERROR = "http_error"
    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    INVALID_RESPONSE = "invalid_response"
    JUDGE_ERROR = "judge_error"
    SCORER_ERROR = "scorer_error"


class Request(Struct, frozen=True, kw_only=True, gc=False):
    """What is sent for one sample. `extra` holds fields beyond the common OpenAI ones
    (truncate_prompt_tokens). With `prompt_logprobs` the log-probabilities of the prompt, a text,
    are asked for, and no answer.
    """

    sample_id: str
    prompt: Prompt
    sampling: SamplingParams
    extra: Mapping[str, object] = {}
    prompt_logprobs: bool = False


LogprobsForm = Literal["echo", "prompt_logprobs"]
"""How a server is asked for the log-probabilities of a prompt: by `echo` and `logprobs`, or by
vLLM's field of that name. Which one it is, a probe finds out."""


class PromptLogprobs(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Natural logarithms of the probabilities of a prompt's tokens, in order, but for the first
    `skipped`, which have none. `offsets` says where in the prompt each of them begins, in
    characters; where no server tells and it cannot be worked out, it is None and `tokens` has their
    texts. `likeliest` has a character for each: 1 where no other token would have been likelier,
    else 0 (None: the server does not tell).
    """

    values: tuple[float, ...]
    skipped: int = 1
    offsets: tuple[int, ...] | None = None
    tokens: tuple[str, ...] | None = None
    likeliest: str | None = None


class ServerTiming(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an orchestrator told with an answer: when the request arrived there, in seconds on its
    clock, as the text that it sent; how long the KV cache took to the generation server (None: it
    did not tell).
    """

    arrival: str
    kv_transfer_s: float | None = None


class Attempt(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """One try of a request: when, what went wrong (None: nothing), the X-Request-ID that we sent.

    `start_s` and `end_s` are seconds since 1970 in UTC, counted on from the opening of the client
    by a clock that never jumps. `streamed`: an event stream was asked for. An answer that may be
    that to another request has the number of its `connection` and the `turn` that it had on it; 0:
    it surely is the right one. `timing` is what the server told of it where it was asked for.
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
    """Token counts as the server reports them. `cached_tokens` are those of the prompt that its
    prefix cache had (None: it does not say).
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None


class ToolCall(Struct, frozen=True, gc=False):
    """A call of a tool that an answer asks for. `arguments` are the text that came: JSON, where all
    is well.
    """

    name: str
    arguments: str = ""


class Response(Struct, frozen=True, kw_only=True, gc=False):
    """An answer. `finish_reason` "length" means that it was cut, which is a flag and not an
    outcome.

    `text` is what is scored: what a model thought aloud stands in `reasoning`, also when it came in
    the text between <think> and </think>; `thoughts_ended`: a </think> was seen. `stop_reason` is
    the stop string that ended the answer, where the server tells it. Of a stream, `ttft_s` is the
    time to the first token and `tpot_s` the mean time per token after it (None: not known), in
    seconds. `tokens_per_step` is how many tokens a step of the engine gave on average, more than 1
    with speculative decoding; trtllm-serve tells it. An answer with `prompt_logprobs` has no text.
    `ran` is what running it gave, for a task that runs answers, and `judgements` what judges said
    of it, for a task that asks them; both are looked up for the scorer and never journalled here.
    `choice_logprobs` has the log-probabilities of the tokens of each of the sample's choices;
    usage, latency and attempts are then those of all their requests together, and there is no text
    either. `choice_greedy` says of each whether greedy decoding would have written it (None: the
    server does not tell). An answer with `tool_calls` often has no text, and is none the less an
    answer. `answer_id` is what the server calls it.
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

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length" and self.prompt_logprobs is None

    @property
    def stopped_in_reasoning(self) -> bool:
        """Whether it ended, and was not cut, before there was an answer: probably a stop string
        fired too early.
        """
        ended = self.finish_reason in ("stop", "stop_sequence") and not self.thoughts_ended
        return ended and bool(self.reasoning) and not self.text.strip() and not self.tool_calls


class Failure(Struct, frozen=True, kw_only=True, gc=False):
    """No answer after every attempt. Returned, not raised; a scorer can never be given one."""

    kind: FailureKind
    message: str
    status: int | None = None
    retryable: bool = True
    attempts: tuple[Attempt, ...] = ()
