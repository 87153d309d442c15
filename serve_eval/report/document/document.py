"""Define the document of a result, which every story makes once and every face shows.

All texts are plain: each face escapes them in its own way and makes control characters harmless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, replace
from enum import IntEnum
from pathlib import Path

from serve_eval.frozen import freeze_places
from serve_eval.report.ci_result import CiCase, CiSuite, OneLine, lead
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Section, State
from serve_eval.report.pictures.picture import Ruler
from serve_eval.schema import REHEARSED, ResultHeader

OUTCOMES = (
    "FAIL", "ALARM", "ANOTHER MODEL, PRECISION OR CACHE", "FAULT OF SINGLE REQUESTS",
    "OTHER SAMPLING DEFAULTS", "PROBLEM", "KILLED", "FAILED", "NOT SCORED", "UNREADABLE", "EMPTY",
    "ONLY REASONING", "REFUSED", "WRONG", "ENDED", "ERROR", "INTERRUPTED", "PARTLY RIGHT",
    "INCONCLUSIVE", "UNDECIDED", "NOT ASKED", "UNSUPPORTED", "CHANGED", "NO REFERENCE", "SHARD",
    "INTEGRATION TEST", "BASELINE", "FOUND", "PLAN", "SAMPLES", "ABSENT", "NO SERVERS",
    "PASS by identity", "PASS",
    "NO ALARM", "OTHER NUMERICS", "IDENTICAL", "UNCHANGED", "REGISTERED", "RIGHT", "READY", "OK",
    "WRITTEN", "STOPPED",
)  # fmt: skip
"""Outcomes, the worst first. One that stands in no story's list here comes before NO REFERENCE."""
_UNKNOWN = OUTCOMES.index("NO REFERENCE")
_BAD = OUTCOMES[: OUTCOMES.index("ERROR") + 1]
_SOUND = OUTCOMES[OUTCOMES.index("PASS by identity") :]
_QUIET = ("NO REFERENCE", "BASELINE", "FOUND", "PLAN", "SAMPLES", "ABSENT", "NO SERVERS")
"""Outcomes without a colour: they must not outshine a FAIL."""


class Depth(IntEnum):
    """The level of detail: the first screen, `-v` or the page. Each includes those before it."""

    FIRST = 1
    MORE = 2
    PAGE = 3


@freeze_places
class Statement:
    """A fact in words below its label. `href` leads to a place or file next to the page.

    `keep`: it stands on the first screen even if its task passed among several, and in the summary
    of CI however deep it is. `last`: the first screen shows this number of its last lines, in place
    of the first ones. `mark` is the part that a terminal highlights.
    """

    label: str
    text: str
    _: KW_ONLY
    keep: bool = False
    depth: Depth = Depth.FIRST
    state: State = "none"
    href: str = ""
    last: int = 0
    mark: tuple[int, int] | None = None


@freeze_places
class Block:
    """A section of a page, and how deep a reader must look for it.

    A terminal shows tables, facts and lines of text, and leaves pictures to the page. The first
    table, of the first screen if that has one, is also that of summary.md.
    """

    section: Section
    _: KW_ONLY
    depth: Depth = Depth.MORE


@freeze_places
class Conclusion:
    """The outcome of a task, of a server, or of a whole check, with its figures and its cause.

    `figures` are its value and what that is compared with, and `drawn` the same for a first line
    with the marks of the `ruler`; "" if it says no more. `counts` say how much was asked and how
    much has no answer. `cause` says why it did not pass: the reason itself if `sure`, else the
    likeliest one.
    """

    name: str
    outcome: str
    _: KW_ONLY
    figures: str = ""
    drawn: str = ""
    ruler: Ruler | None = None
    counts: str = ""
    cause: str = ""
    sure: bool = True
    statements: Sequence[Statement] = ()


@freeze_places
class Document:
    """Everything that a command shows of its result, whatever the face.

    `story` is the name of the command, and `command` the line that names what it tested. `header`
    is the result itself, or what its file begins with; `model` names the model if that does not.
    `noun` is that of several conclusions, and `overview` their table, if it says more than
    outcome, name, figures and counts. `commands` come next, the likeliest first. `suites` are the
    cases of CI. `make_page_blocks` makes what only the page shows, at the very end, since it may
    read samples.
    `result` is the file with all figures, and `notice` comes before everything. `counted_as` says
    how many conclusions there are, if more than their number is to be said. `summary_lines` are
    Markdown for the summary of CI alone. With `folds_overview`, the page begins with a table of
    its own, and has the overview folded. `names_endpoint`: the line says which endpoint was
    tested, unless `line` is given, the line about all.
    """

    story: str
    command: str
    header: ResultHeader
    _: KW_ONLY
    conclusions: Sequence[Conclusion]
    outcome: str = ""
    noun: str = "tasks"
    overview: DataTable | None = None
    model: str = ""
    endpoint: str = ""
    notice: str = ""
    statements: Sequence[Statement] = ()
    blocks: Sequence[Block] = ()
    warnings: Sequence[str] = ()
    commands: Sequence[str] = ()
    suites: Sequence[CiSuite] = ()
    result: Path | None = None
    make_page_blocks: Callable[[], Iterable[Section]] = tuple
    counted_as: str = ""
    summary_lines: Sequence[str] = ()
    folds_overview: bool = False
    names_endpoint: bool = True
    line: OneLine | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return self.header.exit_code

    @property
    def subject(self) -> str:
        """The model that was judged, or "" if it is not known."""
        return self.model or self.header.model or ""

    @property
    def banner(self) -> str:
        """The line before everything: that of a rehearsal, or the notice."""
        return REHEARSED if self.header.rehearsal else self.notice

    @property
    def verdict(self) -> str:
        """The outcome of all: the one that was given, or that of the worst conclusion."""
        return self.outcome or (self.worst.outcome if self.conclusions else "ERROR")

    @property
    def ordered(self) -> list[Conclusion]:
        """The conclusions, the worst first."""
        return sorted(self.conclusions, key=lambda one: rank_outcome(one.outcome))

    @property
    def worst(self) -> Conclusion:
        """The worst conclusion."""
        return self.ordered[0]

    @property
    def only(self) -> Conclusion | None:
        """The conclusion, if there is just one that stands for the whole."""
        return self.conclusions[0] if len(self.conclusions) == 1 and not self.counted_as else None

    @property
    def cases(self) -> list[CiCase]:
        """All cases of CI."""
        return [case for suite in self.suites for case in suite.cases]

    @property
    def counted(self) -> str:
        """The number of conclusions, and how many have which outcome, the worst first."""
        if self.counted_as:
            return self.counted_as
        counts = Counter(one.outcome for one in self.ordered)
        told = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
        return f"{len(self.conclusions)} {self.noun}: {told}"

    def with_suites(self, suites: Sequence[CiSuite]) -> Document:
        """Return the same document with its cases, whose lines it made."""
        return replace(self, suites=suites)

    def make_line(self) -> OneLine:
        """Return the line about all: the worst conclusion, with the counts of the others."""
        if self.line is not None:
            return self.line
        if not self.conclusions:
            return OneLine(self.verdict, self.command, sure=True)
        led = self.make_lines()[self.conclusions.index(self.worst)]
        return replace(led, outcome=self.verdict)

    def make_lines(self) -> list[OneLine]:
        """Return the lines about all conclusions, of which the worst one counts the others."""
        lines = [self.make_line_of(one) for one in self.conclusions]
        return lead(lines, [rank_outcome(one.outcome) for one in self.conclusions], self.noun)

    def make_line_of(self, one: Conclusion) -> OneLine:
        """Return the line about a conclusion."""
        return OneLine(
            one.outcome,
            " ".join(filter(None, (one.name, self.subject, self.endpoint * self.names_endpoint))),
            figures=one.figures,
            counts=one.counts,
            cause=one.cause,
            sure=one.sure,
        )


def make_header(
    exit_code: int, *, started_at: str = "", model: str | None = None, rehearsal: bool = False
) -> ResultHeader:
    """Return the header of a document about results that other commands made."""
    return ResultHeader(
        started_at=started_at, wall_s=0.0, model=model, exit_code=exit_code, rehearsal=rehearsal
    )


def rank_outcome(outcome: str) -> int:
    """Return the place of an outcome among all, 0 for the worst."""
    return OUTCOMES.index(outcome) if outcome in OUTCOMES else _UNKNOWN


def name_state(outcome: str) -> State:
    """Return the colour of an outcome."""
    if outcome in _QUIET:
        return "none"
    return "fail" if outcome in _BAD else "pass" if outcome in _SOUND else "warn"


WARNINGS = 2
"""Warnings of the first screen at most."""
ASKED = "asked"
"""The label of what was asked."""
_KEPT = ("warning", "error")
"""Labels of what must be seen of a task that passed among several."""


def list_statements(document: Document) -> list[Statement]:
    """Return all statements: causes, findings and counts by conclusion, the others, warnings.

    Of several conclusions those that passed need no words on the first screen, and none needs its
    counts: the table has them.
    """
    if (one := document.only) is not None:
        found = list(list_own(one))
    else:
        found = list(_join_alike(document.ordered))
    return [*found, *document.statements, *list_warnings(document)]


def _join_alike(conclusions: Sequence[Conclusion]) -> Iterator[Statement]:
    """Yield the statements of several conclusions behind their names, equal ones once."""
    named: dict[tuple[str, str], list[str]] = {}
    for one in conclusions:
        for row in list_own(one):
            named.setdefault((row.label, row.text), []).append(one.name)
    for one in conclusions:
        for row in list_own(one):
            names = named.pop((row.label, row.text), [])
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                yield _place(row, one, f"{names[0]}{more}")


def _place(row: Statement, one: Conclusion, names: str) -> Statement:
    """Return a statement of a conclusion as it stands among those of all."""
    passed = name_state(one.outcome) == "pass" and row.label not in _KEPT and not row.keep
    silent = passed or row.label == ASKED
    depth = max(row.depth, Depth.MORE) if silent else row.depth
    return replace(row, text=f"{names}: {row.text}", depth=depth)


def list_own(one: Conclusion) -> Iterator[Statement]:
    """Yield the statements of a conclusion, with its cause first and its counts last.

    Statements that have more words for one of them stand in its place.
    """
    labels = {row.label for row in one.statements}
    explained = {"why", "likely", *(("error",) if one.outcome == "ERROR" else ())}
    if one.cause and labels.isdisjoint(explained):
        yield Statement("why" if one.sure else "likely", one.cause)
    yield from one.statements
    if one.counts and ASKED not in labels:
        yield Statement(ASKED, one.counts)


def list_warnings(document: Document) -> Iterator[Statement]:
    """Yield the warnings, of which the first few stand on the first screen.

    One that goes on with what the notice says comes last.
    """
    begun = document.notice.partition(":")[0]
    repeated = [one for one in document.warnings if begun and one.startswith(begun)]
    new = [one for one in document.warnings if one not in repeated]
    for i, line in enumerate([*new, *repeated]):
        depth = Depth.FIRST if i < min(WARNINGS, len(new)) else Depth.MORE
        yield Statement("warning", line, depth=depth, state="warn")


def tabulate(document: Document) -> DataTable:
    """Return the table of several conclusions, the worst first, without an empty column."""
    named = ("outcome", document.noun.removesuffix("s"), "value", "asked")
    rows = [
        [
            DataCell(one.outcome, state=name_state(one.outcome)),
            DataCell(one.name),
            DataCell(one.figures),
            DataCell(one.counts),
        ]
        for one in document.ordered
    ]
    kept = [i for i in range(len(named)) if any(row[i].text for row in rows)]
    return DataTable(
        document.noun.capitalize(),
        columns=[DataColumn(named[i]) for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
    )


def join_statements(rows: Iterable[Statement]) -> list[str]:
    """Return statements as lines of text."""
    return [": ".join(filter(None, (row.label, row.text))) for row in rows]
