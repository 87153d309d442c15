"""The content of a turn: texts, images, sounds and videos, in their order.

Parts have the form in which they are sent. A MediaFile stands for a part whose bytes lie in a
file: it is read when its request is built, so that samples do not hold videos in memory.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """Text within a turn that also has media."""

    text: str


class ImageUrl(Struct, frozen=True):
    """The URL of an image: here always a `data:image/...;base64,` URL that holds it."""

    url: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """An image within a turn."""

    image_url: ImageUrl


class InputAudio(Struct, frozen=True):
    """A sound in base64 with its format: wav or mp3 at OpenAI, others at some servers."""

    data: str
    format: str


class InputAudioPart(Struct, frozen=True, tag="input_audio", tag_field="type"):
    """A sound within a turn, in the form of OpenAI."""

    input_audio: InputAudio


class AudioUrl(Struct, frozen=True):
    """The URL of a sound, as a rule a `data:audio/...;base64,` URL that holds it."""

    url: str


class AudioUrlPart(Struct, frozen=True, tag="audio_url", tag_field="type"):
    """A sound within a turn, in a form of vLLM and trtllm-serve."""

    audio_url: AudioUrl


class VideoUrl(Struct, frozen=True):
    """The URL of a video, as a rule a `data:video/...;base64,` URL that holds it."""

    url: str


class VideoPart(Struct, frozen=True, tag="video_url", tag_field="type"):
    """A video within a turn, in the form of vLLM and trtllm-serve."""

    video_url: VideoUrl


AudioForm = Literal["input_audio", "audio_url"]
MediaForm = Literal["image_url", "input_audio", "audio_url", "video_url"]
"""The type of the part as which a medium is sent."""


class MediaFile(Struct, frozen=True, kw_only=True, tag="local_file", tag_field="type"):
    """An image, a sound or a video in a file, which the client sends as a part of type `form`.

    `size` is in bytes. `sha256` is the checksum of the bytes in hexadecimal.
    """

    form: MediaForm
    path: str
    media_type: str
    size: int
    sha256: str


SentPart = ImagePart | InputAudioPart | AudioUrlPart | VideoPart
"""A medium as it is sent."""
MediaPart = SentPart | MediaFile
Content = str | tuple[TextPart | MediaPart, ...]
