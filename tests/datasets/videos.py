"""Make tiny videos and sounds, to the same bytes on every machine where that matters."""

import math
import struct
import wave
from fractions import Fraction

EDGE = 16


def write_video(path, frames, *, rate=25, codec="rawvideo", first=0):
    """Write a video whose frame i is a picture of the grey value first + i.

    An .avi of the codec rawvideo has the same bytes wherever it is written.
    """
    import av
    import numpy

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width = stream.height = EDGE
        stream.pix_fmt = "bgr24" if codec == "rawvideo" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        for place in range(frames):
            grey = numpy.full((EDGE, EDGE, 3), (first + place) % 256, dtype=numpy.uint8)
            frame = av.VideoFrame.from_ndarray(grey, format="bgr24")
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = place, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_tone(path, seconds=0.05, hertz=440.0):
    """Write a WAV file with a tone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = 8000
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", "not compressed"))
        file.writeframes(
            b"".join(
                struct.pack("<h", int(9000 * math.sin(2 * math.pi * hertz * i / rate)))
                for i in range(int(seconds * rate))
            )
        )


def grey_of(picture):
    """Return the grey value of the middle of a picture."""
    from PIL import Image

    with Image.open(picture) as image:
        value = image.convert("L").getpixel((EDGE // 2, EDGE // 2))
    assert isinstance(value, int)
    return value
