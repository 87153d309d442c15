"""The preset of a plan: what its sampling was taken from, and what came of its effort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

AUTO = "auto"
"""Name of the preset that the id of the served model decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset:
    """The row of the table of presets that the options of a plan's tasks were completed from.

    `name` is the row's ("": only an effort was asked for). `effort` is the effort that was asked
    for ("": none). `table` is the version of the table, and empty until the model is known, since
    nothing was taken from it yet. `source` is the address of the model's card, which was read on
    the day `read`. `values` are the options that the row offers; a task's own options override
    them.
    """

    name: str = ""
    effort: str = ""
    table: str = ""
    source: str = ""
    read: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def taken(self) -> bool:
        """True if the tasks have the values already."""
        return bool(self.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortSeen:
    """The answers of a task that was asked with an effort.

    `thinking` of the `answers` have thoughts, or tokens that the server counts as thoughts.
    `median_tokens` is the median of their generated tokens, thoughts included (None: the server
    counts none). `refused` requests failed since the server refused a field of the effort, and
    `refusal` is its first message.
    """

    task: str
    answers: int
    thinking: int
    median_tokens: float | None = None
    refused: int = 0
    refusal: str = ""
