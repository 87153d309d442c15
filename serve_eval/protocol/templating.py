"""Messages under the choices of a protocol: who renders the chat template, and what is sent and
noted then.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.protocol import chat_template
from serve_eval.protocol.choices import Choices
from serve_eval.schema import Message, Prompt

Render = Callable[[tuple[Message, ...]], str]
"""Makes the text of messages."""


def choose_rendering(
    given: Choices, extra: Mapping[str, object], *, chat: bool, exact: bool
) -> tuple[Render | None, dict[str, object], dict[str, object]]:
    """Choose what renders messages on our side (None: the server does).

    Returns the fields that are sent then, too, and what the fingerprint says of it.
    """
    thinking, sent = _thinking(given.get("thinking")), dict(extra)
    variables = dict(typing.cast(Mapping[str, object], sent.pop("chat_template_kwargs", {})))
    if (folder := given.get("tokenizer")) is None or not chat:
        if thinking is None and exact and chat and "enable_thinking" not in variables:
            thinking = False  # the suite's way; a template that does not know the switch ignores it
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
        thinking = False  # as the suite does for templates that know the switch
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
    """Return a prompt as it is sent: as a text or as turns, after the system prompt.

    Turns are rendered where `render` does that on our side. Raises PlanError for several turns that
    are to be one text.
    """
    if not chat:
        if not isinstance(prompt, str):
            if len(prompt) > 1 or prompt[0].images:
                raise PlanError(
                    "several turns or images are no plain text",
                    hint="Leave apply_chat_template: false out for this task.",
                )
            prompt = prompt[0].text
        return system_prompt + prompt
    turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
    if system_prompt:
        turns = (Message(role="system", content=system_prompt), *turns)
    return turns if render is None else render(turns)


def date_of(text: str) -> date | None:
    """Read a date such as 2026-11-20; None for a text that is none."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _thinking(given: bool | str | None) -> bool | None:
    """YAML reads on and off as booleans; flags and quoted words do not."""
    return given == "on" if isinstance(given, str) else given
