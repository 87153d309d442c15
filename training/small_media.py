"""Make the small image, sound and video that probes and smoke send: python -m training.small_media.

Needs espeak-ng (Debian) for the voice, and Pillow and PyAV.
"""

from __future__ import annotations

import subprocess
import wave
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw

FOLDER = Path(__file__).parents[1] / "serve_eval" / "datasets" / "small_media"
SIDE = 128
"""Pixels of an edge of the image and of the video."""
FRAMES_PER_S, FRAMES = 8, 16
SAMPLES_PER_S = 16000
DOT = 16
"""Radius of the dot in pixels."""


def main() -> None:
    """Write number.wav, shape.png and dot.mp4."""
    FOLDER.mkdir(exist_ok=True)
    speak("The number is seven.", FOLDER / "number.wav")
    draw_dot(SIDE // 2, SIDE // 2, SIDE // 3, "red", "white").save(FOLDER / "shape.png")
    film(FOLDER / "dot.mp4")


def speak(text: str, path: Path) -> None:
    """Write the spoken text as 16-bit WAV with one channel and 16,000 samples per second."""
    voice = path.with_suffix(".voice.wav")
    command = ["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(voice), text]
    subprocess.run(command, check=True)  # noqa: S603  # a fixed text
    with wave.open(str(voice)) as file:
        rate, frames = file.getframerate(), file.readframes(file.getnframes())
    voice.unlink()
    said = np.frombuffer(frames, "<i2")
    places = np.arange(len(said) * SAMPLES_PER_S // rate) * rate / SAMPLES_PER_S
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLES_PER_S, 0, "NONE", ""))
        file.writeframes(np.interp(places, np.arange(len(said)), said).astype("<i2").tobytes())


def draw_dot(x: int, y: int, radius: int, colour: str, ground: str) -> Image.Image:
    """Return a square image with one dot."""
    image = Image.new("RGB", (SIDE, SIDE), ground)
    ImageDraw.Draw(image).ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    return image


def film(path: Path) -> None:
    """Write a video of two seconds in which a white dot moves from the left to the right."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=FRAMES_PER_S)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for number in range(FRAMES):
            x = DOT + number * (SIDE - 2 * DOT) // (FRAMES - 1)
            image = draw_dot(x, SIDE // 2, DOT, "white", "black")
            frame = av.VideoFrame.from_ndarray(np.asarray(image), "rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


if __name__ == "__main__":
    main()
