"""Append-only journal of responses and failures: one JSON line per finished sample.

A conversation also has a line for each finished request, which only `read_exchanges` returns.

A record is in the file when `append` returns, and it counts until it is withdrawn. A killed run
resumes after its last complete line. Later records of a sample replace earlier ones, except that a
failure never replaces a response. A withdrawal takes back all earlier responses to its sample.
Readers get only the records that count.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.schema import Exchange, Failure, Response, Sample
from serve_eval.whole_file import force_to_disk

FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_ROOM_HINT = "Free disk space, then run the same command again. All answers so far are kept."


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One finished sample, with exactly one of `response`, `failure` and `withdrawn`.

    `withdrawn` is the reason why the earlier response does not count. A line with an `exchange` is
    one request of a conversation, which goes on.
    """

    id: str
    response: Response | None = None
    failure: Failure | None = None
    withdrawn: str | None = None
    exchange: Exchange | None = None


class ScannedUsage(msgspec.Struct, frozen=True, gc=False):
    """The tokens of an answer."""

    completion_tokens: int = 0


class ScannedAttempt(msgspec.Struct, frozen=True, gc=False):
    """The start of an attempt, in seconds since 1970."""

    start_s: float = 0.0


class ScannedResult(msgspec.Struct, frozen=True, gc=False):
    """The fields that `scan` reads of a response, or of a failure, which has no text and times."""

    text: str = ""
    reasoning: str | None = None
    usage: ScannedUsage = ScannedUsage()
    latency_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    attempts: tuple[ScannedAttempt, ...] = ()

    @property
    def started_s(self) -> float:
        """The start of the first attempt in seconds since 1970; 0 if it is not known."""
        return self.attempts[0].start_s if self.attempts else 0.0


class ScannedExchange(msgspec.Struct, frozen=True, gc=False):
    """The turn of a request in a conversation."""

    turn: int = 0


class ScannedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record without most of its parts."""

    id: str
    response: ScannedResult | None = None
    failure: ScannedResult | None = None
    withdrawn: str | None = None
    exchange: ScannedExchange | None = None


_EXCHANGE = b'"exchange":'
"""Part of every line of an exchange; quotes in a JSON string are escaped."""
_WITHDRAWN = b'"withdrawn":'
"""Part of every withdrawal, and rarely of another record: quotes in a JSON string are escaped."""
_BUFFER = 1 << 20
"""Bytes of a file that are read together: by default a few lines are."""
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Record)
_scanner = msgspec.json.Decoder(ScannedRecord)
T = TypeVar("T")


def read(path: Path, part: bytes = b"") -> Iterator[Record]:
    """Yield the records that count in a file, in the order in which they were written.

    Skips lines without `part` and does not decode them. The file is not changed. Skips an
    incomplete last line. Raises RunFolderError for a damaged line.
    """
    return (record for record, _ in _read_placed(path, part))


def _read_placed(path: Path, part: bytes = b"") -> Iterator[tuple[Record, int]]:
    """Yield the records that count, each with the offset of its line in bytes."""
    gone, offset = withdrawals(path), 0
    for number, line in _lines(path):
        if part in line:
            record = _decode(path, number, line, _decoder)
            if (
                record.withdrawn is None
                and record.exchange is None
                and (record.response is None or gone.get(record.id, 0) < number)
            ):
                yield record, offset
        offset += len(line)


class StoredResponses(Mapping[str, Response]):
    """The first response to each sample that counts, read from the file when it is asked for.

    Holds the ids and the places of their lines, about 200 bytes per sample. Raises OSError for a
    file that cannot be read, and RunFolderError for a damaged line.
    """

    def __init__(self, path: Path) -> None:
        self._offsets: dict[str, int] = {}
        for record, offset in _read_placed(path):
            if record.response is not None:
                self._offsets.setdefault(record.id, offset)
        self._file = path.open("rb")

    def __getitem__(self, sample: str) -> Response:
        self._file.seek(self._offsets[sample])
        response = _decoder.decode(self._file.readline()).response
        assert response is not None
        return response

    def __contains__(self, sample: object) -> bool:
        return sample in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def index_lines(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the sample id, the offset and the length in bytes of each record in a file.

    Includes withdrawals and what they take back. Skips an incomplete last line. Raises
    RunFolderError for a damaged line.
    """
    offset = 0
    for number, line in _lines(path):
        yield _decode(path, number, line, _decoder).id, offset, len(line)
        offset += len(line)


def scan(path: Path) -> Iterator[tuple[int, ScannedRecord]]:
    """Yield the offset in bytes and the short form of each record, in the order of the file.

    Includes withdrawals and what they take back. Skips an incomplete last line. Raises
    RunFolderError for a damaged line.
    """
    offset = 0
    for number, line in _lines(path):
        record = _decode(path, number, line, _scanner)
        if record.exchange is None:
            yield offset, record
        offset += len(line)


def read_exchanges(path: Path) -> Iterator[tuple[str, Exchange]]:
    """Yield the sample and the content of each exchange that was not withdrawn.

    Raises RunFolderError for a damaged line.
    """
    gone = withdrawals(path)
    for number, line in _lines(path):
        if _EXCHANGE in line:
            record = _decode(path, number, line, _decoder)
            if record.exchange is not None and gone.get(record.id, 0) < number:
                yield record.id, record.exchange


def read_at(path: Path, offsets: Iterable[int]) -> Iterator[Record]:
    """Yield the records at these offsets of a file. Raises RunFolderError for a damaged line."""
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            yield _decode(path, offset, file.readline(), _decoder)


def withdrawals(path: Path) -> dict[str, int]:
    """Return the samples with withdrawn responses, and the line of the last withdrawal of each."""
    lines = (
        (number, _decode(path, number, line, _scanner))
        for number, line in _lines(path)
        if _WITHDRAWN in line
    )
    return {record.id: number for number, record in lines if record.withdrawn is not None}


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    with path.open("rb", buffering=_BUFFER) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            yield number, line


def _decode(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{path}:{number}: a damaged record: {error}",
            hint="Delete that line: its sample is then asked again.",
        ) from error


def answers(
    samples: Iterable[Sample], records: Iterable[Record]
) -> Iterator[tuple[Sample, Response]]:
    """Yield the responses among the records, each with its sample.

    Skips responses to samples that are not in `samples`.
    """
    known = {sample.id: sample for sample in samples}
    for record in records:
        sample = known.get(record.id)
        if sample is not None and record.response is not None:
            yield sample, record.response


class Journal:
    """The records of one task in one file that only the user can read.

    Opening the file drops an incomplete last line, which a kill during a write leaves behind.
    `dropped_bytes` is the length of that line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.dropped_bytes = self._drop_torn_line()
        self._size = os.fstat(self._fd).st_size
        self.empty = self._size == 0
        self._unsynced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._unsynced = True  # a sync in another thread may not have finished
            self.sync()
        finally:
            os.close(self._fd)

    def _drop_torn_line(self) -> int:
        size = os.fstat(self._fd).st_size
        end, block = size, 1 << 16
        while end > 0:
            start = max(0, end - block)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._fd, end)
        return size - end

    def records(self, part: bytes = b"") -> Iterator[Record]:
        """Yield the records that count, in the order in which they were written.

        Skips lines without `part`. Raises RunFolderError for a damaged line.
        """
        return read(self.path, part)

    def append(self, record: Record) -> None:
        """Write one record.

        Raises JournalError if the record cannot be written whole, and then removes the part that
        was written.
        """
        data = _encode(record) + b"\n"
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
            self._size += len(data)
            self._unsynced = True
        except OSError as error:
            with suppress(OSError):  # the next opening drops an incomplete line that stays
                if written and os.fstat(self._fd).st_size == self._size + written:
                    os.ftruncate(self._fd, self._size)
            raise JournalError(
                f"{self.path}: cannot write: {error.strerror}",
                hint=NO_ROOM_HINT,
            ) from error

    def sync(self) -> None:
        """Force the written records to disk, so that they survive a crash of the machine.

        Raises JournalError if the disk is full or fails, or if the file was removed meanwhile.
        Ignores a file system that cannot sync.
        """
        if not self._unsynced:
            return
        self._unsynced = False
        if os.fstat(self._fd).st_nlink == 0:
            raise JournalError(f"{self.path} was removed during the run")
        try:
            force_to_disk(self._fd)
        except OSError as error:
            self._unsynced = True
            raise JournalError(
                f"{self.path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT
            ) from error
