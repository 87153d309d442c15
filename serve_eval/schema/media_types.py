"""Recognise the type of an image, a sound or a video by its first bytes."""

from __future__ import annotations

from collections.abc import Mapping

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
EXTENSIONS: Mapping[str, str] = {
    **{name: name.partition("/")[2] for name in (*IMAGES, *SOUNDS, *VIDEOS)},
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "video/quicktime": "mov",
    "video/x-matroska": "mkv",
    "video/x-msvideo": "avi",
    "video/ogg": "ogv",
}
"""The ending of a file of each type."""
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


def recognise_media(content: bytes) -> str | None:
    """Return the type of a medium by its first bytes, such as "video/mp4", or None."""
    head = content[:HEAD_BYTES]
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
