"""Keep the prompts of a task, one JSON line each, with their media as files.

{"id":"test-1","text":"Question: ..."}
{"id":"test-1","chat":"[{\\"role\\":\\"user\\",\\"content\\":\\"...\\"}]"}
{"id":"test-2","shared":2950,"text":"the rest"}

The prompt of the last example begins with the first 2950 characters of the last line without
`shared`: worked examples and long documents are kept once. A medium is kept as its type, size and
checksum. The text of a hold-out sample is not kept.

A run folder of someone else may name any file: a name is made of a checksum and a known type only,
no link is followed, and bytes count only if they have the checksum.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.protocol.conversation import list_results
from serve_eval.schema import HOLDOUT, MediaFile, MediaPart, Message, Prompt, Sample, TextPart
from serve_eval.schema.media import (
    EXTENSIONS,
    describe,
    describe_turn,
    media_bytes,
    read_media_file,
)
from serve_eval.stats.distances import common_prefix
from serve_eval.storage.archive import whole_lines
from serve_eval.storage.file_names import MEDIA, prompts_file
from serve_eval.whole_file import replace_file, write_whole

OVERLAP = 1024
"""Characters before the cut that are searched for a secret that goes on behind it. Of a longer
secret, half lies on one side, and a mask finds that."""
LEAST_SHARED = 128
"""Characters that two prompts must share before the second one leaves them out."""


ToolResults = tuple[Mapping[str, str], ...]
"""The results of the tools in each turn of a conversation, by name; empty if it has no tools."""


class KeptPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a sample as it was sent, with secrets masked.

    `prompt` is None for a hold-out sample. `choices` are continuations, each with its own context
    if it has one. The last `later` turns of a prompt are those of a conversation, each sent after
    the answer to the turn before it. `results` are those of its tools, by turn and name.
    """

    id: str
    prompt: Prompt | None
    choices: tuple[str, ...] = ()
    later: int = 0
    results: ToolResults = ()


class _Line(msgspec.Struct, omit_defaults=True):
    """A line of the file."""

    id: str
    shared: int = 0
    text: str | None = None
    chat: str | None = None
    choices: tuple[str, ...] = ()
    holdout: bool = False
    later: int = 0
    results: ToolResults = ()


_PLAIN = re.compile(rb'\{"id":"([!#-\[\]-~]*)","')
"""The beginning of a line whose id needs no decoding."""
_NO_HEAD = b"sh"
"""First letters of the fields `shared` and `holdout`: such a line begins no other."""
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Line)
_messages = msgspec.json.Decoder(tuple[Message, ...])


def has_prompts(run: Path, task: str) -> bool:
    """Return True if a run folder has a file with prompts of a task."""
    return prompts_file(run, task).exists()


def write_prompts(
    run: Path, task: str, samples: Iterable[Sample], mask: Callable[[str], str], *, texts: bool
) -> None:
    """Write the prompts of a task, each text through `mask`, whole or not at all.

    Without `texts`, only the ids of hold-out samples are written. Raises OSError.
    """
    with _open(run, task) as out:
        for sample in samples:
            if HOLDOUT in sample.metadata:
                out.write(_Line(sample.id, holdout=True), 0)
            elif texts:
                out.write(*_choose(_line(sample), out, mask))


def read_prompts(
    run: Path, task: str, wanted: Container[str] | None = None
) -> Iterator[KeptPrompt]:
    """Yield the prompts of a task in the order of the file, or those of the ids that are `wanted`.

    There are none without a file. Raises RunFolderError for a damaged line.
    """
    return (_decode(line) for line in _read(run, task, wanted))


def merge_prompts(shards: Iterable[Path], run: Path, task: str) -> None:
    """Write the prompts of all shards of a run, one shard's after another's. Raises OSError."""
    kept = [shard for shard in shards if has_prompts(shard, task)]
    if kept:
        with _open(run, task) as out:
            for shard in kept:
                for line in _read(shard, task):
                    out.write(line, out.count_shared(line))


def _line(sample: Sample) -> _Line:
    """Return the line of a sample, with descriptions in place of media."""
    heads = sample.heads or ("",) * len(sample.choices)
    choices = tuple(head + choice for head, choice in zip(heads, sample.choices, strict=True))
    if isinstance(sample.prompt, str):
        return _Line(sample.id, text=sample.prompt, choices=choices)
    talk = sample.conversation
    later = () if talk is None else talk.turns
    turns = (*sample.prompt, *(one.message for one in later))
    chat = _encode(list(map(describe_turn, turns))).decode()
    results = () if talk is None else list_results(talk)
    return _Line(sample.id, chat=chat, later=len(later), results=results if any(results) else ())


def _choose(line: _Line, out: _PromptFile, mask: Callable[[str], str]) -> tuple[_Line, int]:
    """Return a line with its secrets masked, and how many of its characters are left out.

    Characters that an earlier line has are not searched again: its own search covered them.
    """
    shared = out.count_shared(line)
    rest = _whole(line)[max(0, shared - OVERLAP) :]
    others = (*line.choices, *(text for told in line.results for text in told.values()))
    if mask(rest) == rest and all(mask(one) == one for one in others):
        return line, shared
    line = _mask(line, mask)
    return line, out.count_shared(line)


def _mask(line: _Line, mask: Callable[[str], str]) -> _Line:
    if line.chat is None:
        choices = tuple(map(mask, line.choices))
        return _Line(line.id, text=mask(line.text or ""), choices=choices)
    turns = [_mask_turn(turn, mask) for turn in _messages.decode(line.chat)]
    results = tuple({name: mask(text) for name, text in told.items()} for told in line.results)
    return _Line(line.id, chat=_encode(turns).decode(), later=line.later, results=results)


def _mask_turn(turn: Message, mask: Callable[[str], str]) -> Message:
    if isinstance(turn.content, str):
        return replace(turn, content=mask(turn.content))
    parts = (TextPart(mask(p.text)) if isinstance(p, TextPart) else p for p in turn.content)
    return replace(turn, content=tuple(parts))


def _decode(line: _Line) -> KeptPrompt:
    if line.holdout:
        return KeptPrompt(id=line.id, prompt=None)
    prompt = line.text if line.chat is None else _messages.decode(line.chat)
    return KeptPrompt(
        id=line.id,
        prompt=prompt,
        choices=line.choices,
        later=line.later,
        results=line.results,
    )


class PrefixHead:
    """Find how much of each text in a sequence an earlier one has, so that it is kept once.

    The text to compare with is the head: the last one that was kept whole. Texts must share at
    least `least` characters.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._head = self._last = ""

    def count_shared(self, text: str) -> int:
        """Return how many characters of a text are left out, because the head has them."""
        least = self._least
        if len(text) < least or self._head[:least] != text[:least]:
            return 0
        shared = common_prefix(self._head, text)
        # A text that begins much more like the last one is the better head for those after it.
        closer = 2 * shared < len(text) and common_prefix(self._last, text) > 2 * shared
        return 0 if closer else shared

    def take(self, text: str, shared: int) -> None:
        """Go on behind a text that is kept without its first `shared` characters."""
        self._last, self._head = text, self._head if shared else text


class _PromptFile:
    """A file of prompts that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._head = PrefixHead(LEAST_SHARED)

    def count_shared(self, line: _Line) -> int:
        """Return how many characters of a prompt are left out, because an earlier line has them."""
        return self._head.count_shared(_whole(line))

    def write(self, line: _Line, shared: int) -> None:
        """Add a line without the characters that an earlier one has. Raises OSError."""
        whole = _whole(line)
        if not line.holdout:
            self._head.take(whole, shared)
        kept = _with(line, whole[shared:], shared) if shared else line
        self._file.write(_encode(kept) + b"\n")


@contextmanager
def _open(run: Path, task: str) -> Iterator[_PromptFile]:
    """Open a new file in place of that of a task. It is there only if the block succeeds."""
    path = prompts_file(run, task)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with replace_file(path) as file:
        yield _PromptFile(file)


def _read(run: Path, task: str, wanted: Container[str] | None = None) -> Iterator[_Line]:
    """Yield the lines with whole texts; what neither is wanted nor begins others is not decoded."""
    file, head, head_at = prompts_file(run, task), "", (0, b"")

    def decode(number: int, content: bytes) -> _Line:
        try:
            return _decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(
                f"{file}:{number}: a damaged record: {error}",
                hint="Delete the file: samples are then shown without their prompts.",
            ) from error

    for number, content in enumerate(whole_lines(file), 1):
        if wanted is not None and (found := _PLAIN.match(content)) is not None:
            name, begins = found[1].decode(), content[found.end()] not in _NO_HEAD
            if name not in wanted:
                head_at = (number, content) if begins else head_at
                continue
        line = decode(number, content)
        if line.shared and head_at[0]:
            head, head_at = _whole(decode(*head_at)), (0, b"")
        whole = head[: line.shared] + _whole(line)
        if not line.shared and not line.holdout:
            head, head_at = whole, (0, b"")
        yield _with(line, whole, 0)


def _whole(line: _Line) -> str:
    return line.text or line.chat or ""


def _with(line: _Line, said: str, shared: int) -> _Line:
    """Return a line with another part of its prompt."""
    if line.holdout:
        return line
    fields = {"text": said} if line.chat is None else {"chat": said}
    return msgspec.structs.replace(line, shared=shared, **fields)


MOST_OF_ONE, MOST_OF_RUN = 1 << 20, 64 << 20
"""Largest size of a medium that is kept, and of all in a run folder together, in bytes."""
_CHECKSUM = re.compile(r"[0-9a-f]{64}")


def keep_media(run: Path, samples: Iterable[Sample], *, most_of_run: int = MOST_OF_RUN) -> None:
    """Write the small media of samples that are no hold-out, until the folder is full.

    Raises OSError, and DatasetError if a file is missing or has changed.
    """
    folder = run / MEDIA
    taken = sum(file.stat().st_size for file in folder.glob("*"))
    for sample in samples:
        for part in list_media(sample.prompt if HOLDOUT not in sample.metadata else ""):
            what = describe(part)
            name = _name(what)
            if not isinstance(what, MediaFile) or name is None or (folder / name).exists():
                continue
            if what.size <= MOST_OF_ONE and taken + what.size <= most_of_run:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                taken += what.size
                write_whole(
                    folder / name,
                    read_media_file(part)
                    if isinstance(part, MediaFile)
                    else media_bytes(part) or b"",
                )


def list_media(prompt: Prompt | None) -> Iterator[MediaPart]:
    """Yield the media of a prompt in their order."""
    for turn in () if prompt is None or isinstance(prompt, str) else prompt:
        yield from turn.media


def find_media(run: Path, part: MediaPart) -> Path | None:
    """Return the file in a run folder that keeps a medium, or None."""
    name = _name(part)
    path = None if name is None else run / MEDIA / name
    return path if path is not None and path.is_file() and not path.is_symlink() else None


def read_media(path: Path) -> bytes | None:
    """Return the bytes of a kept medium, or None if they are not those of its name."""
    with suppress(OSError):
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            content = file.read(MOST_OF_ONE + 1)
        if hashlib.sha256(content).hexdigest() == path.stem:
            return content
    return None


def merge_media(shards: Iterable[Path], run: Path) -> None:
    """Copy the media of all shards of a run that it does not have yet. Raises OSError."""
    for file in (file for shard in shards for file in sorted((shard / MEDIA).glob("*"))):
        content = None if (run / MEDIA / file.name).exists() else read_media(file)
        if content is not None:
            (run / MEDIA).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(run / MEDIA / file.name, content)


def _name(part: MediaPart) -> str | None:
    known = isinstance(part, MediaFile) and part.media_type in EXTENSIONS
    if not isinstance(part, MediaFile) or not known or not _CHECKSUM.fullmatch(part.sha256):
        return None
    return f"{part.sha256}.{EXTENSIONS[part.media_type]}"
