"""Test how media are recognised by their bytes, and videos become frames."""

from __future__ import annotations

import hashlib
import io
import sys
import wave
from pathlib import Path

import pytest

from serve_eval.datasets import source
from serve_eval.datasets.media import audio_part, choose_frames, image_part, take_frames, video_part
from serve_eval.errors import DatasetError
from serve_eval.schema import ImagePart, InputAudioPart, MediaFile
from serve_eval.schema.media import media_bytes, recognise_media
from tests.datasets.videos import grey_of, write_tone, write_video

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


@pytest.mark.parametrize(
    ("total", "wanted", "rate", "places"),
    [
        (100, 8, 25.0, [0, 14, 28, 42, 56, 70, 84, 99]),
        (8, 8, 25.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (5, 8, 25.0, [0, 1, 2, 3, 4]),
        (12, 8, 60.0, [0, 2, 4, 6, 8, 11]),  # a fifth of a second: 6 of 30 per second
        (1, 8, 25.0, [0]),
        (10, 1, 25.0, [0]),
        (1, 8, 240.0, [0]),
    ],
)
def test_frames_are_equally_far_apart(
    total: int, wanted: int, rate: float, places: list[int]
) -> None:
    assert choose_frames(total, wanted, rate) == places


def test_the_chosen_frames_are_taken_in_order(tmp_path: Path) -> None:
    write_video(tmp_path / "v.avi", 100)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    taken = take_frames(tmp_path / "v.avi", 8, "png", env)
    assert [grey_of(picture) for picture in taken] == [0, 14, 28, 42, 56, 70, 84, 99]
    assert {picture.suffix for picture in taken} == {".png"}
    near = [grey_of(picture) for picture in take_frames(tmp_path / "v.avi", 2, "jpeg", env)]
    assert near == pytest.approx([0, 99], abs=2)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_compressed_videos_too(tmp_path: Path, codec: str) -> None:
    write_video(tmp_path / "v.mp4", 50, codec=codec, first=100)
    taken = take_frames(tmp_path / "v.mp4", 8, "png", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    wanted = [100, 107, 114, 121, 128, 135, 142, 149]
    assert [grey_of(picture) for picture in taken] == pytest.approx(wanted, abs=4)


def test_a_video_is_decoded_once_and_again_if_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, env = tmp_path / "v.avi", {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    write_video(video, 10)
    first = take_frames(video, 2, "png", env)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "av", None)
        assert take_frames(video, 2, "png", env) == first
        with pytest.raises(DatasetError, match="need the package av") as raised:
            take_frames(video, 3, "png", env)
        assert "[media]" in raised.value.hint
    write_video(video, 10, first=50)
    assert [grey_of(picture) for picture in take_frames(video, 2, "png", env)] == [50, 59]


def test_videos_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    whole = tmp_path / "whole.mkv"
    write_video(whole, 40, codec="libx264")
    (tmp_path / "cut.mkv").write_bytes(whole.read_bytes()[: whole.stat().st_size * 7 // 10])
    write_video(tmp_path / "whole.mp4", 40, codec="mpeg4")
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "whole.mp4").read_bytes()[:300])
    write_tone(tmp_path / "tone.wav")
    (tmp_path / "text.mp4").write_text("not a video")
    for name, what in (
        ("cut.mkv", r"cut\.mkv: only \d+ of its 40 frames can be read"),
        ("cut.mp4", r"cut\.mp4: cannot be read as a video"),
        ("text.mp4", r"text\.mp4: cannot be read as a video"),
        ("tone.wav", r"tone\.wav: the file has no video stream"),
        ("none.mp4", r"none\.mp4: No such file"),
    ):
        with pytest.raises(DatasetError, match=what) as raised:
            take_frames(tmp_path / name, 8, "png", env)
        assert "cut" not in name or "Copy the file again" in raised.value.hint
    assert not list((tmp_path / "cache").glob("serve-eval/frames/*/8-png"))
