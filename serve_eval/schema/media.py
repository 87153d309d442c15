"""Read the bytes of media, and hash the prompts that hold them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import DatasetError
from serve_eval.schema.sample import (
    AudioUrl,
    AudioUrlPart,
    ImagePart,
    ImageUrl,
    InputAudio,
    InputAudioPart,
    MediaFile,
    MediaForm,
    MediaPart,
    Message,
    Prompt,
    SentPart,
    TextPart,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.task import Need

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


MediaKind = Literal["image", "sound", "video"]
_NEEDS: Mapping[MediaKind, Need] = {
    "image": Need.IMAGES,
    "sound": Need.AUDIO,
    "video": Need.VIDEO,
}
MEDIA_NEEDS = frozenset(_NEEDS.values())
"""The needs of prompts with media; each of these prompts has at least one of them."""
_BY_URL: Mapping[MediaForm, Callable[[str], SentPart]] = {
    "image_url": lambda url: ImagePart(image_url=ImageUrl(url=url)),
    "audio_url": lambda url: AudioUrlPart(audio_url=AudioUrl(url=url)),
    "video_url": lambda url: VideoPart(video_url=VideoUrl(url=url)),
}
_FORMS: Mapping[type[SentPart], MediaForm] = {
    ImagePart: "image_url",
    InputAudioPart: "input_audio",
    AudioUrlPart: "audio_url",
    VideoPart: "video_url",
}


def make_part(form: MediaForm, media_type: str, content: bytes) -> SentPart:
    """Return the part of type `form` that holds these bytes in base64."""
    data = base64.b64encode(content).decode()
    if form == "input_audio":
        name = media_type.partition("/")[2].replace("mpeg", "mp3")
        return InputAudioPart(input_audio=InputAudio(data=data, format=name))
    return _BY_URL[form](f"data:{media_type};base64,{data}")


def read_media_file(file: MediaFile) -> bytes:
    """Return the bytes of a file. Raises DatasetError if it is missing or has changed."""
    try:
        content = Path(file.path).read_bytes()
    except OSError as error:
        raise DatasetError(f"{file.path}: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise DatasetError(
            f"{file.path}: the file has changed since the data set was read",
            hint="Run again: a run takes the file as it is when the run begins.",
        )
    return content


def inline(file: MediaFile) -> SentPart:
    """Return the part that holds the bytes of a file. Raises DatasetError as `read_media_file`."""
    return make_part(file.form, file.media_type, read_media_file(file))


def link(file: MediaFile) -> SentPart:
    """Return the part that names a file by its path, for servers that may read it."""
    form: MediaForm = "audio_url" if file.form == "input_audio" else file.form
    return _BY_URL[form](Path(file.path).resolve().as_uri())


def media_url(part: MediaPart) -> str:
    """Return the URL of a medium: of a file its type, size and checksum in place of its bytes."""
    match part:
        case ImagePart():
            return part.image_url.url
        case InputAudioPart():
            name = part.input_audio.format.replace("mp3", "mpeg")
            return f"data:audio/{name};base64,{part.input_audio.data}"
        case AudioUrlPart():
            return part.audio_url.url
        case VideoPart():
            return part.video_url.url
        case MediaFile():
            return (
                f"data:{part.media_type};base64,... ({part.size} bytes, sha256 {part.sha256[:12]})"
            )


def media_form(part: MediaPart) -> MediaForm:
    """Return the type of the part as which a medium is sent."""
    return part.form if isinstance(part, MediaFile) else _FORMS[type(part)]


def media_kind(part: MediaPart) -> MediaKind:
    """Return what a medium is."""
    form = media_form(part)
    return "image" if form == "image_url" else "video" if form == "video_url" else "sound"


def list_media_needs(prompt: Prompt) -> set[Need]:
    """Return what an endpoint needs for the media of a prompt."""
    if isinstance(prompt, str):
        return set()
    return {_NEEDS[media_kind(part)] for turn in prompt for part in turn.media}


def describe(part: MediaPart) -> MediaPart:
    """Return what a medium is without its bytes and its path; one that is elsewhere as it is."""
    if isinstance(part, MediaFile):
        return msgspec.structs.replace(part, path="")
    content = media_bytes(part)
    if content is None:
        return part
    return MediaFile(
        form=_FORMS[type(part)],
        path="",
        media_type=media_url(part)[len("data:") :].partition(";")[0],
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def describe_turn(turn: Message) -> Message:
    """Return a turn with descriptions in place of its media."""
    if isinstance(turn.content, str):
        return turn
    parts = (part if isinstance(part, TextPart) else describe(part) for part in turn.content)
    return replace(turn, content=tuple(parts))


def media_sha256(part: MediaPart) -> str:
    """Return the hex SHA-256 of the bytes of a medium; of its URL, if that does not hold them."""
    if isinstance(part, MediaFile):
        return part.sha256
    content = media_bytes(part)
    return hashlib.sha256(media_url(part).encode() if content is None else content).hexdigest()


def media_bytes(part: SentPart) -> bytes | None:
    """Return the bytes that a part holds in base64, or None."""
    head, mark, data = media_url(part).partition(";base64,")
    if not mark or not head.startswith("data:"):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def prompt_sha256(prompt: Prompt) -> str:
    """Return the hex SHA-256 of a prompt.

    It is that of a text's UTF-8, or of the compact JSON list of [role, content] pairs of messages,
    including images as they are sent, and sounds and videos by their checksums.
    """
    if isinstance(prompt, str):
        return hashlib.sha256(prompt.encode()).hexdigest()
    return hashlib.sha256(
        msgspec.json.encode([[turn.role, turn.content] for turn in map(put_checksums, prompt)])
    ).hexdigest()


def without_answers(prompt: Sequence[Message]) -> tuple[Message, ...]:
    """Return the turns of a chat that no model wrote, and that are no results of its calls."""
    return tuple(turn for turn in prompt if turn.role not in ("assistant", "tool"))


def put_checksums(turn: Message) -> Message:
    """Return a turn as it is hashed: images in base64, sounds and videos as their checksums.

    Neither the path of a file nor the form in which a sound is sent matters. Raises DatasetError if
    the file of an image is missing or has changed.
    """
    if isinstance(turn.content, str) or not turn.media:
        return turn
    return replace(turn, content=tuple(map(_put_checksum, turn.content)))


def _put_checksum(part: TextPart | MediaPart) -> TextPart | MediaPart:
    if isinstance(part, TextPart | ImagePart):
        return part
    if isinstance(part, MediaFile) and part.form == "image_url":
        return inline(part)
    checksum = f"sha256:{media_sha256(part)}"
    if media_kind(part) == "video":
        return VideoPart(video_url=VideoUrl(url=checksum))
    return AudioUrlPart(audio_url=AudioUrl(url=checksum))


def uniform(key: str) -> float:
    """Return a number in [0, 1] that is fixed for a key and looks uniformly random over keys."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
