"""Answers as strict models: what a worker writes, and what an orchestrator accepts from it."""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from pydantic import Field

from serve_eval.launchers._standin.fields import (
    DisaggregatedParams,
    MainDisaggregatedParams,
    Strict,
)
from serve_eval.launchers._standin.options import Flavour


def _id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _now() -> int:
    return int(time.time())


class PromptDetails(Strict):
    cached_tokens: int = 0


class AnswerUsage(Strict):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None


class TextChoice(Strict):
    index: int
    text: str
    token_ids: list[int] | None = None
    logprobs: dict[str, Any] | None = None
    context_logits: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    disaggregated_params: DisaggregatedParams | MainDisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class TextAnswer(Strict):
    id: str = Field(default_factory=lambda: _id("cmpl"))
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[TextChoice]
    usage: AnswerUsage
    prompt_token_ids: list[int] | list[list[int]] | None = None


class ChatMessage(Strict):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    mm_embedding_handle: dict[str, Any] | None = None
    disaggregated_params: DisaggregatedParams | MainDisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class ChatAnswer(Strict):
    id: str = Field(default_factory=lambda: _id("chatcmpl"))
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[ChatChoice]
    usage: AnswerUsage
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None


Answer = TextAnswer | ChatAnswer


def write(answer: Answer, flavour: Flavour) -> bytes:
    """Return the body of an answer; the 1.2 line does not know prompt_token_ids_b64."""
    if flavour == "main" or not isinstance(answer, ChatAnswer):
        return answer.model_dump_json().encode()
    return answer.model_dump_json(exclude={"prompt_token_ids_b64"}).encode()
