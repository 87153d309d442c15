"""The chat template of a model, rendered as transformers renders it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from launchers._openai_server import bad_request
from serve_eval.schema import Message

Render = Callable[[Sequence[Message], Mapping[str, Any]], str]


def template_of(folder: Path) -> Render:
    """What makes the text of messages, given more variables, with the model's turn opened: the `chat_template` of
    `tokenizer_config.json`. It raises Refused for what the template does not take, and images are among that."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    template = environment.from_string(config["chat_template"])

    def render(messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        if any(turn.images for turn in messages):
            raise bad_request("this is not a multimodal model")
        turns = [{"role": turn.role, "content": turn.text} for turn in messages]
        try:
            return template.render(**{"add_generation_prompt": True, **variables, "messages": turns})
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise bad_request(f"the chat template fails: {error}") from error

    return render
