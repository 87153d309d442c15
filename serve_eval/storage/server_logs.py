"""Read the logs of launched servers by the times of their lines.

A line without a time, such as a line of a traceback, belongs to the line before it. Times without a
zone are read in the zone of this machine, so a log from a machine with another zone is searched at
the wrong hour.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from serve_eval.masking import Masking
from serve_eval.schema import ServerInfo
from serve_eval.storage.file_names import LOGS, SERVERS
from serve_eval.storage.sessions import SessionRecord

LONGEST_LINE = 2000
"""Characters kept of a line."""

# trtllm-serve: [11/21/2026-21:28:15] [TRT-LLM] [E] ...; Python's logging and ISO 8601: 2026-11-21
# 21:28:15,123
_TRTLLM = re.compile(r"\[(\d\d)/(\d\d)/(\d{4})-(\d\d):(\d\d):(\d\d)\]")
_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)?(Z|[+-]\d\d:?\d\d)?"
)
_WITHIN = 60
"""Characters at the start of a line in which its time is searched."""
_ERROR = re.compile(
    r"\[(?:E|F)\]|\b(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most"
    r" recent|\b\w*(?:Error|Exception)\b(?=[:(]|$)"
    r"|out of memory|\bOOM\b|oom-kill|^Killed$|Segmentation fault|core dumped|Aborted"
)


class LogLine(NamedTuple):
    """A line of a log, with its time in seconds since 1970.

    `at_s` is None if neither the line nor any earlier line has a time.
    """

    at_s: float | None
    text: str

    @property
    def error(self) -> bool:
        """True if the line reports an error."""
        return _ERROR.search(self.text) is not None


def log_files(
    run: Path, sessions: Sequence[SessionRecord], at_hand: ServerInfo | None = None
) -> list[Path]:
    """Return the existing log files of the servers of a run.

    They are the logs in the run folder, those of a comparison or suite that launched the servers,
    those that the sessions name, and those of the endpoint `at_hand`. These files are read and
    overwritten, and a run folder may come from someone else. So a session's files count only if
    this user recorded it, and links that lead out of the folder are not followed.
    """
    beside = run.parent / SERVERS
    found = _below(run.resolve(), run / LOGS)
    found += _below(run.parent.resolve() / beside.name, beside / run.name / LOGS)
    infos = [session.endpoint.info for session in sessions if session.own]
    for info in infos if at_hand is None else [*infos, at_hand]:
        named = [*([] if info.log_file is None else [info.log_file]), *(info.logs or {}).values()]
        found += [Path(path) for path in named if Path(path).is_file()]
    return list({path.resolve(): path for path in found}.values())


def trace_files(at_hand: ServerInfo) -> list[Path]:
    """Return the request traces that the launched servers of an endpoint write.

    Returns none for servers that were not launched, since their files must not be overwritten.
    """
    told = at_hand.perf_metrics
    folder = None if told is None or at_hand.log_dir is None else told.trace_dir
    return (
        [path for path in Path(folder).rglob("requests-*.jsonl") if path.is_file()]
        if folder
        else []
    )


def _below(place: Path, folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.log")) if path.resolve().is_relative_to(place)]


def hide_secrets(paths: Iterable[Path], masking: Masking) -> list[Path]:
    """Overwrite the secrets in logs with stars of the same length. Return the files that failed.

    Writes in place, since a server may still append to a log. A file fails if it holds a secret and
    cannot be written, such as one that root wrote in a container.
    """
    left = []
    for path in paths:
        with suppress(OSError), path.open("rb") as file:
            start = 0
            for line in file:
                told = line.decode("latin-1")
                if (blanked := masking.blank(told)) != told and not _overwritten(
                    path, start, blanked
                ):
                    left.append(path)
                    break
                start += len(line)
    return left


def _overwritten(path: Path, start: int, text: str) -> bool:
    try:
        with path.open("r+b") as over:
            over.seek(start)
            over.write(text.encode("latin-1"))
    except OSError:
        return False
    return True


def read(path: Path) -> Iterator[LogLine]:
    """Yield the lines of a log, or none if it cannot be read."""
    at_s: float | None = None
    try:
        with path.open(errors="replace") as file:
            for text in file:
                told = time_of(text)
                at_s = at_s if told is None else told
                yield LogLine(at_s, text.rstrip("\n")[:LONGEST_LINE])
    except OSError:
        return


def time_of(text: str) -> float | None:
    """Return the time of a line in seconds since 1970, or None if it has none."""
    start = text[:_WITHIN]
    if match := _TRTLLM.search(start):
        month, day, year, *clock = map(int, match.groups())
        parts, fraction, zone = (year, month, day, *clock), 0.0, None
    elif match := _ISO.search(start):
        parts = tuple(map(int, match.groups()[:6]))
        fraction, zone = float(f"0.{match[7] or 0}"), match[8]
    else:
        return None
    try:
        when = datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001  (the zone is set below, or is local)
        if zone == "Z":
            when = when.replace(tzinfo=UTC)
        elif zone:
            when = datetime.fromisoformat(f"{when.isoformat()}{zone[:3]}:{zone[-2:]}")
        return when.timestamp() + fraction
    except (ValueError, OverflowError):
        return None  # it looks like a time but is not valid


def between(lines: Iterable[LogLine], start_s: float, end_s: float) -> list[LogLine]:
    """Return the lines written from `start_s` to `end_s`."""
    return [line for line in lines if line.at_s is not None and start_s <= line.at_s <= end_s]


def errors_near(
    path: Path, at_s: float, *, before_s: float, after_s: float, most: int
) -> list[str]:
    """Return the first lines that report errors around a time, at most `most`.

    For a log without any times, return its last errors: if the server ended, they show why.
    """
    near: list[str] = []
    untimed: deque[str] = deque(maxlen=most)
    timed = False
    for line in read(path):  # one at a time, since a log may not fit into memory
        if line.at_s is None:
            untimed += [f"(no time) {line.text}"] if line.error else []
            continue
        timed = True
        if len(near) < most and at_s - before_s <= line.at_s <= at_s + after_s and line.error:
            near.append(line.text)
    return near if timed else list(untimed)
