"""Test that a run folder keeps small media once, and gives out nothing that it does not keep."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from serve_eval.datasets.media import video_part
from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.schema import HOLDOUT, MediaFile, MediaPart, Message, Sample
from serve_eval.schema.media import describe, make_part
from serve_eval.storage.records.prompts import (
    MOST_OF_ONE,
    find_media,
    keep_media,
    merge_media,
    read_media,
)


def _sample(name: str, *parts: MediaPart, **metadata: str) -> Sample:
    turn = Message(role="user", content=parts)
    return Sample(id=name, prompt=(turn,), target="", metadata=metadata)


def _names(run: Path) -> list[str]:
    return sorted(path.suffix for path in (run / "media").glob("*"))


def test_each_medium_is_kept_once_by_its_checksum(tmp_path: Path) -> None:
    samples = [_sample("1", shape(), number(), dot()), _sample("2", shape())]
    keep_media(tmp_path, [*samples, Sample(id="3", prompt="text", target="")])
    assert _names(tmp_path) == [".mp4", ".png", ".wav"]
    for part in (shape(), number(), dot()):
        path = find_media(tmp_path, describe(part))
        assert path is not None
        content = read_media(path)
        assert content is not None
        assert hashlib.sha256(content).hexdigest() == path.stem
        assert path.stat().st_mode & 0o777 == 0o600
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "media").iterdir()}
    keep_media(tmp_path, samples)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "media").iterdir()} == kept


def test_large_media_and_those_of_a_hold_out_are_not_kept(tmp_path: Path) -> None:
    large = tmp_path / "large.mp4"
    large.write_bytes(b"\x00\x00\x00\x20ftypisom" + bytes(MOST_OF_ONE))
    hidden = _sample("2", shape(), **{HOLDOUT: "1"})
    keep_media(tmp_path / "run", [_sample("1", video_part(large)), hidden])
    assert not (tmp_path / "run").exists()
    assert find_media(tmp_path / "run", describe(shape())) is None


def test_a_folder_is_not_filled_beyond_its_size(tmp_path: Path) -> None:
    images = [make_part("image_url", "image/gif", b"GIF8%04d" % i) for i in range(9)]
    keep_media(tmp_path, [_sample("1", *images[:3])], most_of_run=32)
    assert len(_names(tmp_path)) == 3
    keep_media(tmp_path, [_sample("2", *images)], most_of_run=32)
    assert len(_names(tmp_path)) == 4


def test_nothing_but_the_bytes_of_a_checksum_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    keep_media(run, [_sample("1", shape())])
    part = describe(shape())
    assert isinstance(part, MediaFile)
    path = find_media(run, part)
    assert path is not None
    for sha256, media_type in (("../../x", "image/png"), (part.sha256, "image/../x")):
        changed = msgspec.structs.replace(part, sha256=sha256, media_type=media_type)
        assert find_media(run, changed) is None
    secret = tmp_path / path.name
    path.rename(secret)
    path.symlink_to(secret)
    assert find_media(run, part) is None
    assert read_media(path) is None
    path.unlink()
    path.write_bytes(b"another")
    assert read_media(path) is None


def test_shards_are_joined(tmp_path: Path) -> None:
    shards = [tmp_path / "1", tmp_path / "2", tmp_path / "none"]
    keep_media(shards[0], [_sample("1", shape())])
    keep_media(shards[1], [_sample("2", shape(), dot())])
    (tmp_path / "2" / "media" / "report.html").write_text("not a medium")
    merge_media(shards, tmp_path / "run")
    assert _names(tmp_path / "run") == [".mp4", ".png"]
