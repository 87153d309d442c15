"""Test media in turns: the parts that are sent, files in place of bytes, and their checksums."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import msgspec
import pytest

from serve_eval.errors import DatasetError
from serve_eval.protocol.fingerprint import sample_key
from serve_eval.schema import (
    AudioForm,
    AudioUrl,
    AudioUrlPart,
    ImagePart,
    InputAudio,
    InputAudioPart,
    MediaFile,
    MediaForm,
    MediaPart,
    Message,
    Sample,
    TextPart,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.media import (
    describe,
    inline,
    link,
    make_part,
    media_sha256,
    media_url,
    prompt_sha256,
)

CONTENT = b"\x00\x01 not really a medium \xff"
DATA = base64.b64encode(CONTENT).decode()
TYPES: dict[MediaForm, str] = {
    "image_url": "image/png",
    "input_audio": "audio/mpeg",
    "audio_url": "audio/wav",
    "video_url": "video/mp4",
}


def _file(path: Path, form: MediaForm) -> MediaFile:
    path.write_bytes(CONTENT)
    return MediaFile(
        form=form,
        path=str(path),
        media_type=TYPES[form],
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def _prompt(part: MediaPart) -> tuple[Message, ...]:
    return (Message(role="user", content=(part, TextPart(text="What is it?"))),)


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ("image_url", {"image_url": {"url": f"data:image/png;base64,{DATA}"}}),
        ("input_audio", {"input_audio": {"data": DATA, "format": "mp3"}}),
        ("audio_url", {"audio_url": {"url": f"data:audio/wav;base64,{DATA}"}}),
        ("video_url", {"video_url": {"url": f"data:video/mp4;base64,{DATA}"}}),
    ],
)
def test_a_file_is_sent_as_a_part_that_holds_its_bytes(
    tmp_path: Path, form: MediaForm, sent: dict[str, object]
) -> None:
    part = inline(_file(tmp_path / "a b", form))
    assert msgspec.to_builtins(part) == {"type": form, **sent}
    assert part == make_part(form, TYPES[form], CONTENT)


@pytest.mark.parametrize("form", list(TYPES))
def test_a_file_can_be_sent_as_a_path(tmp_path: Path, form: MediaForm) -> None:
    url = media_url(link(_file(tmp_path / "a b", form)))
    assert url == (tmp_path / "a b").resolve().as_uri()
    assert url.endswith("/a%20b")


@pytest.mark.parametrize("form", list(TYPES))
def test_a_file_has_the_hash_of_the_part_that_a_server_receives(
    tmp_path: Path, form: MediaForm
) -> None:
    file = _file(tmp_path / "a", form)
    there = _file(tmp_path / "b", form)
    received = msgspec.json.decode(msgspec.json.encode(_prompt(inline(file))), type=list[Message])
    assert prompt_sha256(_prompt(file)) == prompt_sha256(tuple(received))
    assert prompt_sha256(_prompt(file)) == prompt_sha256(_prompt(there))
    other = msgspec.structs.replace(inline(file), **_another(form))
    assert prompt_sha256(_prompt(file)) != prompt_sha256(_prompt(other))
    keys = {sample_key(Sample(id="1", prompt=_prompt(p), target="")) for p in (file, there, other)}
    assert len(keys) == 2


def _another(form: MediaForm) -> dict[str, object]:
    part = make_part(form, TYPES[form], CONTENT + b"!")
    return {form: getattr(part, form)}


def test_the_form_of_a_sound_is_no_other_prompt(tmp_path: Path) -> None:
    forms: tuple[AudioForm, ...] = ("input_audio", "audio_url")
    assert len({prompt_sha256(_prompt(_file(tmp_path / "a", form))) for form in forms}) == 1
    assert prompt_sha256(_prompt(_file(tmp_path / "a", "video_url"))) != prompt_sha256(
        _prompt(_file(tmp_path / "a", "audio_url"))
    )


def test_prompts_of_texts_and_images_keep_their_hashes() -> None:
    image = make_part("image_url", "image/png", b"pixel")
    assert prompt_sha256((Message(role="user", content="Hi"),)) == (
        "8b1450277179b15b70831cee0e0ec563f04eb6c717d27070114931cba4b59d4e"
    )
    assert prompt_sha256(_prompt(image)) == (
        "84297d158ce6b06248cd75711e7eafb22c01995fdf95c4bb66ab4b4b1620b451"
    )


def test_a_missing_and_a_changed_file_are_named(tmp_path: Path) -> None:
    file = _file(tmp_path / "a", "video_url")
    (tmp_path / "a").write_bytes(b"another")
    with pytest.raises(DatasetError, match="a: the file has changed since the data set was read"):
        inline(file)
    (tmp_path / "a").unlink()
    with pytest.raises(DatasetError, match="a: No such file or directory"):
        inline(file)


@pytest.mark.parametrize("form", list(TYPES))
def test_the_description_of_a_medium_has_neither_bytes_nor_path(
    tmp_path: Path, form: MediaForm
) -> None:
    file = _file(tmp_path / "a", form)
    described = describe(file)
    assert described == describe(inline(file)) == msgspec.structs.replace(file, path="")
    kind, checksum = TYPES[form], file.sha256[:12]
    assert media_url(described) == f"data:{kind};base64,... (24 bytes, sha256 {checksum})"


def test_a_medium_elsewhere_is_described_by_its_url() -> None:
    for part in (
        VideoPart(video_url=VideoUrl(url="file:///data/a.mp4")),
        AudioUrlPart(audio_url=AudioUrl(url="data:audio/wav;base64,???")),
        InputAudioPart(input_audio=InputAudio(data="???", format="wav")),
    ):
        assert describe(part) is part
        assert media_sha256(part) == hashlib.sha256(media_url(part).encode()).hexdigest()


def test_a_turn_tells_its_media_and_its_images(tmp_path: Path) -> None:
    image = make_part("image_url", "image/png", b"pixel")
    file, video = (_file(tmp_path / "a", form) for form in ("image_url", "video_url"))
    turn = Message(role="user", content=(video, TextPart(text="a"), image, file))
    assert isinstance(image, ImagePart)
    assert (turn.media, turn.images, turn.text) == ((video, image, file), (image, file), "a")
    assert (Message(role="user", content="a").media, Message(role="user", content="a").images) == (
        (),
        (),
    )
