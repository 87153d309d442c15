"""Thoughts before an answer to a chat, as long as the request's effort asks for."""

from __future__ import annotations

from typing import Literal

from serve_eval.launchers._standin.fields import ChatCompletionRequest, Request
from serve_eval.launchers._standin.model import encode

Thinks = Literal["never", "as_asked", "always"]
"""The thinking of a server: it has none, heeds the fields of a request, or ignores them."""
WORDS = {"none": 0, "no_think": 0, "low": 8, "medium": 32, "high": 128, "xhigh": 256, "max": 256}
"""Words of thought by effort."""
USUAL = "medium"


def think(request: Request, thinks: Thinks) -> list[int]:
    """Return the token ids of the thoughts before an answer, with their tags; none if there are."""
    if thinks == "never" or not isinstance(request, ChatCompletionRequest):
        return []
    count = WORDS[USUAL] if thinks == "always" else _count_words(request)
    return encode(f"<think>{' so' * count} </think>\n") if count else []


def _count_words(request: ChatCompletionRequest) -> int:
    variables = request.chat_template_kwargs or {}
    if not variables.get("enable_thinking", variables.get("thinking", True)):
        return 0
    if (budget := variables.get("thinking_budget", -1)) >= 0:
        return int(budget)
    given = request.reasoning_effort if "reasoning_effort" in request.model_fields_set else None
    return WORDS.get(variables.get("reasoning_effort") or given or USUAL, WORDS[USUAL])
