"""Find signs in a log that its server is dead, as opposed to errors that it survives.

The lines of each rank are read separately, if they name their rank. An exception counts only if
nothing caught it. It was caught if it is in a record at level warning or below, if it is in lines
without a level after such a record, or if another exception was raised while it was handled.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from serve_eval.launchers._logs import lines
from serve_eval.launchers._logs.causes import AT_ONCE, ENDS_ITSELF, Cause, find_known
from serve_eval.launchers._logs.lines import FINAL, GOES_ON, LAST_WORDS, Kind, Line

MOST_STREAMS = 4096
"""Maximum number of ranks that are read separately."""

_NVIDIA = re.compile(r"\[(?:TRT-LLM|TensorRT-LLM|TRT)\b[^\]]*\]")
_WRAPPER = re.compile(r"Rank\d+ Task exit code: ")


class Strength(IntEnum):
    """The weight of a sign, from the weakest."""

    TRACEBACK = 1
    """An exception that has no known cause or may have been caught, or an NVIDIA error line without
    a known cause."""
    FINAL = 2
    """A sentence with which the server gives up, without a known cause."""
    REPORTED = 3
    """A known cause at level error, or one that servers catch."""
    RAISED = 4
    """A known cause that was raised."""
    CERTAIN = 5
    """A sentence with which the server gives up, with a known cause."""


class Sign(NamedTuple):
    """A line that shows that a server ended."""

    strength: Strength
    line: str
    stream: str = ""
    cause: Cause | None = None


class _Record(Enum):
    """The record to which lines without a level belong."""

    NONE = 0
    CAUGHT = 1
    ERROR = 2
    RAISED = 3


@dataclass
class _Stream:
    """The last lines of one rank."""

    record: _Record = _Record.NONE
    in_traceback: bool = False
    in_thread: bool = False
    ended: bool = False
    """True after the end of a traceback. The next one is of another exception unless chained."""
    raised: Sign | None = None
    """The last sign of a traceback. The next line may say that this exception was being handled."""


class Signs:
    """Reads lines of a server of an engine (None: not known) and keeps the strongest sign."""

    def __init__(self, engine: str | None = None) -> None:
        self._engine = engine
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self.strongest: Sign | None = None
        self._gave_up = False

    def read(self, line: Line, *, later: bool = False) -> bool:
        """Read a line; return True if it shows that the server is still active.

        `later` means that the line was not written together with the strongest sign.
        """
        text, stream = line.text, self._stream(line.stream)
        match lines.kind(text, in_traceback=stream.in_traceback):
            case Kind.NOISE:
                return False
            case Kind.QUIET:
                self._read_quiet(line, stream)
            case Kind.ERROR:
                stream.record = _Record.ERROR
                stream.in_traceback, stream.in_thread = lines.begins_traceback(text), False
                self._keep(self._sign(line, stream, raised=False))
            case Kind.THREAD:
                self._read_thread(line, stream)
            case Kind.HEADER:
                stream.in_traceback = True
                stream.in_thread = stream.in_thread and not stream.ended
            case Kind.HANDLING:
                stream.ended = False
                self._take_back(stream)
            case Kind.CHAINED:
                stream.ended = False
            case Kind.RAISED | Kind.COMMAND as kind if (
                kind is Kind.RAISED or self._find(text) is not None
            ):
                self._read_raised(line, stream)
            case Kind.PLAIN if not stream.in_traceback:
                self._read_plain(line, stream, later=later)
        return True

    def _read_quiet(self, line: Line, stream: _Stream) -> None:
        """Read a record at level warning or below; a caught exception may follow it."""
        caught = lines.may_tell_of_caught(line.text)
        stream.record = _Record.CAUGHT if caught else _Record.NONE
        stream.in_traceback = stream.in_thread = caught and lines.begins_traceback(line.text)
        self._weaken(line)

    def _read_thread(self, line: Line, stream: _Stream) -> None:
        """Read the report that an exception ended a thread, whose name may be a known cause."""
        stream.record, stream.in_thread, stream.ended = _Record.NONE, True, False
        cause = self._find(line.text) if line.text.startswith("Exception in thread ") else None
        if (
            cause is not None and cause.ends == AT_ONCE
            # The name of the thread is a cause, and nothing starts the thread again.
        ):
            self._keep(Sign(Strength.CERTAIN, line.text, line.stream, cause))

    def _read_raised(self, line: Line, stream: _Stream) -> None:
        """Read the last line of a traceback."""
        stream.raised = self._sign(line, stream, raised=True)
        self._keep(stream.raised)
        if stream.record is _Record.NONE:
            stream.record = _Record.RAISED
        stream.in_traceback, stream.ended = False, True

    def _read_plain(self, line: Line, stream: _Stream, *, later: bool) -> None:
        """Read a line without a level and outside a traceback."""
        if _WRAPPER.match(line.text):
            stream.record = _Record.NONE
        tells = self._find(line.text) is not None or FINAL.search(line.text) is not None
        sign = self._sign(line, stream, raised=stream.record is _Record.RAISED) if tells else None
        self._keep(sign)
        if sign is None and later:
            self._weaken(line)

    def forget(self) -> None:
        """Drop the strongest sign, but keep what each rank wrote last."""
        self.strongest, self._gave_up = None, False

    def _stream(self, name: str) -> _Stream:
        found = self._streams.setdefault(name, _Stream())
        self._streams.move_to_end(name)
        if len(self._streams) > MOST_STREAMS:
            self._streams.popitem(last=False)
        return found

    def _keep(self, sign: Sign | None) -> None:
        if sign is None:
            return
        before = self.strongest
        self._gave_up = self._gave_up or sign.strength in (Strength.FINAL, Strength.CERTAIN)
        if sign.cause is None and self._gave_up and before is not None and before.cause is not None:
            sign = before  # a server gives up because of what it raised
        if self._gave_up and sign.cause is not None:
            sign = sign._replace(strength=Strength.CERTAIN)
        if before is not None:
            sign = _clearer(before, sign)
        if (
            before is None
            or sign.strength > before.strength
            or sign.strength is Strength.TRACEBACK is before.strength
        ):
            self.strongest = sign
        elif before.cause is not None and before.cause.vague and sign.cause is not None:
            self.strongest = sign._replace(strength=before.strength)

    def _take_back(self, stream: _Stream) -> None:
        """Forget the cause of an exception that was being handled when another one was raised."""
        sign = self.strongest
        if sign is not None and sign == stream.raised and sign.strength < Strength.CERTAIN:
            self.strongest = sign._replace(strength=Strength.TRACEBACK, cause=None)
        stream.raised = None

    def _weaken(self, line: Line) -> None:
        """Weaken the sign of a rank that writes on: it caught the error, unless it gave up."""
        sign = self.strongest
        if sign is None or sign.stream != line.stream or LAST_WORDS.search(line.text):
            return
        if sign.strength in (Strength.REPORTED, Strength.RAISED):
            self.strongest = sign._replace(strength=Strength.TRACEBACK)

    def _find(self, text: str) -> Cause | None:
        return find_known(text, self._engine)

    def _sign(self, line: Line, stream: _Stream, *, raised: bool) -> Sign | None:
        """Return the sign in a line at level error, or in one that names an exception."""
        text = line.text
        if stream.record is _Record.CAUGHT:
            return (
                Sign(Strength.TRACEBACK, text, line.stream)
                if raised and not stream.in_thread
                else None
            )
        cause = self._find(text)
        if cause is not None and cause.ends == ENDS_ITSELF:
            return None
        if FINAL.search(text):
            return Sign(
                Strength.FINAL if cause is None else Strength.CERTAIN, text, line.stream, cause
            )
        if GOES_ON.search(text):
            return (
                Sign(Strength.TRACEBACK, text, line.stream)
                if raised and not stream.in_thread
                else None
            )
        if cause is not None:
            strength = Strength.RAISED if raised and cause.ends == AT_ONCE else Strength.REPORTED
            if stream.record is _Record.NONE and not raised:
                # Neither the writer nor the level of the line is known.
                strength = Strength.TRACEBACK
            return Sign(strength, text, line.stream, cause)
        worth = not stream.in_thread if raised else _NVIDIA.search(text) is not None
        return Sign(Strength.TRACEBACK, text, line.stream) if worth else None


def _clearer(before: Sign, sign: Sign) -> Sign:
    """Return the sign; if its cause is vague, with the line and cause of the sign before it."""
    vague = sign.cause is not None and sign.cause.vague
    if vague and before.cause is not None and before.cause.ends == AT_ONCE:
        return sign._replace(line=before.line, cause=before.cause)
    return sign
