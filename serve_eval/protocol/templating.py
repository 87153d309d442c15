"""Apply the choices of a protocol to prompts: who renders the chat template, and what is sent."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypedDict

from serve_eval.errors import PlanError
from serve_eval.protocol import chat_template
from serve_eval.schema import Message, Prompt


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


Render = Callable[[tuple[Message, ...]], str]
"""Makes one text of messages."""


def choose_rendering(
    given: Choices, extra: Mapping[str, object], *, chat: bool, exact: bool
) -> tuple[Render | None, dict[str, object], dict[str, object]]:
    """Choose what renders messages on our side (None: the server renders).

    Also returns the fields that are sent and the entries of the fingerprint.
    """
    thinking, sent = _thinking(given.get("thinking")), dict(extra)
    variables = dict(typing.cast(Mapping[str, object], sent.pop("chat_template_kwargs", {})))
    if (folder := given.get("tokenizer")) is None or not chat:
        if thinking is None and exact and chat and "enable_thinking" not in variables:
            thinking = False  # as the suite does; templates without the switch ignore it
        if thinking is not None:
            variables["enable_thinking"] = thinking
        return (
            None,
            {**sent, **({"chat_template_kwargs": variables} if variables else {})},
            {"thinking": thinking},
        )
    template = chat_template.read(Path(folder).expanduser())
    if (
        thinking is None
        and exact
        and "enable_thinking" in template.text
        and "enable_thinking" not in variables
    ):
        thinking = False  # as the suite does for templates with the switch
    if thinking is not None:
        variables["enable_thinking"] = thinking
    day = given.get("template_date")
    render = chat_template.Rendering(
        template, variables=variables, today=date_of(day) if day else None
    )
    special = given.get("add_special_tokens", exact)
    told: dict[str, object] = {
        "thinking": thinking,
        "chat_template": f"client sha256:{template.sha256}",
        "template_date": day,
        "add_special_tokens": special,
    }
    return render, {**sent, "add_special_tokens": special}, told


def prompt_under(
    prompt: Prompt, *, chat: bool, system_prompt: str, render: Render | None
) -> Prompt:
    """Return a prompt as it is sent: a text or turns, after the system prompt.

    `render` renders turns on our side. Raises PlanError for several turns without a chat template.
    """
    if not chat:
        if not isinstance(prompt, str):
            if len(prompt) > 1 or prompt[0].media:
                raise PlanError(
                    "several turns or media cannot be sent as plain text",
                    hint="Omit apply_chat_template: false for this task.",
                )
            prompt = prompt[0].text
        return system_prompt + prompt
    turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    if system_prompt:
        turns = (Message(role="system", content=system_prompt), *turns)
    return turns if render is None else render(turns)


def date_of(text: str) -> date | None:
    """Return a date such as 2026-11-20, or None for an invalid one."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _thinking(given: bool | str | None) -> bool | None:
    """Return the switch as a boolean: YAML reads on and off as booleans; flags give words."""
    return given == "on" if isinstance(given, str) else given
