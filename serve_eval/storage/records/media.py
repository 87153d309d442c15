"""Keep small media of prompts in media/<sha256>.<type>, each once, and find them again.

A run folder of someone else may name any file: a name is made of a checksum and a known type only,
no link is followed, and bytes count only if they have the checksum.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from serve_eval.schema import HOLDOUT, MediaFile, MediaPart, Prompt, Sample
from serve_eval.schema.media import describe, media_bytes, read_media_file
from serve_eval.schema.media_types import EXTENSIONS
from serve_eval.storage.file_names import MEDIA
from serve_eval.whole_file import write_whole

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
                write_whole(folder / name, _read(part))


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


def _read(part: MediaPart) -> bytes:
    return read_media_file(part) if isinstance(part, MediaFile) else media_bytes(part) or b""
