"""Read files of other tools within limits, for results in one form."""

from __future__ import annotations

import hashlib
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError, install_hint
from serve_eval.frozen import freeze
from serve_eval.schema import Sample, TextPart

Turns = Sequence[tuple[str, str]]
"""A chat: role and text of each turn."""


@freeze
class FoundSample:
    """The scores of one answer by metric, and a digest of its prompt (None: it is not recorded).

    A metric whose score is no finite number lacks. Several answers to a prompt are as many samples.
    """

    prompt: bytes | None
    scores: Mapping[str, float]


@freeze
class FoundResult:
    """The result of one task in the files of another tool.

    `scores` are by metric, on the scale of one answer; the first is the tool's main one. `count` is
    the number of prompts (None: unknown). `told` has the parts of the protocol that the files hold,
    under the names of our options; a part that they lack is absent. `samples` is None if they have
    no scores of single answers. `remarks` are for the reader of the import. `family` names the
    table of names: the tool, or the tool that it started.
    """

    family: str
    tool: str
    file: Path
    task: str
    model: str | None
    scores: Mapping[str, float]
    count: int | None = None
    date: str | None = None
    told: Mapping[str, Any] = field(default_factory=dict)
    samples: Sequence[FoundSample] | None = None
    remarks: Sequence[str] = ()


def digest_prompt(prompt: str | Turns) -> bytes:
    """Return the SHA-256 of a prompt: of a text, or of the roles and texts of a chat.

    A chat of one user turn differs from its text, as the two are other requests.
    """
    text = prompt if isinstance(prompt, str) else json.dumps([list(turn) for turn in prompt])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def digest_choices(texts: Sequence[str]) -> bytes:
    """Return the SHA-256 of a question by likelihoods: each choice with the text before it."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).digest()


def digest_sample(sample: Sample) -> bytes | None:
    """Return the digest of a sample of ours; None for one with media, which no digest covers."""
    if sample.choices:
        return digest_choices([before + choice for before, choice in sample.continued])
    if isinstance(sample.prompt, str):
        return digest_prompt(sample.prompt)
    plain = all(
        isinstance(turn.content, str) or all(isinstance(one, TextPart) for one in turn.content)
        for turn in sample.prompt
    )
    return digest_prompt([(turn.role, turn.text) for turn in sample.prompt]) if plain else None


MOST_BYTES = 512 << 20
"""Maximum size of a document, and of the content of a part of an archive."""
MOST_IN_LINE = 64 << 20
"""Maximum size of a line of a file of JSON lines, of which one is held at a time."""
MOST_IN_ARCHIVE = 16 << 30
"""Maximum size of the content of an archive."""
_ZSTANDARD = 93
"""The method of compression of recent logs of inspect, which Python reads from 3.14 on."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""The header of a part: it ends with the lengths of the name and of the extra field behind it."""
_POINTER = b"version https://git-lfs"
_CUT = "The file may be cut: copy it again, whole."


def read_bytes(file: Path) -> bytes:
    """Return the content of a file. Raises ReferenceFileError for one that is too large."""
    try:
        with file.open("rb") as source:
            raw = source.read(MOST_BYTES + 1)
    except OSError as error:
        raise ReferenceFileError(f"{file}: cannot be read: {error.strerror}") from error
    if len(raw) > MOST_BYTES:
        raise ReferenceFileError(
            f"{file}: is larger than {MOST_BYTES >> 20} MiB",
            hint="Name a file of results without single answers.",
        )
    _refuse_pointer(raw, file)
    return raw


def read_json(file: Path) -> Any:
    """Return the document of a JSON file; NaN is allowed, since several tools write it."""
    return parse_json(read_bytes(file), str(file))


def read_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines with their line numbers, one at a time."""
    try:
        with file.open("rb") as source:
            number = 0
            while raw := source.readline(MOST_IN_LINE + 1):
                number += 1
                if number == 1:
                    _refuse_pointer(raw, file)
                if len(raw) > MOST_IN_LINE:
                    raise ReferenceFileError(
                        f"{file}:{number}: the line is longer than {MOST_IN_LINE >> 20} MiB"
                    )
                if raw.strip():
                    yield number, as_object(parse_json(raw, f"{file}:{number}"), f"{file}:{number}")
    except OSError as error:
        raise ReferenceFileError(f"{file}: cannot be read: {error.strerror}") from error


def parse_json(raw: bytes, name: str) -> Any:
    """Return the value of a JSON text. Raises ReferenceFileError that names the place."""
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        where = f"{name}: no valid JSON: {error.msg}, line {error.lineno}, column {error.colno}"
        raise ReferenceFileError(where, hint=_CUT) from error
    except UnicodeDecodeError as error:
        raise ReferenceFileError(f"{name}: is no UTF-8 text") from error
    except RecursionError as error:
        raise ReferenceFileError(f"{name}: its values are nested too deeply") from error
    except ValueError as error:  # a number with too many digits
        raise ReferenceFileError(f"{name}: {error}") from error


class Archive:
    """A zip archive whose parts are read one at a time, and never more than the limits allow."""

    def __init__(self, file: Path) -> None:
        """Open the archive. Raises ReferenceFileError if it is cut, no archive or too large."""
        self.file = file
        try:
            self._zip = zipfile.ZipFile(file)
        except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
            raise ReferenceFileError(f"{file}: no readable zip archive: {error}", hint=_CUT) from (
                error
            )
        if sum(part.file_size for part in self._zip.infolist()) > MOST_IN_ARCHIVE:
            raise ReferenceFileError(
                f"{file}: its content is larger than {MOST_IN_ARCHIVE >> 30} GiB"
            )
        self.names = self._zip.namelist()

    def read(self, name: str) -> Any:
        """Return the JSON document of a part. Raises ReferenceFileError that names the part."""
        where = f"{self.file}: {name}"
        try:
            raw = self._read_raw(name, where)
        except KeyError as error:
            raise ReferenceFileError(f"{where}: is missing in the archive", hint=_CUT) from error
        except NotImplementedError as error:
            raise ReferenceFileError(
                f"{where}: is compressed by a method that this Python cannot read",
                hint="Convert the log: inspect log convert --to json LOG --output-dir DIR",
            ) from error
        except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            raise ReferenceFileError(f"{where}: cannot be read: {error}", hint=_CUT) from error
        if len(raw) > MOST_BYTES:
            raise ReferenceFileError(f"{where}: is larger than {MOST_BYTES >> 20} MiB")
        return parse_json(raw, where)

    def _read_raw(self, name: str, where: str) -> bytes:
        """Return the content of a part, at most a byte more than the limit."""
        info = self._zip.getinfo(name)
        if info.compress_type != _ZSTANDARD:
            with self._zip.open(info) as part:
                return part.read(MOST_BYTES + 1)
        raw = _decompress(self._read_compressed(info), where)
        if len(raw) <= MOST_BYTES and zlib.crc32(raw) != info.CRC:
            raise zipfile.BadZipFile("bad checksum")
        return raw

    def _read_compressed(self, info: zipfile.ZipInfo) -> bytes:
        """Return the bytes of a part as they are in the file, behind its local header."""
        with self.file.open("rb") as source:
            source.seek(info.header_offset)
            head = source.read(_LOCAL_HEADER.size)
            if len(head) < _LOCAL_HEADER.size or info.compress_size > MOST_BYTES:
                raise EOFError("its header is cut, or it is too large")
            source.seek(sum(_LOCAL_HEADER.unpack(head)), 1)
            return source.read(info.compress_size)

    def close(self) -> None:
        """Close the file."""
        self._zip.close()


def _decompress(raw: bytes, where: str) -> bytes:
    """Return the content of a part. Raises ReferenceFileError if the package is missing."""
    try:
        import zstandard
    except ImportError as error:
        raise ReferenceFileError(
            f"{where}: is compressed by zstandard", hint=install_hint("inspect")
        ) from error
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw)) as content:
            return content.read(MOST_BYTES + 1)
    except zstandard.ZstdError as error:
        raise zipfile.BadZipFile(str(error)) from error


def as_object(value: Any, where: str) -> dict[str, Any]:
    """Return a value that must be a JSON object. Raises ReferenceFileError that names the place."""
    if not isinstance(value, dict):
        raise ReferenceFileError(f"{where}: must be an object, not {type(value).__name__}")
    return value


def find_object(value: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return the object at a path of names; an empty one if there is none."""
    found: Any = value
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def as_number(value: Any) -> float | None:
    """Return a finite number, also of true, false and a text; None for anything else."""
    if not isinstance(value, bool | int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def read_numbers(given: Mapping[str, Any], *names: str) -> dict[str, float]:
    """Return the numbers of these names that an object has."""
    return {name: value for name in names if (value := as_number(given.get(name))) is not None}


def as_count(value: Any) -> int | None:
    """Return a whole number above 0; None for anything else."""
    number = None if isinstance(value, bool) else as_number(value)
    return int(number) if number is not None and number >= 1 and number == int(number) else None


def as_text(value: Any) -> str | None:
    """Return a text that is not empty; None for anything else."""
    return value if isinstance(value, str) and value else None


def as_date(value: Any) -> str | None:
    """Return the day of a time stamp, in seconds or as ISO text; None for anything else."""
    if isinstance(value, str) and len(value) >= 10:
        try:
            return datetime.fromisoformat(value[:10]).date().isoformat()
        except ValueError:
            return None
    number = None if isinstance(value, bool | str) else as_number(value)
    try:
        return None if number is None else datetime.fromtimestamp(number, UTC).date().isoformat()
    except (OverflowError, OSError, ValueError):
        return None


def _refuse_pointer(raw: bytes, file: Path) -> None:
    if raw.startswith(_POINTER):
        raise ReferenceFileError(
            f"{file}: is a pointer of Git LFS, not the file itself",
            hint="Fetch it: git lfs pull",
        )
