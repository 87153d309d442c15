"""Define the request models of both generations, which forbid unknown fields.

Fields are in the order in which the real server forwards them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Union

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator
from pydantic import field_validator as check_field
from pydantic_core import PydanticKnownError
from typing_extensions import TypedDict


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class StreamOptions(Strict):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class Lora(Strict):
    lora_name: str
    lora_int_id: int
    lora_path: str = ""


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    type: Literal["text", "json", "json_schema", "json_object", "regex", "ebnf", "structural_tag"]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    format: dict[str, Any] | None = None


class DisaggregatedParams(Strict):
    request_type: str
    first_gen_tokens: list[int] | None = None
    ctx_request_id: int | None = None
    encoded_opaque_state: str | None = None
    draft_tokens: list[int] | None = None
    disagg_request_id: int | None = None
    ctx_dp_rank: int | None = None
    ctx_info_endpoint: str | None = None
    schedule_style: Literal[0, 1] | None = None


class MainDisaggregatedParams(DisaggregatedParams):
    first_gen_log_probs: list[Any] | None = None
    first_gen_logits: Any = None
    ctx_usage: dict[str, Any] | None = None
    return_prompt_token_ids_b64: bool | None = None
    resolved_thinking: bool | None = None


class _AssistantMessage(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    content: str | list[dict[str, Any]] | None
    role: Literal["assistant"]


class _Message(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    content: str | list[dict[str, Any]]
    role: str


class _Function(TypedDict, total=False):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class _Tool(Strict):
    type: Literal["function"] = "function"
    function: _Function


def _logit_bias(value: dict[str, float] | None) -> dict[str, float] | None:
    for token in value or {}:
        int(token)
    return value


class _Sampling(Strict):
    """Check only the ranges that the real models check."""

    @model_validator(mode="before")
    @classmethod
    def _suffix(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("suffix"):
            raise ValueError("suffix is not supported")
        return data


class CompletionRequest(_Sampling):
    model: str
    # The order of the types is that of the errors.
    prompt: Union[list[int], list[list[int]], str, list[str]]  # noqa: UP007
    best_of: int | None = None
    echo: bool | None = False
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1
    presence_penalty: float | None = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    lora_request: Lora | None = None
    prompt_ignore_length: int | None = 0
    use_beam_search: bool = False
    top_k: int = 0
    top_p_min: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | int = False
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    return_context_logits: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    response_format: ResponseFormat | None = None
    disaggregated_params: DisaggregatedParams | None = None

    _bias = check_field("logit_bias")(_logit_bias)

    @model_validator(mode="before")
    @classmethod
    def _coherent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            logprobs = data.get("logprobs")
            if isinstance(logprobs, int) and logprobs < 0:
                raise ValueError("logprobs must be positive or zero")
            if data.get("stream_options") is not None and not data.get("stream"):
                raise ValueError("Stream options can only be defined when stream is true.")
        return data


class ChatCompletionRequest(_Sampling):
    messages: list[_AssistantMessage | _Message]
    prompt_token_ids: list[int] | None = None
    model: str
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = None
    max_completion_tokens: int | None = Field(
        None, validation_alias=AliasChoices("max_tokens", "max_completion_tokens")
    )
    n: int = 1
    presence_penalty: float | None = 0.0
    response_format: ResponseFormat | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto"] | dict[str, Any] | None = "none"
    user: str | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = "low"
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int = 0
    top_p_min: float = 0.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | int = False
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    prompt_ignore_length: int | None = 0
    lora_request: Lora | None = None
    echo: bool = False
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    disaggregated_params: DisaggregatedParams | None = None
    cache_salt: str | None = None

    _bias = check_field("logit_bias")(_logit_bias)

    @model_validator(mode="before")
    @classmethod
    def _coherent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("stream_options") is not None and not data.get("stream"):
            raise ValueError("stream_options can only be set if stream is true")
        if data.get("top_logprobs") and not data.get("logprobs"):
            raise ValueError("logprobs must be true when using top_logprobs")
        if data.get("tools") and "tool_choice" not in data:
            data = {**data, "tool_choice": "auto"}
        if data.get("tool_choice") not in (None, "none") and not data.get("tools"):
            raise ValueError("When using `tool_choice`, `tools` must be set.")
        return data

    @check_field("cache_salt")
    @classmethod
    def _salt(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("Parameter 'cache_salt' must be a non-empty string if provided.")
        return value


Request = CompletionRequest | ChatCompletionRequest


_TAGS = """
    any_text const_string json_schema grammar regex qwen_xml_parameter or sequence tag
    triggered_tags token_triggered_tags tags_with_separator optional plus star token exclude_token
    any_tokens repeat dispatch token_dispatch
"""


def _check_tag(value: object) -> object:
    """Raise pydantic's own error for a structural tag that xgrammar does not know."""
    tag = value.get("type") if isinstance(value, dict) else None
    if isinstance(tag, str) and tag not in _TAGS.split():
        known = ", ".join(f"'{one}'" for one in _TAGS.split())
        context = {"discriminator": "'type'", "tag": tag, "expected_tags": known}
        raise PydanticKnownError("union_tag_invalid", context)
    return value


class _GivenMessage(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    role: str
    content: NotRequired[str | list[dict[str, Any]] | None]


class _Named(TypedDict):
    name: str


class ChatCompletionNamedToolChoiceParam(BaseModel):
    """A tool that a request wants to be called."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    function: _Named
    type: Literal["function"] = "function"


_ToolChoice = Literal["none", "auto", "required"] | ChatCompletionNamedToolChoiceParam | None


class _MainResponseFormat(ResponseFormat):
    _known = check_field("format", mode="before")(_check_tag)


class _MainOnly(Strict):
    thinking_token_budget: int | None = None
    priority: Annotated[float, Field(ge=0, le=1)] | None = None
    conversation_params: dict[str, Any] | None = None


def _keep(value: dict[str, float] | None) -> dict[str, float] | None:
    """Pass the biases, which main checks behind its models."""
    return value


def main_models() -> tuple[type[CompletionRequest], type[ChatCompletionRequest]]:
    """Return models with the same names, since errors quote them."""

    class MainCompletionRequest(CompletionRequest, _MainOnly):
        early_stopping: bool | int | str = False  # type: ignore[assignment]
        response_format: _MainResponseFormat | None = None
        disaggregated_params: MainDisaggregatedParams | None = None

        _bias = check_field("logit_bias")(_keep)

        @model_validator(mode="before")
        @classmethod
        def _coherent(cls, data: Any) -> Any:
            if isinstance(data, dict) and data.get("stream_options") and not data.get("stream"):
                raise ValueError("Stream options can only be defined when stream is true.")
            return data

    class MainChatCompletionRequest(ChatCompletionRequest, _MainOnly):
        early_stopping: bool | int | str = False  # type: ignore[assignment]
        response_format: _MainResponseFormat | None = None
        disaggregated_params: MainDisaggregatedParams | None = None
        messages: list[_GivenMessage]  # type: ignore[assignment]
        tool_choice: _ToolChoice = "none"  # type: ignore[assignment]
        reasoning_effort: Literal["low", "medium", "high", "max", "none"] | None = "low"  # type: ignore[assignment]
        agent_hierarchy: Any = None
        media_io_kwargs: dict[str, Any] | None = None
        mm_processor_kwargs: dict[str, Any] | None = None
        thinking: Any = None

        _bias = check_field("logit_bias")(_keep)

        @model_validator(mode="before")
        @classmethod
        def _top(cls, data: Any) -> Any:
            asked = isinstance(data, dict) and data.get("top_logprobs") is not None
            if asked and not data.get("logprobs"):
                raise ValueError("logprobs must be true when using top_logprobs")
            return data

    MainCompletionRequest.__name__, MainChatCompletionRequest.__name__ = (
        "CompletionRequest",
        "ChatCompletionRequest",
    )
    return MainCompletionRequest, MainChatCompletionRequest
