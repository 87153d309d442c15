"""Types that describe a running endpoint, and what a launcher receives to start one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.schema.server_info import ServerInfo

if TYPE_CHECKING:
    _Info = ServerInfo
else:
    # msgspec reads a mapping, which keeps the names of a user's launcher.
    _Info = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running OpenAI-compatible endpoint.

    `base_url` ends before `/completions`. `info` is what is reported, and is never relied on. A
    mapping is accepted for `info` as well. Raises TypeError if one of its values does not have the
    type of its name.
    """

    base_url: str
    model: str | None = None
    info: _Info = field(default_factory=ServerInfo)

    def __post_init__(self) -> None:
        if not isinstance(self.info, ServerInfo):
            object.__setattr__(self, "info", ServerInfo.read(self.info))

    def with_info(self, **told: object) -> Endpoint:
        """Return the endpoint with more information on its servers, by the names of ServerInfo."""
        return replace(self, info=self.info.update(told))


AnswerFileWriter = Callable[[Path, Callable[[str, str], float]], None]
"""Function that writes the simulator's answer file to a path, given (task name, sample id) ->
probability of a right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """The arguments of every launcher: the model's name, a log folder, and `write_answer_file`.

    That function is for launchers that simulate a model: it writes the right and a wrong answer to
    every prompt. `patience_s` is the longest time that the client waits for a sample. `notify`
    receives a line about what the launch waits for. `plan_file` is the plan in the form of its
    file, for `files` of launchers that show how to run serve-eval elsewhere; None if not known.
    """

    model: str | None
    log_dir: Path
    write_answer_file: AnswerFileWriter | None = None
    patience_s: float = 3600.0
    notify: Callable[[str], None] = lambda line: None
    plan_file: Mapping[str, object] | None = None
