"""Make the parts of a turn from images, sounds and videos or their frames.

The type of a medium is recognised by its first bytes, never by the name of its file. The bytes of
a file are not kept: a MediaFile has its place and its checksum.

Videos are decoded one after another when a data set is read, and never again: a picture is kept as
a file whose folder is named after the checksum of the video. So a run holds no frame of a video
that it is not just sending, and the pictures of a video that changed are not used.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from serve_eval.datasets import source as datasets_source
from serve_eval.errors import DatasetError, install_hint
from serve_eval.schema import AudioForm, MediaFile, MediaForm, MediaPart
from serve_eval.schema.media import HEAD_BYTES, IMAGES, SOUNDS, VIDEOS, make_part, recognise_media

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


def image_part(source: bytes | Path, where: str = "") -> MediaPart:
    """Return the part for an image. Raises DatasetError for another type; `where` names it."""
    return _part("image_url", source, where, "image", IMAGES)


def audio_part(
    source: bytes | Path, where: str = "", *, form: AudioForm = "input_audio"
) -> MediaPart:
    """Return the part for a sound. Raises DatasetError for another type; `where` names it.

    OpenAI and llama-server take `input_audio`; vLLM and trtllm-serve take both forms.
    """
    return _part(form, source, where, "sound", SOUNDS)


def video_part(source: bytes | Path, where: str = "") -> MediaPart:
    """Return the part for a video. Raises DatasetError for another type; `where` names it."""
    return _part("video_url", source, where, "video", VIDEOS)


def _part(
    form: MediaForm,
    source: bytes | Path,
    where: str,
    kind: str,
    types: Mapping[str, str],
) -> MediaPart:
    if isinstance(source, bytes):
        return make_part(form, _recognise(source, where, kind, types), source)
    checksum, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as file:
            found = _recognise(file.read(HEAD_BYTES), where or str(source), kind, types)
            file.seek(0)
            while piece := file.read(1 << 20):
                checksum.update(piece)
                size += len(piece)
    except OSError as error:
        raise DatasetError(f"{source}: {error.strerror or error}") from error
    datasets_source.check_sha256(source, checksum.hexdigest())
    return MediaFile(
        form=form,
        path=str(source.absolute()),
        media_type=found,
        size=size,
        sha256=checksum.hexdigest(),
    )


def _recognise(head: bytes, where: str, kind: str, types: Mapping[str, str]) -> str:
    found = recognise_media(head)
    if found is None or found not in types:
        *names, last = dict.fromkeys(types.values())
        article = "an" if names[0][0] in "AEIOU" else "a"
        raise DatasetError(f"{where}: not {article} {', '.join(names)} or {last} {kind}")
    return found


FrameFormat = Literal["png", "jpeg"]

MOST_PER_SECOND = 30
"""Frames per second of a video that are taken at most, as in TensorRT-LLM's suite."""
JPEG_QUALITY = 95
LEAST_DECODED = 0.9
"""Share of the announced frames below which a file is taken to be cut off."""


def choose_frames(total: int, wanted: int, rate: float) -> list[int]:
    """Return the places of at most `wanted` of `total` frames, the first and the last included.

    They are equally far apart, rounded down, as in the suite. `rate` is in frames per second; of a
    very short video fewer frames are taken.
    """
    import numpy

    count = max(1, min(wanted, total, int(total / rate * MOST_PER_SECOND)))
    return [int(place) for place in numpy.linspace(0, total - 1, count, dtype=int)]


def take_frames(
    video: Path, wanted: int, form: FrameFormat, environ: Mapping[str, str] = os.environ
) -> list[Path]:
    """Return the files of the frames of a video in their order.

    Raises DatasetError if the video cannot be read to its end, and if the package is missing.
    """
    folder = _cache(environ) / _checksum(video) / f"{wanted}-{form}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "frames"
            made.mkdir()
            for place, content in enumerate(_decode(video, wanted, form)):
                (made / f"{place:04}.{form}").write_bytes(content)
            _publish(made, folder)
    return sorted(folder.iterdir())


def _cache(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serve-eval" / "frames"


def _publish(made: Path, folder: Path) -> None:
    """Move a finished folder into place. Another process may have been faster."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _checksum(video: Path) -> str:
    try:
        with video.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DatasetError(f"{video}: {error.strerror or error}") from error


def _decode(video: Path, wanted: int, form: FrameFormat) -> Iterator[bytes]:
    """Yield the chosen frames, encoded."""
    try:
        import av
    except ImportError as error:
        raise DatasetError(
            f"{video}: frames need the package av", hint=install_hint("media")
        ) from error
    try:
        with av.open(str(video)) as container:
            if not container.streams.video:
                raise DatasetError(f"{video}: the file has no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            total, rate = _measure(container, stream, video)
            places = choose_frames(total, wanted, rate)
            yield from _encode(container.decode(stream), places, form, video)
    except av.FFmpegError as error:
        raise DatasetError(
            f"{video}: cannot be read as a video: {error.strerror}",
            hint="Copy the file again: it may be cut off.",
        ) from error


def _measure(container: InputContainer, stream: VideoStream, video: Path) -> tuple[int, float]:
    """Return the number of frames that the file announces, and the frames per second."""
    rate = float(stream.guessed_rate or stream.average_rate or 0)
    length_s = (container.duration or 0) / 1e6
    total = stream.frames or int(length_s * rate + 0.5)
    if total < 1 or rate <= 0.0:
        raise DatasetError(f"{video}: the file has no frames, or no frame rate")
    return total, rate


def _encode(
    frames: Iterator[VideoFrame], places: Sequence[int], form: FrameFormat, video: Path
) -> Iterator[bytes]:
    """Yield the pictures at these places.

    The number of frames that a file announces can be a little too large; the last pictures are then
    left out, as in the suite. Raises DatasetError if much is missing.
    """
    chosen, decoded = set(places), 0
    for frame in islice(frames, places[-1] + 1):
        if decoded in chosen:
            picture = io.BytesIO()
            frame.to_image().save(  # type: ignore[no-untyped-call]
                picture, form, quality=JPEG_QUALITY
            )
            yield picture.getvalue()
        decoded += 1
    if decoded < LEAST_DECODED * (places[-1] + 1):
        raise DatasetError(
            f"{video}: only {decoded} of its {places[-1] + 1} frames can be read",
            hint="Copy the file again: it is cut off.",
        )
