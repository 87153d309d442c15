"""Hold the parts of a result that CI systems or a chat show: cases, tables, one line.

`write_line` is the only place that makes the sentence, so it is the same wherever it is shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, field, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any

from serve_eval.frozen import freeze, freeze_places
from serve_eval.report.text import clean


class CiState(StrEnum):
    """The state of a test case, with the name of its JUnit element.

    FAILURE: a regression. ERROR: infrastructure, so that nothing was measured. SKIPPED: the
    endpoint cannot do it, or the test did not decide.
    """

    PASSED = "passed"
    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


@freeze_places
class CiCase:
    """One test: a task, a check, a part of the path or a server.

    `group` is its class in JUnit. `line`, or else `message`, says in one line why it did not pass;
    `details` have more. `properties` are figures by name. `remarks` must be seen even if it passed.
    `expected`: a file names it as known to fail, so no annotation says it again. `in_table`: the
    table says all of it, so the summary does not say it again.
    """

    group: str
    name: str
    _: KW_ONLY
    state: CiState
    message: str = ""
    details: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None
    remarks: Sequence[str] = ()
    line: OneLine | None = None
    expected: bool = False
    in_table: bool = False

    @property
    def said(self) -> str:
        """The text of `line`, or `message` if it has none."""
        return self.message if self.line is None else write_line(self.line)


@freeze_places
class CiSuite:
    """The tests of one run; `host` is the endpoint."""

    name: str
    cases: Sequence[CiCase]
    _: KW_ONLY
    host: str = ""
    seconds: float = 0.0


@freeze
class CiTable:
    """A table of texts; the first column is the verdict."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@freeze
class CiResult:
    """The result of a command.

    `outcome` is its verdict in a word, and `title` names what was tested. `notes` are sentences
    below the table, and `commands` those that come next. `line` says all of it in one line; without
    one, the worst case speaks for all. `notice` comes before everything.
    `grid` has lines of Markdown with another table: of deployments by tasks.
    """

    title: str
    outcome: str
    suites: Sequence[CiSuite]
    table: CiTable
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    notice: str = ""
    line: OneLine | None = None
    grid: Sequence[str] = ()

    @property
    def said(self) -> str:
        """The line that is the same wherever this result is shown."""
        return write_line(replace(self.line or self._choose_line(), notice=self.notice))

    def _choose_line(self) -> OneLine:
        """Return the line of the worst case, with the number of the cases."""
        order = [CiState.FAILURE, CiState.ERROR, CiState.SKIPPED, CiState.PASSED]
        worst = min(self.cases, key=lambda case: order.index(case.state), default=None)
        counts = ", ".join(
            f"{n} {state}" for state in order if (n := [c.state for c in self.cases].count(state))
        )
        bad = worst is not None and worst.state in (CiState.FAILURE, CiState.ERROR)
        cause = f"{worst.name}: {worst.message}" if worst is not None and bad else ""
        return OneLine(self.outcome, self.title, counts=counts, cause=cause, sure=True)

    @property
    def cases(self) -> list[CiCase]:
        """All tests of all suites."""
        return [case for suite in self.suites for case in suite.cases]


def withhold_cases(cases: Sequence[CiCase]) -> list[CiCase]:
    """Return the cases of a rehearsal, which pass and fail nothing."""
    judged = (CiState.PASSED, CiState.FAILURE)
    return [
        replace(case, state=CiState.SKIPPED) if case.state in judged else case for case in cases
    ]


def place_result(result: CiResult, place: str, mask: Callable[[str], str]) -> CiResult:
    """Return a result whose lines end with a place, and without the secrets that `mask` hides."""

    def add_place(line: OneLine | None) -> OneLine | None:
        return None if line is None else replace(line, place=place)

    suites = [
        replace(suite, cases=[replace(case, line=add_place(case.line)) for case in suite.cases])
        for suite in result.suites
    ]
    line = add_place(result.line or result._choose_line())
    masked: CiResult = _mask(replace(result, suites=suites, line=line), mask)
    return masked


def _mask(value: Any, mask: Callable[[str], str]) -> Any:
    """Return a value in which every text is masked."""
    if isinstance(value, StrEnum):
        return value
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask(name): _mask(one, mask) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(one, mask) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{f.name: _mask(getattr(value, f.name), mask) for f in fields(value)}
        )
    return value


MOST = 500
"""Characters of the line at most."""
_LEAST_CAUSE = 24
"""Characters of a cause that are worth showing."""
_LIMITS = {
    "outcome": 40, "about": 240, "figures": 110, "counts": 90, "others": 140, "notice": 80,
}  # fmt: skip
"""Characters of each part at most. The longest counts fit: they are never shortened."""
_MOST_OF_PLACE = 120
_LEAST = {"about": 50, "place": 40, "figures": 40, "notice": 40}
"""The least length of each part that is shortened, in this order, if the line is too long without
a cause."""
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200d\u2060-\u2064\ufeff\ufff9-\ufffb\ud800-\udfff]")
"""Characters without width, and halves of pairs, which no chat system takes."""


@freeze_places
class OneLine:
    """The parts of the line about one test: its outcome, its subject, and the reason.

    `figures` are its value with the reference, `counts` the samples, `cause` is the likeliest one
    (empty: none is known or needed), or if `sure` the reason itself, `others` counts the outcomes
    of all tests if there are more, and `place` is a link or a path. A `notice` comes first.
    """

    outcome: str
    about: str
    _: KW_ONLY
    figures: str = ""
    counts: str = ""
    cause: str = ""
    sure: bool = False
    others: str = ""
    place: str = ""
    notice: str = ""


def write_line(one: OneLine) -> str:
    """Return the line: plain text of at most MOST characters, without control characters.

    If it is too long, the cause is shortened first, and the counts never.
    """
    part = {name: _flatten(getattr(one, name), most) for name, most in _LIMITS.items()}
    part["place"] = _flatten_start(one.place, _MOST_OF_PLACE)
    for name, least in _LEAST.items():
        room = len(part[name]) - max(0, len(_join(part)) - MOST)
        shorten = _flatten_start if name == "place" else _flatten
        part[name] = shorten(part[name], max(least, room))
    prefix = "" if one.sure else "likely: "
    room = MOST - len(_join(part)) - len(f"; {prefix}")
    cause = _flatten(one.cause, room) if room >= _LEAST_CAUSE else ""
    return _join(part, f"{prefix}{cause}" if cause else "")


def _join(part: Mapping[str, str], cause: str = "") -> str:
    """Return the line of its parts."""
    head = f"{part['outcome']} {part['about']}".rstrip()
    head = f"{part['notice']}: {head}" if part["notice"] else head
    figures = "; ".join(filter(None, (part["figures"], part["counts"])))
    before = ": ".join(filter(None, (head, figures)))
    return "; ".join([before, *filter(None, (cause, part["others"], part["place"]))])


def lead(lines: Sequence[OneLine], ranks: Sequence[int], noun: str) -> list[OneLine]:
    """Return the lines, of which the worst one, that with the lowest rank, speaks for all.

    It also counts the outcomes of the others, the worst ones first. `noun` is that of several.
    """
    if len(lines) < 2:
        return list(lines)
    order = sorted(range(len(lines)), key=lambda place: ranks[place])
    counts = Counter(lines[place].outcome for place in order)
    said = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    worst = order[0]
    led = replace(lines[worst], others=f"of {len(lines)} {noun}: {said}")
    return [*lines[:worst], led, *lines[worst + 1 :]]


def describe_drop(
    value: str,
    reference: str,
    drop: str = "",
    interval: Iterable[str] = (),
    *,
    names: tuple[str, str] = ("", ""),
) -> str:
    """Return a value against its reference: "52.1 against 59.3 (drop 7.2 [4.4, 10.0])".

    `drop` has its word; `names` are those of the value and of the reference.
    """
    shown = " ".join(filter(None, (names[0], value)))
    if not reference:
        return shown
    against = " ".join(filter(None, (names[1], reference)))
    ends = ", ".join(interval)
    inner = f"{drop} [{ends}]" if ends else drop
    return f"{shown} against {against}{f' ({inner})' if inner else ''}"


def _flatten(text: str, most: int) -> str:
    """Return a text on one line, shortened at its end."""
    flat = " ".join(_UNSEEN.sub("", clean(text)).split())
    return flat if len(flat) <= most else f"{flat[: most - 3].rstrip()}..."


def _flatten_start(text: str, most: int) -> str:
    """Return a link or a path on one line, shortened at its beginning: its end tells more."""
    flat = _flatten(text, len(text))
    return flat if len(flat) <= most else f"...{flat[3 - most :]}"
