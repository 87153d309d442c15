"""Request models of main, whose refusals are those of the recorded serving layer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic import field_validator as check_field
from pydantic_core import PydanticKnownError
from typing_extensions import TypedDict

from serve_eval.launchers._standin.fields import (
    ChatCompletionRequest,
    CompletionRequest,
    MainDisaggregatedParams,
    ResponseFormat,
    Strict,
)

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


class _Message(TypedDict):
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
        messages: list[_Message]  # type: ignore[assignment]
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
