"""Describe a running endpoint, and what a launcher is given to start one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.schema.server_info import ServerInfo

if TYPE_CHECKING:
    _Info = ServerInfo
else:
    _Info = Mapping[
        str, object
    ]  # msgspec reads a mapping, in which names of a launcher of the user's are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running OpenAI-compatible endpoint. `base_url` ends before `/completions`; `info` is told,
    never trusted.

    A mapping is taken for `info` as well. Raises TypeError where a value in it is not of the type
    of its name.
    """

    base_url: str
    model: str | None = None
    info: _Info = field(default_factory=ServerInfo)

    def __post_init__(self) -> None:
        if not isinstance(self.info, ServerInfo):
            object.__setattr__(self, "info", ServerInfo.read(self.info))

    def with_info(self, **told: object) -> Endpoint:
        """Return the endpoint with what else is known of its servers, by the names of
        ServerInfo.
        """
        return replace(self, info=self.info.update(told))


AnswerFileWriter = Callable[[Path, Callable[[str, str], float]], None]
"""Writes the simulator's answer file to a path, given (task name, sample id) -> probability of a
right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What the story hands to every launcher: the model's name, a folder for logs, and, for
    launchers that play a model themselves, a function that writes down the right and a wrong answer
    to every prompt.

    `patience_s` is how long the client waits for a sample at most. `told` gets a line about what
    the launch waits for.
    """

    model: str | None
    log_dir: Path
    write_answer_file: AnswerFileWriter | None = None
    patience_s: float = 3600.0
    notify: Callable[[str], None] = lambda line: None
