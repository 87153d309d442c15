"""Keep the scores and the answers of a registered reference, sample by sample.

Each reference has one JSON file next to it. The file holds a key per prompt and the scores per run,
as a bitmap or as 16-bit numbers, all in base64. A key is 48 bits of a hash of id, prompt and
target: it reveals a changed prompt and allows a subset to be paired. MMLU with 3 runs takes 35 KB.
"""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path

import msgspec

from serve_eval.errors import ReferenceFileError
from serve_eval.frozen import freeze
from serve_eval.protocol.sampling_fields import KEY_BYTES
from serve_eval.whole_file import write_named_file

BITMAP, UINT16 = "bitmap", "uint16"
LEVELS = 65535
GRADES = 12
"""Largest denominator of a graded score that is stored exactly."""


class _File(msgspec.Struct, omit_defaults=True):
    """The content of the file.

    `encoding` is bitmap if every score is lo or hi, else uint16 over lo..hi. Files of older
    versions have no `answers`. `parts` has 64-bit numbers per run.
    """

    schema_version: int
    task: str
    n: int
    lo: float
    hi: float
    encoding: str
    keys: str
    runs: list[str]
    answers: PackedAnswers | None = None
    parts: dict[str, list[str]] = {}


@freeze
class SampleScores:
    """Scores of `runs` over the same prompts, in the order of the protocol.

    `keys` has KEY_BYTES per prompt. `answers` describes those of the first run, if they are texts.
    `parts` are those of the scores of each run, for a value that depends on their sums.
    """

    task: str
    lo: float
    hi: float
    keys: bytes
    runs: tuple[array[float], ...]
    answers: StoredAnswers | None = None
    parts: Mapping[str, Sequence[array[float]]] = field(default_factory=dict)


def write(path: Path, scores: SampleScores) -> str:
    """Write the file and return its sha256.

    Scores between the ends of the range are rounded to 1/65535 of it. Raises ReferenceFileError if
    a score is missing or outside the range, or if the file cannot be written.
    """
    span = scores.hi - scores.lo
    if not all(scores.lo <= value <= scores.hi for run in scores.runs for value in run):
        raise ReferenceFileError(
            f"{scores.task}: a score is missing or outside {scores.lo:g}..{scores.hi:g}"
        )
    two_valued = all(value in (scores.lo, scores.hi) for run in scores.runs for value in run)
    runs = []
    for run in scores.runs:
        if two_valued:
            bits = bytearray((len(run) + 7) // 8)
            for i, value in enumerate(run):
                bits[i >> 3] |= (value == scores.hi) << (i & 7)
            runs.append(b64encode(bits).decode())
        else:
            levels = (round((value - scores.lo) / span * LEVELS) for value in run)
            runs.append(
                b64encode(b"".join(level.to_bytes(2, "little") for level in levels)).decode()
            )
    content = _File(
        schema_version=1,
        task=scores.task,
        n=len(scores.keys) // KEY_BYTES,
        lo=scores.lo,
        hi=scores.hi,
        encoding=BITMAP if two_valued else UINT16,
        keys=b64encode(scores.keys).decode(),
        runs=runs,
        answers=None if scores.answers is None else pack(scores.answers),
        parts={
            name: [b64encode(struct.pack(f"<{len(run)}d", *run)).decode() for run in part]
            for name, part in scores.parts.items()
        },
    )
    data = msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_named_file(path, data)
    except OSError as error:
        raise ReferenceFileError(f"{path}: cannot be written: {error.strerror}") from error
    return hashlib.sha256(data).hexdigest()


def read(path: Path, sha256: str) -> SampleScores:
    """Return the scores of a file.

    Raises ReferenceFileError if it is not the registered file or cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ReferenceFileError(
            f"{path}: cannot be read: {error.strerror}",
            hint="A reference entry needs this file. Restore it, or register the runs again.",
        ) from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ReferenceFileError(
            f"{path} is not the file that was registered", hint="Register the runs again."
        )
    try:
        content = msgspec.json.decode(data, type=_File)
        keys = b64decode(content.keys)
        runs = tuple(_unpack(content, b64decode(run)) for run in content.runs)
        packed = content.answers
        answers = None if packed is None else unpack(packed, content.n)
        parts = {
            name: [array("d", struct.unpack(f"<{content.n}d", b64decode(run))) for run in part]
            for name, part in content.parts.items()
        }
    except (msgspec.MsgspecError, ValueError, struct.error) as error:
        raise ReferenceFileError(f"{path}: {error}", hint="Register the runs again.") from error
    if len(keys) != KEY_BYTES * content.n:
        raise ReferenceFileError(
            f"{path}: {content.n} prompts, but the keys are for another number of prompts"
        )
    return SampleScores(
        task=content.task,
        lo=content.lo,
        hi=content.hi,
        keys=keys,
        runs=runs,
        answers=answers,
        parts=parts,
    )


def _unpack(content: _File, packed: bytes) -> array[float]:
    if content.encoding == BITMAP:
        if len(packed) != (content.n + 7) // 8:
            raise ValueError(f"a bitmap of {len(packed)} bytes does not hold {content.n} scores")
        return array(
            "d",
            (content.hi if packed[i >> 3] >> (i & 7) & 1 else content.lo for i in range(content.n)),
        )
    if content.encoding != UINT16 or len(packed) != 2 * content.n:
        raise ValueError(
            f"the encoding {content.encoding} is unknown, or the data does not hold"
            f" {content.n} scores"
        )
    levels = (int.from_bytes(packed[i : i + 2], "little") for i in range(0, len(packed), 2))
    return array("d", (_value(level, content.lo, content.hi) for level in levels))


def as_stored(score: float, lo: float, hi: float) -> float:
    """Return a score as it is read back from a file.

    An unchanged answer then has the same score on both sides.
    """
    return score if math.isnan(score) else _value(round((score - lo) / (hi - lo) * LEVELS), lo, hi)


@cache
def _value(level: int, lo: float, hi: float) -> float:
    """Return the score of a level.

    It is the fraction with the smallest denominator that the level stands for, if that denominator
    is at most GRADES. Halves and thirds are thus restored exactly.
    """
    share = level / LEVELS
    for parts in range(1, GRADES + 1):
        if abs(round(share * parts) / parts - share) <= 0.5 / LEVELS:
            share = round(share * parts) / parts
            break
    return lo + (hi - lo) * share


def places(reference: bytes, keys: Sequence[bytes]) -> list[int | None]:
    """Return the index of each key among the reference's prompts; None for an unknown prompt."""
    known = {
        reference[i : i + KEY_BYTES]: i // KEY_BYTES for i in range(0, len(reference), KEY_BYTES)
    }
    return [known.get(key) for key in keys]


LONGEST = 65535
"""Length from which answers are not told apart."""


class PackedAnswers(msgspec.Struct, frozen=True):
    """The form in the file: 16-bit lengths and bitmaps in base64, in the order of the prompts."""

    unit: str
    lengths: str
    cut: str
    looping: str
    shared: str
    scripts: list[str] = []
    cut_by_run: list[str] = []


@freeze
class StoredAnswers:
    """The answers of a reference's first run without their texts, in the order of its prompts.

    `lengths` are tokens if the server counted them (`counted`), else characters. An answer is `cut`
    at max_tokens, `looping` if it repeats itself to its end, and `shared` if the same long text
    answers another prompt. `scripts` are those of the letters in all answers. `cut_by_run` has the
    answers of every run, the first too, that anything cut off (empty: an older file).
    """

    counted: bool
    lengths: tuple[int, ...]
    cut: tuple[bool, ...]
    looping: tuple[bool, ...]
    shared: tuple[bool, ...]
    scripts: frozenset[str]
    cut_by_run: tuple[tuple[bool, ...], ...] = ()

    def take(self, places: Sequence[int]) -> StoredAnswers:
        """Return the answers to the prompts at these places."""
        return replace(
            self,
            lengths=tuple(self.lengths[i] for i in places),
            cut=tuple(self.cut[i] for i in places),
            looping=tuple(self.looping[i] for i in places),
            shared=tuple(self.shared[i] for i in places),
            cut_by_run=tuple(tuple(run[i] for i in places) for run in self.cut_by_run),
        )

    def list_cuts(self, runs: int) -> tuple[tuple[bool, ...], ...] | None:
        """Return the cut answers of all runs, None if those of some are not known."""
        if len(self.cut_by_run) == runs:
            return self.cut_by_run
        return (self.cut,) if runs == 1 else None


def pack(answers: StoredAnswers) -> PackedAnswers:
    """Return the form in the file."""
    lengths = b"".join(min(one, LONGEST).to_bytes(2, "little") for one in answers.lengths)
    return PackedAnswers(
        unit="tokens" if answers.counted else "characters",
        lengths=b64encode(lengths).decode(),
        cut=_pack_bits(answers.cut),
        looping=_pack_bits(answers.looping),
        shared=_pack_bits(answers.shared),
        scripts=sorted(answers.scripts),
        cut_by_run=list(map(_pack_bits, answers.cut_by_run)),
    )


def unpack(packed: PackedAnswers, n: int) -> StoredAnswers:
    """Return the answers to n prompts. Raises ValueError if the data holds another number."""
    lengths = b64decode(packed.lengths)
    if len(lengths) != 2 * n or packed.unit not in ("tokens", "characters"):
        raise ValueError(f"the lengths do not belong to {n} answers")
    return StoredAnswers(
        counted=packed.unit == "tokens",
        lengths=tuple(int.from_bytes(lengths[i : i + 2], "little") for i in range(0, 2 * n, 2)),
        cut=_unpack_bits(packed.cut, n),
        looping=_unpack_bits(packed.looping, n),
        shared=_unpack_bits(packed.shared, n),
        scripts=frozenset(packed.scripts),
        cut_by_run=tuple(_unpack_bits(run, n) for run in packed.cut_by_run),
    )


def _pack_bits(flags: Sequence[bool]) -> str:
    packed = bytearray((len(flags) + 7) // 8)
    for i, flag in enumerate(flags):
        packed[i >> 3] |= flag << (i & 7)
    return b64encode(packed).decode()


def _unpack_bits(text: str, n: int) -> tuple[bool, ...]:
    packed = b64decode(text)
    if len(packed) != (n + 7) // 8:
        raise ValueError(f"a bitmap of {len(packed)} bytes does not hold {n} flags")
    return tuple(bool(packed[i >> 3] >> (i & 7) & 1) for i in range(n))
