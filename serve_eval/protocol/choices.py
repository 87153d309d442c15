"""Options that mean the same for every task."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class Choices(TypedDict, total=False):
    """Options that every task has beside its own, in a plan as in `--set TASK.OPTION=VALUE`. What
    is not given is as the task has it; docs/protocols.md tells what each of them means.
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
