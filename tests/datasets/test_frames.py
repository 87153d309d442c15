from __future__ import annotations

import sys
from pathlib import Path

import pytest

from serve_eval.datasets.media import choose_frames, take_frames
from serve_eval.errors import DatasetError
from tests.datasets.videos import grey_of, write_tone, write_video


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
