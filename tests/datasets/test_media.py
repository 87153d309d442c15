"""Test that media are recognised by their bytes, and that files are not kept in memory."""

from __future__ import annotations

import hashlib
import io
import wave
from pathlib import Path

import pytest

from serve_eval.datasets import source
from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.errors import DatasetError
from serve_eval.schema import ImagePart, InputAudioPart, MediaFile
from serve_eval.schema.media import media_bytes, recognise_media

HEADS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/bmp": b"BM6\x00",
    "image/webp": b"RIFF\x10\x00\x00\x00WEBPVP8 ",
    "audio/wav": b"RIFF\x10\x00\x00\x00WAVEfmt ",
    "audio/flac": b"fLaC\x00",
    "audio/ogg": b"OggS\x00\x02" + b"\x00" * 22 + b"OpusHead",
    "audio/mp4": b"\x00\x00\x00\x20ftypM4A ",
    "video/mp4": b"\x00\x00\x00\x20ftypisom",
    "video/quicktime": b"\x00\x00\x00\x14ftypqt  ",
    "video/webm": b"\x1aE\xdf\xa3\x9f\x42\x82\x84webm",
    "video/x-matroska": b"\x1aE\xdf\xa3\x9f\x42\x82\x88matroska",
    "video/x-msvideo": b"RIFF\x10\x00\x00\x00AVI LIST",
    "video/ogg": b"OggS\x00\x02" + b"\x00" * 22 + b"\x80theora",
}


@pytest.mark.parametrize(
    ("head", "found"),
    [
        *((head, found) for found, head in HEADS.items()),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf3\x40", "audio/mpeg"),
        (b"", None),
        (b"\xff", None),
        (b"RIFF\x10\x00\x00\x00ACON", None),
        (b"{}", None),
    ],
)
def test_a_type_is_recognised_by_the_first_bytes(head: bytes, found: str | None) -> None:
    assert recognise_media(head) == found


def test_each_kind_of_part_takes_its_types_and_no_others() -> None:
    for found, head in HEADS.items():
        makers = {"image": image_part, "audio": audio_part, "video": video_part}
        kind = found.partition("/")[0]
        makers.pop(kind)(head)
        for make in makers.values():
            with pytest.raises(DatasetError, match=r"^here: not an? [A-Z]"):
                make(head, "here")


def test_bytes_become_the_part_that_is_sent() -> None:
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "not compressed"))
        file.writeframes(bytes(320))
    part = audio_part(sound.getvalue())
    assert isinstance(part, InputAudioPart)
    assert (part.input_audio.format, media_bytes(part)) == ("wav", sound.getvalue())
    image = image_part(HEADS["image/png"])
    assert isinstance(image, ImagePart)
    assert image.image_url.url.startswith("data:image/png;base64,")
    assert type(audio_part(HEADS["audio/ogg"], form="audio_url")).__name__ == "AudioUrlPart"


def test_a_file_becomes_a_place_with_a_checksum(tmp_path: Path) -> None:
    content = HEADS["video/mp4"] + bytes(3 << 20)
    path = tmp_path / "named.txt"
    path.write_bytes(content)
    assert video_part(path) == MediaFile(
        form="video_url",
        path=str(path),
        media_type="video/mp4",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    with pytest.raises(DatasetError, match=r"named\.txt: not a WAV, MP3, FLAC, Ogg or M4A sound"):
        audio_part(path)
    with pytest.raises(DatasetError, match=r"none\.mp4: No such file"):
        video_part(tmp_path / "none.mp4")


def test_a_fetched_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(HEADS["image/png"])
    entry = source.Entry(
        sha256="0" * 64,
        bytes=1,
        data_set="mmmu",
        source="",
        revision="",
        licence="",
        fetched_at="2026-01-01",
        known=True,
    )
    source.write(tmp_path, source.Manifest(files={"a.png": entry}))
    with pytest.raises(DatasetError, match=r"a\.png was changed since it was fetched"):
        image_part(path)
