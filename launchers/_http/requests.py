"""Read a request to one of our servers, and refuse it as OpenAI-compatible servers do.

Refusals have the form of trtllm-serve. Only the server knows how many tokens a prompt has.

Errors have the form of trtllm-serve, and that of OpenAI for an unknown model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from serve_eval.frozen import freeze
from serve_eval.schema import Message, Prompt

DEFAULT_MAX_TOKENS = 16
MOST_LOGPROBS = 20
"""Maximum number of alternatives per token."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON_FIELDS = _words("""
    model best_of frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop
    stream stream_options temperature top_p user echo lora_request prompt_ignore_length
    use_beam_search top_k top_p_min min_p repetition_penalty length_penalty early_stopping
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
    spaces_between_special_tokens truncate_prompt_tokens add_special_tokens response_format
    disaggregated_params thinking_token_budget priority conversation_params
""")
TEXT_FIELDS = _COMMON_FIELDS | _words("prompt suffix return_context_logits detokenize")
CHAT_FIELDS = _COMMON_FIELDS | _words("""
    messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls
    reasoning_effort prompt_token_ids add_generation_prompt documents chat_template
    chat_template_kwargs cache_salt agent_hierarchy media_io_kwargs mm_processor_kwargs thinking
""")
"""Fields that trtllm-serve knows, on either route."""

_AtLeast0 = Annotated[int, msgspec.Meta(ge=0)]
_AtLeast1 = Annotated[int, msgspec.Meta(ge=1)]


class _StreamOptions(msgspec.Struct):
    include_usage: bool = True


class _Body(msgspec.Struct):
    """The fields of a request that change the answer."""

    model: str
    prompt: str | list[str | int | list[int]] | None = None
    messages: tuple[Message, ...] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    echo: bool = False
    logprobs: int | bool | None = None
    top_logprobs: _AtLeast0 | None = None
    prompt_logprobs: _AtLeast0 | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: _AtLeast1 | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    truncate_prompt_tokens: _AtLeast1 | None = None


_decode = msgspec.json.Decoder(_Body).decode


@freeze
class Ask:
    """A valid request.

    A prompt is a text, messages, or token ids. `max_tokens` and `temperature` None: the server's
    own default. `logprobs` is the number of alternatives per generated token, and with `echo` per
    token of the prompt (None: no log-probabilities); `prompt_logprobs` is vLLM's field. `truncate`
    keeps the last tokens of a prompt. `tools` may be called.
    """

    chat: bool
    model: str
    prompts: Sequence[Prompt | list[int]]
    template_kwargs: Mapping[str, Any]
    max_tokens: int | None
    n: int
    temperature: float | None
    top_p: float
    seed: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    truncate: int | None
    response_format: dict[str, Any] | None
    tools: Sequence[dict[str, Any]]


def understand(raw: bytes, *, chat: bool, models: Collection[str] | None) -> Ask:
    """Return the request in a body. Raise RefusedRequest if it is invalid.

    `models` None: any name is accepted.
    """
    try:
        body = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RefusedRequest(400, {"error": str(error)}) from error
    if models is not None and body.model not in models:
        raise RefusedRequest(
            404,
            openai_error(f"The model `{body.model}` does not exist.", "model_not_found", "model"),
        )
    if body.stream_options is not None and not body.stream:
        raise bad_request("Stream options can only be defined when stream is true.")
    stops = (body.stop,) if isinstance(body.stop, str) else body.stop or ()
    return Ask(
        chat=chat,
        model=body.model,
        prompts=_prompts(body, chat),
        template_kwargs=body.chat_template_kwargs or {},
        max_tokens=(
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        ),
        n=body.n or 1,
        temperature=body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=body.seed,
        stop=tuple(filter(None, stops)),
        ignore_eos=body.ignore_eos,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        echo=body.echo and not chat,
        logprobs=_alternatives(body, chat),
        prompt_logprobs=_few("prompt_logprobs", body.prompt_logprobs),
        truncate=body.truncate_prompt_tokens,
        response_format=body.response_format,
        tools=body.tools if chat and body.tools and body.tool_choice != "none" else (),
    )


def refuse_unknown_fields(body: dict[str, object], *, chat: bool) -> None:
    """Raise RefusedRequest for unknown fields, as servers with strict request models do."""
    if unknown := set(body) - (CHAT_FIELDS if chat else TEXT_FIELDS):
        message = "Extra inputs are not permitted"
        errors = [
            {"type": "extra_forbidden", "loc": ("body", name), "msg": message}
            for name in sorted(unknown)
        ]
        raise RefusedRequest(400, {"error": str(errors)})


def refuse_too_few(max_tokens: int, least: int = 1) -> None:
    """Raise RefusedRequest for an answer of fewer tokens than `least`."""
    if max_tokens < least:
        raise bad_request(f"`max_tokens` ({max_tokens}) must be greater than {least - 1}")


def refuse_too_long(needed: int, context_tokens: int | None) -> None:
    """Raise RefusedRequest if prompt and answer together exceed the context (None: no limit)."""
    if context_tokens is not None and needed > context_tokens:
        raise bad_request(
            f"This model's maximum context length is {context_tokens} tokens. However, your"
            f" messages resulted in {needed} tokens. Please reduce the length of the messages."
        )


def _prompts(body: _Body, chat: bool) -> Sequence[Prompt | list[int]]:
    if chat:
        if body.messages is None:
            raise RefusedRequest(400, {"error": "Object missing required field `messages`"})
        if not body.messages:
            raise bad_request("list index out of range")
        return [body.messages]
    if body.prompt is None:
        raise RefusedRequest(400, {"error": "Object missing required field `prompt`"})
    if isinstance(body.prompt, str):
        return [body.prompt]
    if not body.prompt:
        raise bad_request("list index out of range")
    ids = [one for one in body.prompt if isinstance(one, int)]
    if len(ids) == len(body.prompt):
        return [ids]
    several = [one for one in body.prompt if not isinstance(one, int)]
    if ids:
        raise bad_request("`prompt` mixes token ids with prompts")
    return several


def _alternatives(body: _Body, chat: bool) -> int | None:
    """Return the number of alternatives per token (None: no log-probabilities).

    A chat request has a separate field for it.
    """
    if not chat:
        return (
            None
            if body.logprobs is None or body.logprobs is False
            else _few("logprobs", int(body.logprobs))
        )
    if not body.logprobs:
        if body.top_logprobs:
            raise bad_request("`top_logprobs` needs `logprobs: true`")
        return None
    return _few("top_logprobs", body.top_logprobs or 0)


def _few(name: str, count: int | None) -> int | None:
    if count is not None and not 0 <= count <= MOST_LOGPROBS:
        raise bad_request(f"`{name}` ({count}) must be between 0 and {MOST_LOGPROBS}")
    return count


encode = msgspec.json.Encoder().encode


class RefusedRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body


def trtllm_error(message: str, kind: str, status: int) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def openai_error(message: str, code: str, param: str | None = None) -> dict[str, object]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    }


def bad_request(message: str) -> RefusedRequest:
    return RefusedRequest(400, trtllm_error(message, "BadRequestError", 400))
