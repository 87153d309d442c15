"""Render the chat template of a model, which is a program, with bounded time and memory.

A separate process renders it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.launchers._http.errors import bad_request
from serve_eval.protocol.chat_template import Rendering, read
from serve_eval.schema import Message


class Chat:
    """Renders the text of messages, given more variables, with the model's turn opened.

    Any thread may call it. Raises ValueError for a folder without a valid template. A call raises
    RefusedRequest for what the template does not accept, including media. The process stays until
    `close`.
    """

    def __init__(self, folder: Path) -> None:
        try:
            template = read(folder)
            self._rendering = Rendering(template, variables={}, today=None)
        except PlanError as error:
            raise ValueError(error) from error
        self._place = f"{template.file}: "

    def __call__(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        if any(turn.media for turn in messages):
            raise bad_request("this is not a multimodal model")
        try:
            return self._rendering(messages, variables)
        except PlanError as error:
            raise bad_request(error.problems[0].removeprefix(self._place)) from error

    def close(self) -> None:
        self._rendering.close()
