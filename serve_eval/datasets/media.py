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

HEAD_BYTES = 64
"""First bytes of a file that tell its type."""
IMAGES: Mapping[str, str] = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/gif": "GIF",
    "image/bmp": "BMP",
    "image/webp": "WebP",
}
SOUNDS: Mapping[str, str] = {
    "audio/wav": "WAV",
    "audio/mpeg": "MP3",
    "audio/flac": "FLAC",
    "audio/ogg": "Ogg",
    "audio/mp4": "M4A",
}
VIDEOS: Mapping[str, str] = {
    "video/mp4": "MP4",
    "video/quicktime": "QuickTime",
    "video/webm": "WebM",
    "video/x-matroska": "Matroska",
    "video/x-msvideo": "AVI",
    "video/ogg": "Ogg",
}
_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
)
_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}
_BRANDS = {b"M4A ": "audio/mp4", b"M4B ": "audio/mp4", b"qt  ": "video/quicktime"}


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


def media_type(head: bytes) -> str | None:
    """Return the type of a medium by its first bytes, such as "video/mp4", or None."""
    for start, found in _STARTS:
        if head.startswith(start):
            return found
    if head[:4] in (b"RIFF", b"RF64"):
        return _RIFF.get(head[8:12])
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "video/mp4")
    if head[:4] == b"OggS":
        return "video/ogg" if b"\x80theora" in head else "audio/ogg"
    if head[:4] == b"\x1aE\xdf\xa3":  # EBML; the name of its kind follows
        return "video/webm" if b"webm" in head else "video/x-matroska"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2:  # MPEG audio, layer III
        return "audio/mpeg"
    return None


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
    found = media_type(head[:HEAD_BYTES])
    if found is None or found not in types:
        *names, last = dict.fromkeys(types.values())
        article = "an" if names[0][0] in "AEIOU" else "a"
        raise DatasetError(f"{where}: not {article} {', '.join(names)} or {last} {kind}")
    return found
