"""Declare the options that mean the same for every task."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Choices(TypedDict, total=False):
    """Options that every task has, in a plan and as `--set TASK.OPTION=VALUE`.

    An omitted option has the task's default. docs/protocols.md explains each option.
    """

    apply_chat_template: bool
    system_prompt: str | None
    thinking: bool | Literal["on", "off"] | None
    max_tokens: int
    temperature: float | None
    top_p: float | None
    seed: int | None
    stop: list[str] | None
    truncate_prompt_tokens: int | None
    extra_body: dict[str, Any] | None
    tokenizer: str | None
    add_special_tokens: bool | None
    template_date: str | None
    suite_exact: bool
    acceptance_length: str | None
