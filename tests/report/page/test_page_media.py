"""Test that a page holds few small images, once each, and links the other media."""

from __future__ import annotations

from pathlib import Path

from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.report.page.columns import PageMedia
from serve_eval.schema import MediaPart, Message, Prompt, Sample, VideoPart, VideoUrl
from serve_eval.schema.media import describe_turn, media_url
from serve_eval.storage.records.prompts import keep_media


def _prompt(*parts: MediaPart) -> Prompt:
    return (describe_turn(Message(role="user", content=parts)),)


def _keep(run: Path, *parts: MediaPart) -> None:
    turn = Message(role="user", content=parts)
    keep_media(run, [Sample(id="1", prompt=(turn,), target="")])


def test_images_are_held_once_and_others_are_linked(tmp_path: Path) -> None:
    _keep(tmp_path / "a", shape(), dot())
    media = PageMedia(tmp_path)
    elsewhere = VideoPart(video_url=VideoUrl(url="https://host/a.mp4"))
    media.add(0, _prompt(shape(), dot(), number(), elsewhere), [tmp_path / "a"])
    media.add(1, "a text", [tmp_path / "a"])
    media.add(2, _prompt(shape()), [tmp_path / "none", tmp_path / "a"])
    found = media.to_json()
    [(key, held)] = dict(found["images"]).items()  # type: ignore[call-overload]
    assert held == media_url(shape())
    image = ["image: image/png, 707 bytes, sha256 " + key[:12], key, f"a/media/{key}.png"]
    rows: dict[int, list[list[str]]] = found["rows"]  # type: ignore[assignment]
    assert sorted(rows) == [0, 2]
    assert rows[2] == [image] == rows[0][:1]
    [video, sound, other] = rows[0][1:]
    assert video[0].startswith("video: video/mp4, 3,028 bytes, sha256 ")
    assert (video[1], video[2][:8], video[2][-4:]) == ("", "a/media/", ".mp4")
    assert sound[0].endswith(", not kept in the run folder")
    assert (sound[1:], other) == (["", ""], ["video, elsewhere", "", ""])


def test_a_page_elsewhere_links_nothing(tmp_path: Path) -> None:
    _keep(tmp_path / "a", shape())
    for folder in (None, tmp_path / "b"):
        media = PageMedia(folder)
        media.add(0, _prompt(shape()), [tmp_path / "a"])
        [[[_, key, link]]] = dict(media.to_json()["rows"]).values()  # type: ignore[call-overload]
        assert (len(key), link) == (64, "")


def test_images_beyond_the_room_are_linked_only(tmp_path: Path) -> None:
    _keep(tmp_path, shape())
    media = PageMedia(tmp_path, most_images=706)
    media.add(0, _prompt(shape()), [tmp_path])
    assert media.to_json()["images"] == {}
    [[[_, key, link]]] = dict(media.to_json()["rows"]).values()  # type: ignore[call-overload]
    assert (key, link[:6]) == ("", "media/")


def test_bytes_of_another_type_are_no_image(tmp_path: Path) -> None:
    _keep(tmp_path, shape())
    [file] = (tmp_path / "media").iterdir()
    file.write_bytes(b"<svg onload='1'/>")
    media = PageMedia(tmp_path)
    media.add(0, _prompt(shape()), [tmp_path])
    assert media.to_json()["images"] == {}
