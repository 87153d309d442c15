"""Test how media are recognised by their bytes, made from videos, and sent in turns."""

import base64
import hashlib
import io
import sys
import wave

import msgspec
import pytest

from serve_eval.datasets import source
from serve_eval.datasets.media import audio_part, choose_frames, image_part, take_frames, video_part
from serve_eval.errors import DatasetError
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    AudioUrl,
    AudioUrlPart,
    ImagePart,
    InputAudio,
    InputAudioPart,
    MediaFile,
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
    media_bytes,
    media_sha256,
    media_url,
    prompt_sha256,
    recognise_media,
)
from tests.tasks.made_suites import grey_of, write_tone, write_video

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
def test_a_type_is_recognised_by_the_first_bytes(head, found):
    assert recognise_media(head) == found


def test_each_kind_of_part_takes_its_types_and_no_others():
    for found, head in HEADS.items():
        makers = {"image": image_part, "audio": audio_part, "video": video_part}
        kind = found.partition("/")[0]
        makers.pop(kind)(head)
        for make in makers.values():
            with pytest.raises(DatasetError, match=r"^here: not an? [A-Z]"):
                make(head, "here")


def test_bytes_become_the_part_that_is_sent():
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


def test_a_file_becomes_a_place_with_a_checksum(tmp_path):
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


def test_a_fetched_file_that_was_changed_is_refused(tmp_path):
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
def test_frames_are_equally_far_apart(total, wanted, rate, places):
    assert choose_frames(total, wanted, rate) == places


def test_the_chosen_frames_are_taken_in_order(tmp_path):
    write_video(tmp_path / "v.avi", 100)
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    taken = take_frames(tmp_path / "v.avi", 8, "png", env)
    assert [grey_of(picture) for picture in taken] == [0, 14, 28, 42, 56, 70, 84, 99]
    assert {picture.suffix for picture in taken} == {".png"}
    near = [grey_of(picture) for picture in take_frames(tmp_path / "v.avi", 2, "jpeg", env)]
    assert near == pytest.approx([0, 99], abs=2)


@pytest.mark.parametrize("codec", ["mpeg4", "libx264"])
def test_compressed_videos_too(tmp_path, codec):
    write_video(tmp_path / "v.mp4", 50, codec=codec, first=100)
    taken = take_frames(tmp_path / "v.mp4", 8, "png", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    wanted = [100, 107, 114, 121, 128, 135, 142, 149]
    assert [grey_of(picture) for picture in taken] == pytest.approx(wanted, abs=4)


def test_a_video_is_decoded_once_and_again_if_it_changed(tmp_path, monkeypatch):
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


def test_videos_that_cannot_be_read_are_named(tmp_path):
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


CONTENT = b"\x00\x01 not really a medium \xff"
DATA = base64.b64encode(CONTENT).decode()
TYPES = {
    "image_url": "image/png",
    "input_audio": "audio/mpeg",
    "audio_url": "audio/wav",
    "video_url": "video/mp4",
}


def _file(path, form):
    path.write_bytes(CONTENT)
    return MediaFile(
        form=form,
        path=str(path),
        media_type=TYPES[form],
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def _prompt(part):
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
def test_a_file_is_sent_as_a_part_that_holds_its_bytes(tmp_path, form, sent):
    part = inline(_file(tmp_path / "a b", form))
    assert msgspec.to_builtins(part) == {"type": form, **sent}
    assert part == make_part(form, TYPES[form], CONTENT)


@pytest.mark.parametrize("form", list(TYPES))
def test_a_file_can_be_sent_as_a_path(tmp_path, form):
    url = media_url(link(_file(tmp_path / "a b", form)))
    assert url == (tmp_path / "a b").resolve().as_uri()
    assert url.endswith("/a%20b")


@pytest.mark.parametrize("form", list(TYPES))
def test_a_file_has_the_hash_of_the_part_that_a_server_receives(tmp_path, form):
    file = _file(tmp_path / "a", form)
    there = _file(tmp_path / "b", form)
    received = msgspec.json.decode(msgspec.json.encode(_prompt(inline(file))), type=list[Message])
    assert prompt_sha256(_prompt(file)) == prompt_sha256(tuple(received))
    assert prompt_sha256(_prompt(file)) == prompt_sha256(_prompt(there))
    other = msgspec.structs.replace(inline(file), **_another(form))
    assert prompt_sha256(_prompt(file)) != prompt_sha256(_prompt(other))
    keys = {sample_key(Sample(id="1", prompt=_prompt(p), target="")) for p in (file, there, other)}
    assert len(keys) == 2


def _another(form):
    part = make_part(form, TYPES[form], CONTENT + b"!")
    return {form: getattr(part, form)}


def test_the_form_of_a_sound_is_no_other_prompt(tmp_path):
    forms = ("input_audio", "audio_url")
    assert len({prompt_sha256(_prompt(_file(tmp_path / "a", form))) for form in forms}) == 1
    assert prompt_sha256(_prompt(_file(tmp_path / "a", "video_url"))) != prompt_sha256(
        _prompt(_file(tmp_path / "a", "audio_url"))
    )


def test_prompts_of_texts_and_images_keep_their_hashes():
    image = make_part("image_url", "image/png", b"pixel")
    assert prompt_sha256((Message(role="user", content="Hi"),)) == (
        "8b1450277179b15b70831cee0e0ec563f04eb6c717d27070114931cba4b59d4e"
    )
    assert prompt_sha256(_prompt(image)) == (
        "84297d158ce6b06248cd75711e7eafb22c01995fdf95c4bb66ab4b4b1620b451"
    )


def test_a_missing_and_a_changed_file_are_named(tmp_path):
    file = _file(tmp_path / "a", "video_url")
    (tmp_path / "a").write_bytes(b"another")
    with pytest.raises(DatasetError, match="a: the file has changed since the data set was read"):
        inline(file)
    (tmp_path / "a").unlink()
    with pytest.raises(DatasetError, match="a: No such file or directory"):
        inline(file)


@pytest.mark.parametrize("form", list(TYPES))
def test_the_description_of_a_medium_has_neither_bytes_nor_path(tmp_path, form):
    file = _file(tmp_path / "a", form)
    described = describe(file)
    assert described == describe(inline(file)) == msgspec.structs.replace(file, path="")
    kind, checksum = TYPES[form], file.sha256[:12]
    assert media_url(described) == f"data:{kind};base64,... (24 bytes, sha256 {checksum})"


def test_a_medium_elsewhere_is_described_by_its_url():
    for part in (
        VideoPart(video_url=VideoUrl(url="file:///data/a.mp4")),
        AudioUrlPart(audio_url=AudioUrl(url="data:audio/wav;base64,???")),
        InputAudioPart(input_audio=InputAudio(data="???", format="wav")),
    ):
        assert describe(part) is part
        assert media_sha256(part) == hashlib.sha256(media_url(part).encode()).hexdigest()


def test_a_turn_tells_its_media_and_its_images(tmp_path):
    image = make_part("image_url", "image/png", b"pixel")
    file, video = (_file(tmp_path / "a", form) for form in ("image_url", "video_url"))
    turn = Message(role="user", content=(video, TextPart(text="a"), image, file))
    assert isinstance(image, ImagePart)
    assert (turn.media, turn.images, turn.text) == ((video, image, file), (image, file), "a")
    assert (Message(role="user", content="a").media, Message(role="user", content="a").images) == (
        (),
        (),
    )
