"""Accept the images, sounds and videos of a request, or refuse them as multimodal servers do.

A medium must be of the type that its part names, and whole as far as its container shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serve_eval.launchers._http.requests import RefusedRequest, bad_request
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.schema import MediaFile, MediaForm, MediaPart, Message, Prompt, SentPart, TextPart
from serve_eval.schema.media import (
    IMAGES,
    SOUNDS,
    VIDEOS,
    MediaKind,
    make_part,
    media_bytes,
    media_kind,
    media_url,
    recognise_media,
)

_TYPES: Mapping[MediaKind, Mapping[str, str]] = {
    "image": IMAGES,
    "sound": SOUNDS,
    "video": VIDEOS,
}
_FORMS: Mapping[MediaKind, MediaForm] = {
    "image": "image_url",
    "sound": "audio_url",
    "video": "video_url",
}


def accept_media(prompt: Prompt, config: SimulatorConfig) -> Prompt:
    """Return a prompt with the bytes of the files that it names. Raises RefusedRequest."""
    if isinstance(prompt, str):
        return prompt
    return tuple(
        turn if isinstance(turn.content, str) else _accept(turn, turn.content, config)
        for turn in prompt
    )


def _accept(
    turn: Message, content: tuple[TextPart | MediaPart, ...], config: SimulatorConfig
) -> Message:
    parts = (p if isinstance(p, TextPart) else _accept_part(p, config) for p in content)
    return replace(turn, content=tuple(parts))


def _accept_part(part: MediaPart, config: SimulatorConfig) -> SentPart:
    if isinstance(part, MediaFile):
        raise bad_request("Unknown part type: local_file")
    kind = media_kind(part)
    if {"image": config.no_images, "sound": config.no_audio, "video": config.no_video}[kind]:
        raise bad_request(f"simulated does not support {kind} input")
    if media_url(part).startswith("file:"):
        part = _read_local(part, kind, config)
    content = media_bytes(part)
    if content is None:
        raise bad_request(f"the {kind} is neither valid base64 nor a file that may be read")
    if not config.any_media:
        found = recognise_media(content)
        if found not in _TYPES[kind]:
            raise bad_request(f"cannot identify the {kind}: its bytes are {found or 'unknown'}")
        if not _WHOLE.get(found or "", bool)(content):
            raise bad_request(f"the {kind} is truncated")
    return part


def _read_local(part: SentPart, kind: MediaKind, config: SimulatorConfig) -> SentPart:
    """Return the part with the bytes of the file that it names."""
    path = Path(unquote(urlsplit(media_url(part)).path)).resolve()
    if config.local_media is None:
        raise bad_request("Cannot load local files without local_media")
    if not path.is_relative_to(Path(config.local_media).resolve()):
        raise bad_request(f"The file path {path} must be a subpath of {config.local_media}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RefusedRequest(400, {"error": f"{path}: {error.strerror}"}) from error
    return make_part(_FORMS[kind], recognise_media(content) or "", content)


def _ends_png(content: bytes) -> bool:
    return content[-8:-4] == b"IEND"


def _fills_riff(content: bytes) -> bool:
    return 8 + int.from_bytes(content[4:8], "little") <= len(content)


def _fills_boxes(content: bytes) -> bool:
    """Return True if the boxes of an MP4 file end with the file, and describe its tracks."""
    place, names = 0, set[bytes]()
    while place + 8 <= len(content):
        size, names = int.from_bytes(content[place : place + 4]), {*names, content[place + 4 :][:4]}
        if size == 1:
            size = int.from_bytes(content[place + 8 : place + 16])
        place += size or len(content) - place
        if size and size < 8:
            return False
    return place == len(content) and b"moov" in names


_WHOLE: Mapping[str, Callable[[bytes], bool]] = {
    "image/png": _ends_png,
    "audio/wav": _fills_riff,
    "image/webp": _fills_riff,
    "video/x-msvideo": _fills_riff,
    "video/mp4": _fills_boxes,
    "video/quicktime": _fills_boxes,
    "audio/mp4": _fills_boxes,
}
"""Tests of whether a file is whole; other types are accepted by their beginning."""
