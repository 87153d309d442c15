"""Classify lines of a log: errors, quiet lines, parts of a traceback, others."""

from __future__ import annotations

import re
from enum import Enum

HEAD = 160
"""Characters at the start of a line that may contain its level."""

Kind = Enum("Kind", "NOISE QUIET ERROR HEADER HANDLING CHAINED THREAD RAISED COMMAND PLAIN")
"""NOISE: nothing, or a line that our own requests cause. QUIET: at level warning or below, or it
says that the server goes on. HEADER, HANDLING, CHAINED, THREAD: sentences of a traceback. RAISED:
its last line. COMMAND: the error of a command line."""

_LEVEL = re.compile(
    r"""\[(?P<letter>[A-Z])\](?=[\s\[]|$)
    | (?<![\w=.-])(?P<word>TRACE|DEBUG|VERBOSE|INFO|NOTICE|DIAG
        |WARN|WARNING|ERROR|CRITICAL|FATAL)(?![\w=-])
    | (?:^|\[)(?P<glog>[IWEF])\d{3,4}\s
    | \[(?P<c10d>[WEF])\s\S+\.cpp
    | ^(?P<said>(?i:warning|warn|info|debug))\b""",
    re.VERBOSE,
)
PYTHON_WARNING = re.compile(r"(?:^|\s)\w*Warning:")
GOES_ON = re.compile(
    r"(?i)\bretry|\bretries|\btry(?:ing)? (?:again|another|the next)|fall(?:s|ing)?["
    r" -]?back|\bfallback|\bskip|\bignor"
    r"|\bcontinu|\binstead\b|\boptional\b|\bnot fatal|\bnon-fatal|\bwill use\b"
)
_PROGRESS = re.compile(r"\b\d{1,3}\s?%")
_FAILED = re.compile(r"(?i)fail|error|exception|unable|could not|cannot|not available")
_ACCESS = re.compile(r'"(?:GET|POST|HEAD) \S+ HTTP/\d(?:\.\d)?" \d{3}')
_HEADER = "Traceback (most recent call last):"
_HANDLING = "During handling of the above exception, another exception occurred:"
_CHAINED = "The above exception was the direct cause of the following exception:"
_THREAD = re.compile(
    r"Exception in thread |Exception ignored in|Task exception was never retrieved|future: <Task"
)
_RAISED = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?::\s|:?$)"
    r"|\s*what\(\): |terminate called after throwing an instance of"
)
_COMMAND = re.compile(r"(?:[\w.-]+: )?[Ee]rror: ")
_RAISED_LAST = re.compile(r"[A-Za-z_][\w.]*(?::\s|$)")
_WITHIN = re.compile(r"[\s~^|+]")


def kind(text: str, *, in_traceback: bool = False) -> Kind:
    """Return the kind of a line; within a traceback, any name at its beginning is an exception."""
    if not text.strip() or _ACCESS.search(text):
        return Kind.NOISE
    if text == _HEADER:
        return Kind.HEADER
    if text in (_HANDLING, _CHAINED):
        return Kind.HANDLING if text == _HANDLING else Kind.CHAINED
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
    return Kind.QUIET if GOES_ON.search(text) or _PROGRESS.search(text) else Kind.PLAIN


def level(text: str) -> str:
    """Return the first letter of the level of a line; empty if it names none."""
    found, warned = _LEVEL.search(text, 0, HEAD), PYTHON_WARNING.search(text, 0, HEAD)
    if warned is not None and (found is None or warned.start() < found.start()):
        return "W"
    return "" if found is None else next(one for one in found.groups() if one)[0].upper()


def begins_traceback(text: str) -> bool:
    """Return True if a record ends in the first line of a traceback."""
    return text.endswith(_HEADER)


def may_tell_of_caught(text: str) -> bool:
    """Return True if lines without a level after this one may belong to a caught exception."""
    if PYTHON_WARNING.search(text, 0, HEAD):
        # Below these, Python prints only a line of source code.
        return False
    name = level(text)
    return bool(name) and (
        name not in "IN" or bool(_FAILED.search(text)) or bool(GOES_ON.search(text))
    )
