"""Make the parts of a turn from images, sounds and videos, given as bytes or as files.

The type of a medium is recognised by its first bytes, never by the name of its file. The bytes of
a file are not kept: a MediaFile has its place and its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from serve_eval.datasets import manifest
from serve_eval.errors import DatasetError
from serve_eval.schema import AudioForm, MediaFile, MediaForm, MediaPart
from serve_eval.schema.media import make_part
from serve_eval.schema.media_types import HEAD_BYTES, IMAGES, SOUNDS, VIDEOS, recognise_media


def image_part(source: bytes | Path, where: str = "") -> MediaPart:
    """Return the part for an image. Raises DatasetError for another type; `where` names it."""
    return _part("image_url", source, where, "image", IMAGES)


def audio_part(
    source: bytes | Path, where: str = "", *, form: AudioForm = "input_audio"
) -> MediaPart:
    """Return the part for a sound. Raises DatasetError for another type; `where` names it.

    OpenAI and llama-server take `input_audio`; vLLM and trtllm-serve take both forms.
    """
    return _part(form, source, where, "sound", SOUNDS)


def video_part(source: bytes | Path, where: str = "") -> MediaPart:
    """Return the part for a video. Raises DatasetError for another type; `where` names it."""
    return _part("video_url", source, where, "video", VIDEOS)


def _part(
    form: MediaForm,
    source: bytes | Path,
    where: str,
    kind: str,
    types: Mapping[str, str],
) -> MediaPart:
    if isinstance(source, bytes):
        return make_part(form, _recognise(source, where, kind, types), source)
    checksum, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as file:
            found = _recognise(file.read(HEAD_BYTES), where or str(source), kind, types)
            file.seek(0)
            while piece := file.read(1 << 20):
                checksum.update(piece)
                size += len(piece)
    except OSError as error:
        raise DatasetError(f"{source}: {error.strerror or error}") from error
    manifest.check_sha256(source, checksum.hexdigest())
    return MediaFile(
        form=form,
        path=str(source.absolute()),
        media_type=found,
        size=size,
        sha256=checksum.hexdigest(),
    )


def _recognise(head: bytes, where: str, kind: str, types: Mapping[str, str]) -> str:
    found = recognise_media(head)
    if found is None or found not in types:
        *names, last = dict.fromkeys(types.values())
        article = "an" if names[0][0] in "AEIOU" else "a"
        raise DatasetError(f"{where}: not {article} {', '.join(names)} or {last} {kind}")
    return found
