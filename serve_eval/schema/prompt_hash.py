"""Numbers derived from a prompt, on which the run and the simulated endpoint must agree."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import msgspec

from serve_eval.schema.content import (
    AudioUrl,
    AudioUrlPart,
    ImagePart,
    MediaFile,
    MediaPart,
    TextPart,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.media import inline, media_kind, media_sha256
from serve_eval.schema.sample import Message, Prompt


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
