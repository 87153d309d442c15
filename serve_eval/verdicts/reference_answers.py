"""Lengths, cuts and signs of damage of a reference's answers, as its file of scores keeps them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
