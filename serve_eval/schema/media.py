"""Read the bytes of media, and turn files into the parts that are sent."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.errors import DatasetError
from serve_eval.schema.content import (
    AudioUrl,
    AudioUrlPart,
    ImagePart,
    ImageUrl,
    InputAudio,
    InputAudioPart,
    MediaFile,
    MediaForm,
    MediaPart,
    SentPart,
    TextPart,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.sample import Message, Prompt
from serve_eval.schema.task import Need

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
