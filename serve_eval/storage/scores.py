"""Read and write scores/<task>.jsonl, the scores of a task's answers, one JSON line per sample.

{"id":"3","outcome":"wrong","value":0.0,"answer":"12","target":"18","truncated":false,"parts":{}}
"""

from __future__ import annotations

import filecmp
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import force_setattr

from serve_eval.errors import RunFolderError
from serve_eval.schema import Cut, Outcome, Score
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import scores_file
from serve_eval.whole_file import name_partial, open_partial, put_in_place

_BLOCK = 1 << 20
"""Bytes of a file that are decoded together. This is fast and keeps memory small."""


class ScoreRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The score of one answer.

    `mode` names the way in which the answer failed, for a task that distinguishes such ways.
    `group` names what samples share, such as a passage or a speaker, as in a Sample. `cut` is what
    cut the answer off, and `truncated` is what the server says.
    """

    id: str
    outcome: Outcome
    value: float
    answer: str | None = None
    target: str
    truncated: bool = False
    parts: Mapping[str, float] = {}
    mode: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    cut: Cut | UnsetType = UNSET

    def score(self) -> Score:
        """Return the score as the scorer gave it."""
        return Score(value=self.value, outcome=self.outcome, answer=self.answer, parts=self.parts)


class ScannedScore(msgspec.Struct, gc=False):
    """The fields that `scan_scores` reads of a record."""

    id: str
    outcome: Outcome
    value: float
    truncated: bool = False


class _Value(msgspec.Struct, gc=False):
    """The part of a record that holds its value."""

    id: str
    value: float


_encode = msgspec.json.Encoder().encode
_decoder, _values = msgspec.json.Decoder(ScoreRecord), msgspec.json.Decoder(_Value)
_scanner = msgspec.json.Decoder(ScannedScore)
_decode = _decoder.decode
T = TypeVar("T")


def read_scores(run: Path, task: str, *, unfinished: bool = False) -> dict[str, ScoreRecord]:
    """Return the scores of a task by sample id.

    With `unfinished`, the run may have been killed: a missing file has no scores, and an incomplete
    last line is skipped. Raises RunFolderError for a file that is missing or damaged.
    """
    return {record.id: record for record in score_records(run, task, unfinished=unfinished)}


def score_records(run: Path, task: str, *, unfinished: bool = False) -> Iterator[ScoreRecord]:
    """Yield the scores of a task in the order of the file.

    Options and errors are as in `read_scores`.
    """
    return _read(run, task, _decoder, unfinished=unfinished)


def scan_scores(run: Path, task: str) -> Iterator[tuple[int, ScannedScore]]:
    """Yield the offset in bytes and the short form of each score; a killed run may have few.

    Raises RunFolderError for a damaged file.
    """
    file, offset = scores_file(run, task), 0
    try:
        if not file.exists():
            return
        with file.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                yield offset, _scanner.decode(line)
                offset += len(line)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(run, file, error)


def read_scores_at(run: Path, task: str, offsets: Iterable[int]) -> Iterator[ScoreRecord]:
    """Yield the scores at these offsets of a task's file. Raises RunFolderError if damaged."""
    file = scores_file(run, task)
    try:
        with file.open("rb") as lines:
            for offset in offsets:
                lines.seek(offset)
                yield _decode(lines.readline())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(run, file, error)


def find_score(run: Path, task: str, sample: str) -> ScoreRecord | None:
    """Return the last score of a sample in a task's file, or None.

    The run may have been killed, as for `read_scores`. Only that line is decoded. Raises
    RunFolderError if it is damaged.
    """
    file, found = scores_file(run, task), None
    name = sample.encode(errors="backslashreplace").decode()  # as `encode` writes it
    start = b'{"id":%b,' % _encode(name)  # within a text, its quotes would be escaped
    try:
        for block in _blocks(file, torn=False) if file.exists() else ():
            if (at := block.rfind(start)) >= 0:
                found = block[at:].partition(b"\n")[0]
        return None if found is None else _decode(found)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(run, file, error)


def read_values(run: Path, task: str) -> dict[str, float]:
    """Return the values of a task's scores by sample id, in less memory than `read_scores`."""
    return {record.id: record.value for record in _read(run, task, _values, unfinished=False)}


def has_scores(run: Path, task: str) -> bool:
    """Return True if a run folder has a file with scores of a task."""
    return scores_file(run, task).exists()


def _read(
    run: Path, task: str, decoder: msgspec.json.Decoder[T], *, unfinished: bool
) -> Iterator[T]:
    file = scores_file(run, task)
    try:
        if unfinished and not file.exists():
            return
        for block in _blocks(file, torn=not unfinished):
            yield from decoder.decode_lines(block)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _refuse(run, file, error)


def _blocks(path: Path, *, torn: bool) -> Iterator[bytes]:
    """Yield a file in blocks of complete lines, and with `torn` also an incomplete last line."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            whole, newline, begun = block.rpartition(b"\n")
            if newline:
                yield rest + whole
                rest = begun
            else:
                rest += block
    if torn and rest:
        yield rest


def _refuse(run: Path, file: Path, error: Exception) -> NoReturn:
    raise RunFolderError(
        f"{file} cannot be read: {error}",
        hint=f"Write it again: serve-eval judge {quote_path(run)}",
    ) from error


def encode(record: ScoreRecord) -> bytes:
    """Return a record as a JSON line.

    Escapes half of a surrogate pair, which a model may write and JSON cannot encode.
    """
    try:
        return _encode(record)
    except UnicodeEncodeError:
        texts = {
            name: value
            for name in record.__struct_fields__
            if isinstance(value := getattr(record, name), str)
        }
        escaped = {
            name: value.encode(errors="backslashreplace").decode() for name, value in texts.items()
        }
        return _encode(msgspec.structs.replace(record, **escaped))


def as_on_file(record: ScoreRecord) -> ScoreRecord:
    """Return a record as it is read from a file."""
    return _decode(encode(record))


class ScoreWriter(Protocol):
    """A destination for scores as they come, such as a file."""

    def write(self, record: ScoreRecord, /) -> object:
        """Take one score."""


class ScoreFile:
    """The scores of one task, in a partial file until `replace_old`.

    Until then the file holds the scores of an earlier session. Later scores are appended, as
    answers come.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open_partial(path)
        self._in_place = False

    def write(self, record: ScoreRecord) -> None:
        """Add a score. Raises OSError."""
        self._file.write(encode(record) + b"\n")

    def equals_old(self) -> bool:
        """Return True if the scores so far are those of the file that they replace."""
        self._file.flush()
        return self._path.exists() and filecmp.cmp(
            name_partial(self._path), self._path, shallow=False
        )

    def replace_old(self) -> None:
        """Give the file its place, with the scores so far. Raises OSError."""
        if not self._in_place:
            put_in_place(self._file, self._path)
            self._in_place = True

    def flush(self) -> None:
        """Write what is still in memory, so that readers of the file see it. Raises OSError."""
        self._file.flush()

    def settle(self, samples: Iterable[str]) -> None:
        """Keep only the last score of each of these samples, in their order.

        Scores of other samples were withdrawn. Raises OSError.
        """
        self.replace_old()
        self._file.flush()
        with self._path.open("rb") as file:
            lines = b"".join(pick_last_lines(file, samples))
        self._file.close()
        self._file, self._in_place = open_partial(self._path), False
        self._file.write(lines)
        self.replace_old()

    def close(self) -> None:
        """Close the file; scores that did not get their place are removed. Raises OSError."""
        self._file.close()
        if not self._in_place:
            name_partial(self._path).unlink(missing_ok=True)


def pick_last_lines(lines: Iterable[bytes], samples: Iterable[str]) -> Iterator[bytes]:
    """Yield the last line of each of these samples, in their order."""
    last = {_values.decode(line).id: line for line in lines}
    return (last[sample] for sample in samples if sample in last)


@contextmanager
def write_scores(run: Path, task: str) -> Iterator[ScoreFile]:
    """Open an empty file for the scores of a task, which has its place if the block succeeds.

    Raises OSError.
    """
    with closing(ScoreFile(scores_file(run, task))) as file:
        yield file
        file.replace_old()


MOST, LONGEST = 10_000, 80
"""Number and characters of the texts that are remembered."""
_NUMBERS = {0.0: 0.0, 1.0: 1.0}


class SharedValues:
    """The values that records have shared so far."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._nothing: dict[str, float] = {}

    def text(self, text: str | None) -> str | None:
        """Return an equal text, one object for all short ones as long as these are few."""
        if text is None or len(text) > LONGEST:
            return text
        known = self._known
        return known.setdefault(text, text) if len(known) < MOST else known.get(text, text)

    def score(self, record: ScoreRecord, ids: Mapping[str, str] | None = None) -> ScoreRecord:
        """Return a record that was just read, with shared values, and with its id as in `ids`."""
        if ids is not None:
            force_setattr(record, "id", ids.get(record.id, record.id))
        force_setattr(record, "value", _NUMBERS.get(record.value, record.value))
        for field in ("answer", "target"):
            force_setattr(record, field, self.text(getattr(record, field)))
        if not record.parts:
            force_setattr(record, "parts", self._nothing)
        return record
