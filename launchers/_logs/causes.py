"""Find the known causes of a server's end that lines of its log show.

The table is read when the first line is looked up, since most commands read no log of a server.

A table of hundreds of patterns takes a millisecond for each line of a log; most lines have none of
the words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import LaunchError

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


LEAST = 4
"""Minimum characters of a word that is looked for; parts of this length are compared."""
_FLAGS = re.compile(r"\(\?[aimsx]+\)")
_OPENING = re.compile(r"\?(?:[aimsx]*:|P<\w+>)")
_COUNT = re.compile(r"(?:[?*+]|\{[\d,]*\})\??")
_CLASSES = "wWdDsSbBAZ"


class WordIndex:
    """Finds the patterns of a table that can match a text."""

    def __init__(self, patterns: Sequence[str]) -> None:
        words = [find_required_words(one) for one in patterns]
        common = Counter(part for each in words for word in each for part in _parts(word))
        self._always = {number for number, each in enumerate(words) if not each}
        self._numbers: dict[str, set[int]] = {}
        for number, each in enumerate(words):
            for word in each:
                rarest = min(_parts(word), key=common.__getitem__)
                self._numbers.setdefault(rarest, set()).add(number)

    def candidates(self, text: str) -> list[int]:
        """Return the numbers of the patterns that can match, in their order."""
        found = set(self._always)
        for part in self._numbers.keys() & set(_parts(text.lower())):
            found |= self._numbers[part]
        return sorted(found)


def _parts(text: str) -> list[str]:
    return [text[place : place + LEAST] for place in range(len(text) - LEAST + 1)]


def find_required_words(pattern: str) -> tuple[str, ...]:
    """Return words in lower case of which a text must have one, whatever its case.

    Empty if a branch of the pattern has no word of LEAST characters, so that any text can match.
    """
    found: list[str] = []
    for branch in _split_branches(_FLAGS.sub("", pattern, count=1)):
        best = max(_list_choices(branch), key=lambda one: (_shortest(one), -len(one)))
        if _shortest(best) < LEAST:
            return ()
        found += best
    return tuple(found)


def _shortest(words: tuple[str, ...]) -> int:
    return min((len(one) for one in words), default=0)


def _list_choices(branch: str) -> Iterator[tuple[str, ...]]:
    """Yield sets of words; each match of a branch has one word of every set."""
    run = ""
    for item, count in _split_items(branch):
        literal = _literal(item) if count in ("", "+") else ""
        run += literal
        if not literal or count:
            yield (run.lower(),)
            run = ""
        if item[0] == "(" and count in ("", "+") and (inner := _inner(item)) is not None:
            yield find_required_words(inner)
    yield (run.lower(),)


def _split_items(branch: str) -> Iterator[tuple[str, str]]:
    """Yield the characters, classes and groups of a branch with their quantifiers."""
    place = 0
    while place < len(branch):
        end = _end_of_item(branch, place)
        count = _COUNT.match(branch, end)
        yield branch[place:end], "" if count is None else count[0]
        place = end if count is None else count.end()


def _literal(item: str) -> str:
    """Return the character that an item of a pattern always matches; empty if there is none."""
    if item[0] == "\\":
        return "" if item[1] in _CLASSES or item[1].isdigit() else item[1]
    return "" if item[0] in "[.^$(" else item


def _inner(group: str) -> str | None:
    """Return the pattern in a group; None for one that looks ahead or back."""
    opening = _OPENING.match(group, 1)
    if opening is None and group[1] == "?":
        return None
    return group[opening.end() if opening else 1 : -1]


def _split_branches(pattern: str) -> list[str]:
    """Return the alternatives of a pattern, without those in groups."""
    found, start, place = [], 0, 0
    while place < len(pattern):
        if pattern[place] == "|":
            found.append(pattern[start:place])
            start = place + 1
        place = _end_of_item(pattern, place)
    return [*found, pattern[start:]]


def _end_of_item(pattern: str, place: int) -> int:
    """Return where the character, class or group ends that begins at a place."""
    first = pattern[place]
    if first == "\\":
        return place + 2
    if first == "[":
        end = place + 2 if pattern[place + 1] != "^" else place + 3
        while pattern[end - 1] == "\\" or pattern[end] != "]":
            end += 1
        return end + 1
    if first != "(":
        return place + 1
    place += 1
    while pattern[place] != ")":
        place = _end_of_item(pattern, place)
    return place + 1


SAME = 3
"""Number of equal refusals in a row that are final."""
_FORM = re.compile(
    r"(?i)extra_forbidden|extra inputs are not permitted|field required|input should be|validation"
    r" error|unknown field"
    r"|unrecognized request|not supported|unsupported|bad request.*(field|parameter)|method not"
    r" allowed"
)
_LATER = (408, 409, 425, 429, 503)
"""Statuses that ask for a retry."""


class Refusals:
    """Counts equal refusals in a row."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._count = 0

    def permanent(self, status: int, text: str) -> bool:
        """Record a response; return True after three equal permanent refusals in a row."""
        found, kind = find_known(text), None
        if found is not None and found.refuses and status >= 400 and status not in _LATER:
            kind = found.told
        elif about_its_form(status, text):
            kind = f"{status} {text}"
        self._count = (
            self._count + 1 if kind is not None and kind == self._last else int(kind is not None)
        )
        self._last = kind
        return self._count >= SAME


def about_its_form(status: int, text: str) -> bool:
    """Return True if the status shows that the request itself can never be served."""
    return (
        400 <= status < 500
        and status not in _LATER
        and (status in (405, 422) or bool(_FORM.search(text)))
    )
