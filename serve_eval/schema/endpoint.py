"""Describe a running endpoint, and what a launcher is given to start one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running OpenAI-compatible endpoint. `base_url` ends before `/completions`; `info` is told, never trusted."""

    base_url: str
    model: str | None = None
    info: Mapping[str, object] = field(default_factory=dict)


AnswerFileWriter = Callable[[Path, Callable[[str, str], float]], None]
"""Writes the simulator's answer file to a path, given (task name, sample id) -> probability of a right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What the story hands to every launcher: the model's name, a folder for logs, and, for launchers that play a
    model themselves, a function that writes down the right and a wrong answer to every prompt.

    `patience_s` is how long the client waits for a sample at most. `told` gets a line about what the launch waits for.
    """

    model: str | None
    log_dir: Path
    write_answer_file: AnswerFileWriter | None = None
    patience_s: float = 3600.0
    told: Callable[[str], None] = lambda line: None
