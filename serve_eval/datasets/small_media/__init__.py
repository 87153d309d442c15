"""A spoken number, a coloured shape and a moving dot, to see if an endpoint hears and sees.

training/small_media.py makes the files.
"""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import AudioForm, SentPart
from serve_eval.schema.media import make_part

_FOLDER = Path(__file__).parent


def number(form: AudioForm = "input_audio") -> SentPart:
    """Return the sound in which a voice says that the number is seven."""
    return make_part(form, "audio/wav", (_FOLDER / "number.wav").read_bytes())


def shape() -> SentPart:
    """Return the image of a red circle on a white ground."""
    return make_part("image_url", "image/png", (_FOLDER / "shape.png").read_bytes())


def dot() -> SentPart:
    """Return the video in which a white dot moves from the left to the right on a black ground."""
    return make_part("video_url", "video/mp4", (_FOLDER / "dot.mp4").read_bytes())
