"""Known causes of a server's end: the rows of start_failures.yaml, and the one that a line shows.

The table is read when the first line is looked up, since most commands read no log of a server.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import LaunchError
from serve_eval.launchers._logs.words import WordIndex

FILE = Path(__file__).with_name("start_failures.yaml")
UNKNOWN_OPTION = "it does not know an option that it was given"
AT_ONCE, STILL, ENDS_ITSELF = "at once", "still", "itself"
ANY = "any"
TRTLLM, VLLM, LLAMA_CPP, SGLANG = "trtllm", "vllm", "llama_cpp", "sglang"
_MARKS = {
    TRTLLM: re.compile(r"\[TRT-LLM|\[TensorRT-LLM|tensorrt_llm|trtllm-serve|LlmArgs"),
    VLLM: re.compile(r"\bvllm\b|EngineCore|VllmWorker|VllmConfig|max_model_len"),
    SGLANG: re.compile(
        r"\bsglang\b|sgl_kernel|server_args=|Scheduler hit an exception|scheduler is dead"
        r"|Received sigquit from a child|fired up and ready to roll|launch_server\.py"
        r"|bootstrap_room"
    ),
    LLAMA_CPP: re.compile(r"\bllama_|\bggml_|\bgguf|llama-server|llama\.cpp|^srv  ", re.MULTILINE),
}
"""Words of logs by which an engine is recognised."""


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A row: patterns of log lines, the name of what they show, and the remedy.

    start_failures.yaml describes the fields. `told` is its `cause`.
    """

    name: str
    told: str = msgspec.field(name="cause")
    patterns: tuple[str, ...]
    do: str | Mapping[str, str]
    engines: tuple[str, ...] = ()
    ends: Literal["at once", "still", "itself"] = "at once"
    vague: bool = False
    whole: bool = False
    kills: bool = False
    refuses: bool = False
    below: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    @cached_property
    def compiled(self) -> tuple[re.Pattern[str], ...]:
        """The patterns, for texts of several lines too."""
        return tuple(re.compile(one, re.MULTILINE) for one in self.patterns)

    def shows_in(self, text: str) -> bool:
        """Return True if a text has a line of this cause."""
        return any(one.search(text) for one in self.compiled)

    def can_be_of(self, engine: str | None) -> bool:
        """Return True if the engine prints such lines; None is an engine that is not known."""
        return engine is None or not self.engines or engine in self.engines

    def remedy(self, engine: str | None) -> str:
        """Return what to do, in the options of the engine."""
        if isinstance(self.do, str):
            return self.do
        return self.do.get(engine or ANY, self.do[ANY])


@cache
def read_causes() -> tuple[Cause, ...]:
    """Return the rows of the table in order. The order decides between rows that fit one line."""
    from serve_eval.yaml_parsing import parse_text

    rows = parse_text(FILE.read_text(encoding="utf-8"), str(FILE), LaunchError, text_keys=False)[0]
    return msgspec.convert(rows, tuple[Cause, ...])


def find_known(text: str, engine: str | None = None) -> Cause | None:
    """Return the first known cause that a line, or any line of a text, shows.

    Levels and order are not heeded; last_error.explain() does so.
    """
    table, index = _search_table()
    return next(
        (
            row
            for row, pattern in (table[number] for number in index.candidates(text))
            if row.can_be_of(engine) and pattern.search(text)
        ),
        None,
    )


@cache
def _search_table() -> tuple[list[tuple[Cause, re.Pattern[str]]], WordIndex]:
    """Return the patterns with their rows, and the index of those that can match a text."""
    table = [(row, pattern) for row in read_causes() for pattern in row.compiled]
    return table, WordIndex([pattern.pattern for _, pattern in table])


def guess_engine(log: str) -> str | None:
    """Return the engine that wrote most lines of a log; None if nothing shows it."""
    found = Counter({name: len(mark.findall(log)) for name, mark in _MARKS.items()})
    [(name, count)] = found.most_common(1)
    return name if count else None
