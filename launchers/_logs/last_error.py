"""Find the error in a log that ended its server.

A log has errors that the server survived and, below the one that it did not survive, pages of what
followed from it. So levels, order and what a process wrote later decide:

* A line at level warning or below is no cause, nor is one that says that the server goes on, nor an
  exception that a warning reports or that was being handled when another was raised.
* Errors that the server survived are none; candidates.py says which ones those are.
* Of the errors that are left, the first one with a known cause is the reason. Causes that servers
  often catch and those that do not say why come after the others. If none has a known cause, it is
  the first error that does not only say that something else failed.

A process that writes on has survived its errors: one line is enough for an exception without a
level and for causes that servers often catch, SURVIVED lines for others. Last words, what follows a
sentence with which the engine gives up, and lines of other processes do not count. A server that
was ready has survived everything before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from serve_eval.launchers._logs import lines
from serve_eval.launchers._logs.causes import (
    AT_ONCE,
    STILL,
    Cause,
    find_known,
    guess_engine,
    read_causes,
)
from serve_eval.launchers._logs.lines import FINAL, LAST_WORDS, Kind, Line, clean

LONGEST = 600
"""Maximum characters of a line that is shown."""


class Explanation(NamedTuple):
    """The error that ended a server: its line, and its cause if that is known."""

    line: str
    cause: Cause | None = None


def explain(log: str, engine: str | None = None) -> Explanation | None:
    """Return the error that ended the server with this log; None if it shows none.

    `engine` is its name as in start_failures.yaml (None: guessed from the log).
    """
    engine = engine or guess_engine(log)
    lines = [clean(one.encode()) for one in re.split(r"[\r\n]+", log)]
    reader = CandidateReader(engine)
    for line in lines:
        reader.read(line)
    alive = [one for one in reader.found if not one.is_survived() and not one.follows()]
    best = min(_without_caught(alive), key=Candidate.rank, default=None)
    if best is None or (best.cause is None and best.weight is Weight.GUESSED):
        lately = [one for one in reader.found if _is_recent(one)]
        best = min(lately, key=Candidate.rank, default=best)
    whole = next(
        (one for one in read_causes() if one.whole and one.can_be_of(engine) and one.shows_in(log)),
        None,
    )
    if best is None:
        follows = (one.line for one in reader.found if one.follows() and not one.is_survived())
        first = next(follows, "")
        return Explanation(_cut_long(first), whole) if first or whole is not None else None
    if best.cause is None:
        return Explanation(_cut_long(best.line), whole)
    if (reason := _look_below(best.cause, lines, engine)) is not None:
        return reason
    if not best.cause.vague:
        return Explanation(_cut_long(best.line), best.cause)
    errors = (one.line for one in alive if one.cause is None and one.weight is Weight.ERROR)
    return Explanation(_cut_long(next(errors, best.line)), whole or best.cause)


def cause(log: str, engine: str | None = None) -> tuple[str, str] | None:
    """Return the name of the cause that a log shows, and its remedy."""
    found = explain(log, engine)
    if found is None or found.cause is None:
        return None
    return found.cause.told, found.cause.remedy(engine or guess_engine(log))


def _without_caught(alive: list[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates without exceptions that servers often catch and that others follow."""
    for place, one in enumerate(alive):
        often_caught = one.raised and one.cause is not None and one.cause.ends == STILL
        if not often_caught or not any(_is_error_of(other, one) for other in alive[place + 1 :]):
            yield one


def _is_error_of(later: Candidate, one: Candidate) -> bool:
    """Return True for a later error of the same process without a known cause."""
    return later.cause is None and later.weight is Weight.ERROR and later.stream == one.stream


def _is_recent(one: Candidate) -> bool:
    """Return True for an error that its process may not have survived, if nothing else ended it."""
    if one.caught:  # a warning stands above it, but nothing below it
        return one.later == 0
    known = one.cause is not None and one.cause.ends == AT_ONCE and one.weight is Weight.ERROR
    return known and not one.handled


def _look_below(cause: Cause, lines: Sequence[Line], engine: str | None) -> Explanation | None:
    """Return a line, at any level, that shows the reason of a cause; None if there is none."""
    for reason in (one for one in read_causes() if cause.name in one.below):
        for line in lines if reason.can_be_of(engine) else ():
            if reason.shows_in(line.text):
                return Explanation(_cut_long(line.text), reason)
    return None


def _cut_long(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} ..."


SURVIVED = 3
"""Lines that a process writes after an error at level error before it counts as survived."""
STALE = 30
"""Lines after which a survived error is no reason any more, whatever else the log lacks."""
MOST = 5000
"""Maximum number of candidates; a log that repeats an error has its reason among the first."""
_READY = re.compile(
    r"Application startup complete|Uvicorn running on|server is listening on http|all slots are"
    r" idle|starting the main loop"
)
_GOES_ON = re.compile(
    r"(?i)\bretrying\b|\bretries\b|\btrying again|\bwill (?:re)?try"
    r"|fall(?:s|ing)[ -]?back|\bskipp?(?:ing|ed)\b"
    r"|\bignor(?:ed|ing)\b|\bcontinuing\b|\bnot fatal\b|\bnon-fatal\b|\bcaught\b|\bhandled\b"
    r"|\brecovered\b|\bwill be used\b|\bwill use\b|\bis disabled, using\b"
)
"""Stricter than levels.GOES_ON, whose words are also in advice."""
_FOLLOWS = re.compile(
    r"EngineCore (?:hit an exception|encountered an issue)|EngineDeadError|AsyncLLM output_handler"
    r"|WorkerProc (?:failed to start|initialization failed|hit an exception)|Worker failed with"
    r"|Executor worker|Got fatal signal from|Fatal error detected|Dumping input data|see above"
    r"|(?:Cancelled|ConnectionReset|ConnectionRefused|BrokenPipe|EOF|ChildFailed|CalledProcess"
    r"|AsyncGeneratorExit)Error\b|KeyboardInterrupt|SystemExit|GeneratorExit|died unexpectedly"
    r"|failed to (?:load|create) (?:the )?(?:model|context)\b|unable to load model|main: exiting"
    r"|error loading model: llama_model_loader: failed|Failed to import .* because of the"
    r"|cancelled by|Closing connection|exitcode|exit code|root cause"
    r"|(?:[Ss]ee|[Cc]heck) (?:the )?(?:stack ?trace|logs?|messages?|errors?|output)\b"
    r"|(?i:(?:worker|engine|executor|rank|server|child|sub)\S*(?: process(?:es)?)? .{0,40}"
    r"(?:died|crashed|exited|terminated|dead|returned error|not alive|unhealthy|shut ?down))"
)
"""Errors that only say that something else failed."""
_ENDING = re.compile(
    r"(?i)\bstop(?:ping|ped)?\b|\breleas(?:e|ing|ed)\b|\bdestroy|\bclos(?:e|ing|ed)\b|\bfree(?:d|ing)\b"
    r"|\bjoin(?:ing|ed)\b|\btear|\bdrain|\bdisconnect|\bunload|\bfinaliz|\bkill|\bdied\b|\bflush"
)
"""More words of processes that end, which those that load may write as well."""
_SAID = re.compile(r"(?i)(?:warning|warn|info|debug|note):")
"""Beginnings of lines that are records of their own: the next line belongs to none of them."""
_REFUSED = re.compile(r'"POST \S+ HTTP/\d(?:\.\d)?" 4\d\d')
_LOOKS_BAD = re.compile(
    r"(?i)\berror\b|\bfatal\b|\bassert(?:ion)?\b.*fail|GGML_ASSERT|\bfailed\b|\bcould(?:n't| not)\b"
)


class Weight(IntEnum):
    """The trust in a line, from the least."""

    GUESSED = 0
    """A line of unknown level with words of errors."""
    PLAIN = 1
    """A known cause in a line of unknown level."""
    ERROR = 2
    """A line at level error, or an exception that nothing caught."""


@dataclass(slots=True)
class Candidate:
    """An error that may have ended the server.

    `raised` means that it is an exception without a level, `exception` that it is one at all.
    `later` counts the lines that its process wrote after it. `handled` means that another exception
    was raised while it was handled, `caught` that a warning stands above it.
    """

    line: str
    stream: str
    weight: Weight
    cause: Cause | None
    raised: bool
    exception: bool
    later: int = 0
    handled: bool = False
    caught: bool = False

    def is_survived(self) -> bool:
        """Return True if the process went on after this error, or caught it."""
        if self.handled or self.caught:
            return True
        lasting = self.weight is Weight.ERROR and not self.raised
        if self.cause is not None and self.cause.ends != STILL and self.weight is Weight.ERROR:
            lasting = True
        return self.later >= (SURVIVED if lasting else 1)

    def follows(self) -> bool:
        """Return True for a line that only says that something else failed."""
        return self.cause is None and bool(FINAL.search(self.line) or _FOLLOWS.search(self.line))

    def rank(self) -> int:
        """Return the place of the candidate among others; lower is better."""
        if self.cause is None:
            return 5 if self.weight is Weight.ERROR else 6
        if self.cause.vague:
            return 4
        if self.cause.ends == STILL:
            return 3
        return 1 if self.weight is Weight.ERROR else 2


@dataclass(slots=True)
class ProcessState:
    """The state of one process: the record that its last lines belong to."""

    caught: bool = False
    in_error: bool = False
    raised: bool = False
    in_traceback: bool = False
    in_thread: bool = False
    last: Candidate | None = None


@dataclass(slots=True)
class CandidateReader:
    """Reads lines in order and collects candidates."""

    engine: str | None
    found: list[Candidate] = field(default_factory=list)
    gave_up: bool = False
    _processes: dict[str, ProcessState] = field(default_factory=dict)

    def read(self, line: Line) -> None:
        """Read the next line."""
        process = self._processes.setdefault(line.stream, ProcessState())
        kind = lines.kind(line.text, in_traceback=process.in_traceback)
        if kind in (Kind.QUIET, Kind.PLAIN) and _READY.search(line.text):
            self.found.clear()
            self._processes.clear()
            self.gave_up = False
        elif (read := _READERS.get(kind)) is not None:
            read(self, line, process)

    def _read_error(self, line: Line, process: ProcessState) -> None:
        """Read a record at level error."""
        process.caught, process.in_error, process.raised = False, True, False
        process.in_traceback, process.in_thread = lines.begins_traceback(line.text), False
        if not process.in_traceback:
            self._add(line, process, Weight.ERROR)

    def _read_thread(self, line: Line, process: ProcessState) -> None:
        """Read the report that an exception ended a thread, whose name may be a known cause."""
        process.in_thread, process.caught = line.text.startswith("Exception in thread "), False
        if process.in_thread and find_known(line.text, self.engine) is not None:
            self._add(line, process, Weight.ERROR)

    def _read_header(self, line: Line, process: ProcessState) -> None:
        process.in_traceback = True

    def _read_handling(self, line: Line, process: ProcessState) -> None:
        """Read that another exception was raised while one was being handled."""
        if process.last is not None and process.last.exception:
            process.last.handled = True

    def _read_quiet(self, line: Line, process: ProcessState) -> None:
        """Read a record at level warning or below, or a sign that the process goes on."""
        text = line.text
        if lines.level(text):
            owns_lines = not _SAID.match(text)
            process.caught = owns_lines and lines.may_tell_of_caught(text)
            process.in_traceback = process.caught and lines.begins_traceback(text)
            process.in_error = process.raised = False
        elif not lines.goes_on(text) and not _GOES_ON.search(text):
            self._read_plain(line, process)
            return
        if self.gave_up or LAST_WORDS.search(text) or _ENDING.search(text):
            return
        for one in self.found:
            one.later += one.stream == line.stream
        self.found = [one for one in self.found if one.later <= STALE]

    def _read_answer(self, line: Line, process: ProcessState) -> None:
        """Read a line about a request: errors that such a refusal answers ended nothing."""
        if _REFUSED.search(line.text) and not self.gave_up:
            self.found = [one for one in self.found if one.cause is not None]

    def _read_raised(self, line: Line, process: ProcessState) -> None:
        """Read the last line of a traceback, or the error of a command line."""
        process.in_traceback = False
        known = find_known(line.text, self.engine)
        if process.in_thread and known is None:
            process.in_thread = False
            return
        process.raised, process.in_thread = not process.in_error, False
        self._add(line, process, Weight.ERROR, known)

    def _read_plain(self, line: Line, process: ProcessState) -> None:
        """Read a line without a level: a part of the record above it, or of its own."""
        if lines.begins_record(line.text):
            process.caught = process.in_error = process.raised = False
            process.in_traceback = lines.begins_traceback(line.text)
        if (
            process.in_traceback
            or (process.caught and not process.raised)
            or _GOES_ON.search(line.text)
        ):
            return
        known = find_known(line.text, self.engine)
        if FINAL.search(line.text):
            self.gave_up = True
        if known is not None:
            belongs = process.in_error or process.raised
            self._add(line, process, Weight.ERROR if belongs else Weight.PLAIN, known)
        elif not process.in_error and not process.raised and _LOOKS_BAD.search(line.text):
            self._add(line, process, Weight.GUESSED)

    def _add(
        self, line: Line, process: ProcessState, weight: Weight, known: Cause | None = None
    ) -> None:
        text = lines.message(line.text)
        known = known or find_known(text, self.engine)
        self.gave_up = self.gave_up or bool(FINAL.search(text))
        if not process.raised and _GOES_ON.search(text) and not self.gave_up:
            return
        exception = lines.raises(text)
        process.last = Candidate(line.text, line.stream, weight, known, process.raised, exception)
        process.last.caught = process.caught
        if len(self.found) < MOST:
            self.found.append(process.last)


_READERS: Mapping[Kind, Callable[[CandidateReader, Line, ProcessState], None]] = {
    Kind.NOISE: CandidateReader._read_answer,
    Kind.QUIET: CandidateReader._read_quiet,
    Kind.ERROR: CandidateReader._read_error,
    Kind.THREAD: CandidateReader._read_thread,
    Kind.HEADER: CandidateReader._read_header,
    Kind.HANDLING: CandidateReader._read_handling,
    Kind.RAISED: CandidateReader._read_raised,
    Kind.COMMAND: CandidateReader._read_raised,
    Kind.PLAIN: CandidateReader._read_plain,
}
