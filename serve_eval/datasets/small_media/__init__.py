"""A spoken number, a coloured shape and a moving dot, to see if an endpoint hears and sees.

training/small_media.py makes the files.
"""

from __future__ import annotations

from pathlib import Path

from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.schema import AudioForm, MediaPart

__all__ = ["dot", "number", "shape"]

_FOLDER = Path(__file__).parent


def number(form: AudioForm = "input_audio") -> MediaPart:
    """Return the sound in which a voice says that the number is seven."""
    return audio_part((_FOLDER / "number.wav").read_bytes(), form=form)


def shape() -> MediaPart:
    """Return the image of a red circle on a white ground."""
    return image_part((_FOLDER / "shape.png").read_bytes())


def dot() -> MediaPart:
    """Return the video in which a white dot moves from the left to the right on a black ground."""
    return video_part((_FOLDER / "dot.mp4").read_bytes())
