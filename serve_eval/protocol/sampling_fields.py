"""The fields of a request that decide an answer: names, neutral and extreme values by dialect.

A neutral value changes nothing: with it, a server samples from the model's own distribution. An
extreme value changes nearly every answer, so that a probe sees if the field is heeded. Values that
only some servers take are listed by server: vLLM 0.8 refuses a top_k of 0, trtllm-serve has crashed
on -1, and SGLang takes -1 alone. A server that is not listed gets no such value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_eval.schema.endpoint import ServerInfo

LLAMA_CPP = ("llama-server", "llama-cpp-python")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFieldRow:
    """One field of the table.

    `neutral` is the value that changes no answer at any server (None: the value depends on the
    server, and `neutral_of` has it by server). `greedy`: the field changes answers at temperature 0
    too. `extreme` is a value that changes any answer. `names` are the names by server where they
    differ from `name`.
    """

    name: str
    neutral: float | None
    extreme: float
    greedy: bool = False
    neutral_of: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def name_at(self, server: str | None) -> str:
        """Return the name of the field that a server takes."""
        return self.names.get(server or "", self.name)

    def neutral_at(self, server: str | None) -> float | None:
        """Return the value that changes nothing at a server, or None if none is known."""
        return self.neutral_of.get(server or "", self.neutral)

    @property
    def all_names(self) -> frozenset[str]:
        """Every name of the field at any server."""
        return frozenset({self.name, *self.names.values()})


TABLE: tuple[SamplingFieldRow, ...] = (
    SamplingFieldRow(name="temperature", neutral=1.0, extreme=0.0),
    SamplingFieldRow(name="top_p", neutral=1.0, extreme=0.001),
    SamplingFieldRow(
        name="top_k",
        neutral=None,
        extreme=1,
        neutral_of={
            "vLLM": -1,
            "SGLang": -1,
            "trtllm-serve": 0,
            "llama-server": 0,
            "llama-cpp-python": 0,
        },
    ),
    SamplingFieldRow(name="min_p", neutral=0.0, extreme=1.0),
    SamplingFieldRow(
        name="repetition_penalty",
        neutral=1.0,
        extreme=2.0,
        greedy=True,
        names=dict.fromkeys(LLAMA_CPP, "repeat_penalty"),
    ),
    SamplingFieldRow(name="frequency_penalty", neutral=0.0, extreme=2.0, greedy=True),
    SamplingFieldRow(name="presence_penalty", neutral=0.0, extreme=2.0, greedy=True),
)
"""The seven fields, in the order in which they are shown."""
OF_OPTIONS = ("temperature", "top_p")
"""Fields that options of a task set: a run that leaves one out has chosen to."""
ROWS: Mapping[str, SamplingFieldRow] = {row.name: row for row in TABLE}
_LAUNCHED = {"vllm": "vLLM", "trtllm": "trtllm-serve", "llama_cpp": "llama-cpp-python"}
"""Servers by the beginning of the name of our launcher: orchestrators list no model."""


def server_kind(info: ServerInfo) -> str | None:
    """Return the kind of server that answers, from its own words or from its launcher."""
    if info.server is not None:
        return info.server
    launcher = info.launcher or ""
    return next((kind for name, kind in _LAUNCHED.items() if launcher.startswith(name)), None)
