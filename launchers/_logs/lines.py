"""Read the lines of a log that grows, and classify them."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import NamedTuple

CHUNK = 1 << 16
MOST_AT_ONCE = 1 << 20
"""Maximum bytes per read. Of a longer piece, only the last bytes are read."""
LONGEST_LINE = 1 << 13
"""Maximum bytes of a line that are kept; the rest is dropped."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LABEL = re.compile(
    r"(?:(?P<task>\d{1,6}):(?: |$)|\[(?P<job>\d+,\d+)\]<std(?:out|err)>: ?|\[rank(?P<rank>\d+)\]: )"
)
"""Prefix of lines from srun --label, from mpirun --tag-output, and of PyTorch's tracebacks."""
_PROCESS = re.compile(r"(?:\((?P<name>[\w.-]+,?(?: [\w.]+=[\w.]+,?)*? pid=\d+[^()]{0,40})\) ?)+")
"""Prefix of lines of vLLM's processes and of Ray's."""
_RANK = re.compile(r"\[RANK (\d{1,6})\]", re.IGNORECASE)


class Line(NamedTuple):
    """A line without colours and labels.

    `stream` is the rank that wrote it, if the line names one.
    """

    stream: str
    text: str


class LogLines:
    """Reads what was added to a log; `grew` is True if there was something.

    A log that was truncated is read from its beginning.
    """

    def __init__(self, path: Path, start: int = 0) -> None:
        self.path, self._offset = path, start
        self._partial, self._dropping, self.grew = b"", False, False

    def read(self) -> list[Line]:
        """Return the complete lines since the last call; a carriage return also ends a line."""
        found: list[Line] = []
        self.grew = False
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset, self._partial, self._dropping = 0, b"", False
                if size - self._offset > MOST_AT_ONCE:
                    self._offset, self._partial, self._dropping = size - MOST_AT_ONCE, b"", True
                file.seek(self._offset)
                while self._offset < size and (data := file.read(min(CHUNK, size - self._offset))):
                    self._offset, self.grew = self._offset + len(data), True
                    found += self._split(data)
        except OSError:
            return found
        return found

    def rest(self) -> list[Line]:
        """Return the incomplete last line, for a log that stands still, and mark it as read."""
        partial, self._partial = self._partial, b""
        if not partial or self._dropping:
            return []
        self._dropping = True
        return [clean(partial)]

    def _split(self, data: bytes) -> list[Line]:
        *whole, last = re.split(rb"[\r\n]", data)
        found = []
        for piece in whole:
            line, self._partial = (self._partial + piece)[:LONGEST_LINE], b""
            if not self._dropping:
                found.append(clean(line))
            self._dropping = False
        if not self._dropping:
            self._partial = (self._partial + last)[:LONGEST_LINE]
        return found


def clean(raw: bytes) -> Line:
    """Return a line as text, without colours and without the label of its rank."""
    text, stream = _ANSI.sub("", raw.decode(errors="replace")).replace("\0", ""), ""
    if label := _LABEL.match(text):
        stream, text = label["task"] or label["job"] or label["rank"], text[label.end() :]
    elif process := _PROCESS.match(text):
        stream, text = process["name"], text[process.end() :]
    elif rank := _RANK.search(text, 0, 160):
        stream = rank[1]
    return Line(stream, text.rstrip())


HEAD = 160
"""Characters at the start of a line that may contain its level."""

Kind = Enum("Kind", "NOISE QUIET ERROR HEADER HANDLING CHAINED THREAD RAISED COMMAND FRAME PLAIN")
"""NOISE: nothing, or a line that our own requests cause. QUIET: at level warning or below, or it
says that the server goes on. HEADER, HANDLING, CHAINED, THREAD: sentences of a traceback. RAISED:
its last line. COMMAND: the error of a command line. FRAME: a line within a traceback, in a record
of its own."""

_LEVEL = re.compile(
    r"""\[(?P<letter>[A-Z])\](?=[\s\[]|$)
    | (?<![\w=.-])(?P<word>TRACE|DEBUG|VERBOSE|INFO|NOTICE|DIAG
        |WARN|WARNING|ERROR|CRITICAL|FATAL)(?![\w=-])
    | (?:^|\[)(?P<glog>[IWEF])\d{3,4}\s
    | \[(?P<c10d>[WEF])\s\S+\.cpp
    | ^\d+\.\d\d\.\d{3}\.\d{3}\s(?P<ggml>[DIWE])\s
    | ^(?P<said>(?i:warning|warn|info|debug))\b""",
    re.VERBOSE,
)
PYTHON_WARNING = re.compile(r"(?:^|\s)\w*Warning:")
GOES_ON = re.compile(
    r"(?i)\bretry|\bretries|\btry(?:ing)? (?:again|another|the next)|fall(?:s|ing)?["
    r" -]?back|\bfallback|\bskip|\bignor"
    r"|\bcontinu|\binstead\b|\boptional\b|\bnot fatal|\bnon-fatal|\bwill use\b"
)
FINAL = re.compile(
    r"Executor worker (?:initialization error|returned error|died during initialization)"
    r"|Failed to initialize executor on rank|Executor creation failed"
    r"|Failed to parse the arguments for the LLM constructor|^Rank\d+ Task exit code:"
    r" [1-9]|MPI_ERRORS_ARE_FATAL"
    r"|Engine core initialization failed|EngineCore failed to start"
    r"|EngineCore encountered a fatal error|Engine process failed to start"
    r"|main: exiting due to model loading error"
)
"""Sentences with which TensorRT-LLM, the wrapper that starts its ranks, MPI, vLLM or llama-server
gives up."""
LAST_WORDS = re.compile(
    r"(?i)destroy_process_group|resource_tracker|leaked|shut(?:ting)?"
    r" ?down|\bexit(?:ing|ed)?\b|abort|terminat|clean(?:ing|ed)? ?up|finished server process"
)
"""Words that a process may write at any level while it ends."""
_GOES_ON_WITHOUT = re.compile(r"ggml_\w+_init: failed to initialize")
"""llama-server computes on the CPU where it finds no GPU."""
_RECORD = re.compile(
    r"(?:ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:,\d+)? \[?[\w./<>-]+:\d+\] ?"
)
"""The beginning that vLLM gives to every line of a record."""
_STAMP = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]]{0,40}\] ")
"""The beginning of a record of SGLang, most of which name no level."""
_PROGRESS = re.compile(r"\b\d{1,3}\s?%")
_FAILED = re.compile(r"(?i)fail|error|exception|unable|could not|cannot|not available")
_ACCESS = re.compile(r'"(?:GET|POST|HEAD) \S+ HTTP/\d(?:\.\d)?" \d{3}')
_HEADER = "Traceback (most recent call last):"
_HANDLING = "During handling of the above exception, another exception occurred:"
_CHAINED = "The above exception was the direct cause of the following exception:"
_SENTENCES = {_HEADER: Kind.HEADER, _HANDLING: Kind.HANDLING, _CHAINED: Kind.CHAINED}
_THREAD = re.compile(
    r"Exception in thread |Exception ignored in|Task exception was never retrieved|future: <Task"
)
_RAISED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?::\s|:?$)"
    r"|\s*what\(\): |terminate called after throwing an instance of"
)
_COMMAND = re.compile(r"(?:[\w.-]+(?: [\w.-]+)?: )?[Ee]rror: ")
_RAISED_LAST = re.compile(r"[A-Za-z_][\w.]*(?::\s|$)")
_WITHIN = re.compile(r"[\s~^|+]")


def kind(text: str, *, in_traceback: bool = False) -> Kind:
    """Return the kind of a line; within a traceback, any name at its beginning is an exception."""
    if not text.strip() or _ACCESS.search(text):
        return Kind.NOISE
    if (record := _RECORD.match(text)) is not None:
        return _kind_in_record(text[record.end() :])
    if (sentence := _SENTENCES.get(text)) is not None:
        return sentence
    if _THREAD.match(text):
        return Kind.THREAD
    if in_traceback and _WITHIN.match(text):
        return Kind.PLAIN
    if _RAISED.match(text):
        return Kind.RAISED
    if _COMMAND.match(text):
        return Kind.COMMAND
    if name := level(text):
        return Kind.ERROR if name in "ECF" else Kind.QUIET
    if in_traceback and _RAISED_LAST.match(text):
        return Kind.RAISED
    quiet = GOES_ON.search(text) or _PROGRESS.search(text) or _GOES_ON_WITHOUT.match(text)
    return Kind.QUIET if quiet else Kind.PLAIN


def _kind_in_record(text: str) -> Kind:
    """Return the kind of a line of a record at level error, of which `text` is the message."""
    if text in (_HANDLING, _CHAINED):
        return _SENTENCES[text]
    return Kind.FRAME if _is_frame(text) else Kind.ERROR


def _is_frame(text: str) -> bool:
    """Return True for a message that is part of a traceback or empty."""
    return text.startswith(("  File ", "    ")) or text.strip(" ~^") in (
        "",
        _HEADER,
    )


def message(text: str) -> str:
    """Return a line without the beginning of its record."""
    return _RECORD.sub("", text, count=1)


def raises(text: str) -> bool:
    """Return True for the last line of a traceback."""
    return bool(_RAISED.match(text))


def goes_on(text: str) -> bool:
    """Return True for a bar of something that is loaded, or a start without a GPU."""
    return bool(_PROGRESS.search(text) or _GOES_ON_WITHOUT.match(text))


def level(text: str) -> str:
    """Return the first letter of the level of a line; empty if it names none."""
    found, warned = _LEVEL.search(text, 0, HEAD), PYTHON_WARNING.search(text, 0, HEAD)
    if warned is not None and (found is None or warned.start() < found.start()):
        return "W"
    return "" if found is None else next(one for one in found.groups() if one)[0].upper()


def begins_traceback(text: str) -> bool:
    """Return True if a record ends in the first line of a traceback."""
    return text.endswith(_HEADER)


def begins_record(text: str) -> bool:
    """Return True for a line without a level that belongs to no record above it."""
    return bool(_STAMP.match(text))


def may_tell_of_caught(text: str) -> bool:
    """Return True if lines without a level after this one may belong to a caught exception."""
    if PYTHON_WARNING.search(text, 0, HEAD):
        # Below these, Python prints only a line of source code.
        return False
    name = level(text)
    return bool(name) and (
        name not in "IN" or bool(_FAILED.search(text)) or bool(GOES_ON.search(text))
    )
