"""Collect the errors in a log from which a server may have ended, in order.

A process that writes on has survived its errors: one line is enough for an exception without a
level and for causes that servers often catch, SURVIVED lines for others. Last words, what follows a
sentence with which the engine gives up, and lines of other processes do not count. A server that
was ready has survived everything before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from serve_eval.launchers._logs import levels
from serve_eval.launchers._logs.causes import STILL, Cause, find_known
from serve_eval.launchers._logs.growing_log import Line
from serve_eval.launchers._logs.levels import FINAL, LAST_WORDS, Kind

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
        kind = levels.kind(line.text, in_traceback=process.in_traceback)
        if kind in (Kind.QUIET, Kind.PLAIN) and _READY.search(line.text):
            self.found.clear()
            self._processes.clear()
            self.gave_up = False
        elif (read := _READERS.get(kind)) is not None:
            read(self, line, process)

    def _read_error(self, line: Line, process: ProcessState) -> None:
        """Read a record at level error."""
        process.caught, process.in_error, process.raised = False, True, False
        process.in_traceback, process.in_thread = levels.begins_traceback(line.text), False
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
        if levels.level(text):
            owns_lines = not _SAID.match(text)
            process.caught = owns_lines and levels.may_tell_of_caught(text)
            process.in_traceback = process.caught and levels.begins_traceback(text)
            process.in_error = process.raised = False
        elif not levels.goes_on(text) and not _GOES_ON.search(text):
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
        if levels.begins_record(line.text):
            process.caught = process.in_error = process.raised = False
            process.in_traceback = levels.begins_traceback(line.text)
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
        text = levels.message(line.text)
        known = known or find_known(text, self.engine)
        self.gave_up = self.gave_up or bool(FINAL.search(text))
        if not process.raised and _GOES_ON.search(text) and not self.gave_up:
            return
        exception = levels.raises(text)
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
