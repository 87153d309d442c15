import shutil
from pathlib import Path

import pytest

from serve_eval.cases.prompts import fill, turns
from serve_eval.datasets import small_media
from serve_eval.errors import PlanError
from serve_eval.schema import ImagePart, MediaFile, Message, TextPart
from tests.tasks.made_data import png

RESOURCES = {
    "manner": {"short": "Be brief.", "of": "In ${place}."},
    "schemas": {"gene": {"id": "int"}},
}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("plain $5 and {braces} and {{format}}", "plain $5 and {braces} and {{format}}"),
        ("${manner.short} ${place}?", "Be brief. Rome?"),
        ("${manner.of}", "In Rome."),
        ("${ place }", "Rome"),
        ("$${place}", "${place}"),
        ("${schemas[kind]}", '{\n  "id": "int"\n}'),
        ("${number}", "3"),
    ],
)
def test_names_are_filled_in(text, filled):
    assert fill(text, {**RESOURCES, "place": "Rome", "kind": "gene", "number": 3}) == filled


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "${plcae}",
            "${plcae}: unknown name 'plcae'. Did you mean 'place'? Write $${ for a plain ${.",
        ),
        ("${manner.long}", "${manner.long}: unknown key 'long'. Known: short, of."),
        ("${schemas[place]}", "${schemas[place]}: unknown key 'Rome'. Known: gene."),
        ("${place!}", "${place!}: unknown name 'place!'. Did you mean 'place'?"),
        ("${manner[}", "${manner[}: expected a name such as ${schemas.gene} or ${schemas[kind]}"),
        ("${round}", "its names form a circle"),
    ],
)
def test_a_name_that_cannot_be_filled_in_is_an_error(text, message):
    with pytest.raises(PlanError) as error:
        fill(text, {**RESOURCES, "place": "Rome", "round": "${round}"})
    assert message in str(error.value)


def test_several_system_messages_and_earlier_turns_come_before_the_prompt():
    values = {
        "system_messages": ["${manner.short}", "Second."],
        "messages": [
            {"role": "user", "content": "Hi ${name}"},
            {"role": "assistant", "content": "Hello."},
        ],
        "prompt": "And now?",
        "name": "Ada",
    }
    assert turns(values, RESOURCES, Path()) == (
        Message(role="system", content="Be brief."),
        Message(role="system", content="Second."),
        Message(role="user", content="Hi Ada"),
        Message(role="assistant", content="Hello."),
        Message(role="user", content="And now?"),
    )


def test_images_lie_beside_the_file_and_go_before_the_text(tmp_path):
    (tmp_path / "dot.png").write_bytes(png(7))
    values = {
        "messages": [{"role": "user", "content": "First", "images": ["dot.png"]}],
        "prompt": "Which?",
        "images": ["dot.png"],
    }
    first, last = turns(values, {}, tmp_path)
    for turn, text in ((first, "First"), (last, "Which?")):
        image, told = turn.content
        assert isinstance(image, ImagePart)
        assert image.image_url.url.startswith("data:image/png;base64,")
        assert told == TextPart(text=text)
    (tmp_path / "dot.png").write_bytes(png(8))
    assert turns(values, {}, tmp_path) != (first, last)


def test_sounds_and_videos_stay_in_their_files_and_follow_the_images(tmp_path):
    named = {"video": ["dot.mp4"], "audio": ["number.wav"], "images": ["shape.png"]}
    for [name] in named.values():
        shutil.copy(Path(small_media.__file__).with_name(name), tmp_path)
    first, last = turns(
        {"messages": [{"role": "user", "content": "a", **named}], "prompt": "b", **named},
        {},
        tmp_path,
    )
    image, sound, video, text = last.content
    assert first.media == last.media == (image, sound, video)
    assert text == TextPart(text="b")
    assert isinstance(image, ImagePart)
    assert isinstance(sound, MediaFile)
    assert isinstance(video, MediaFile)
    assert (sound.form, sound.path) == ("input_audio", str(tmp_path / "number.wav"))
    assert (video.form, video.path) == ("video_url", str(tmp_path / "dot.mp4"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prompt": "x", "video": ["none.mp4"]}, "none.mp4: No such file or directory"),
        ({"prompt": "x", "audio": ["../a.wav"]}, "../a.wav: audio must be in "),
        (
            {"prompt": "x", "audio": ["text.png"]},
            "text.png: not a WAV, MP3, FLAC",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "video": ["a.mp4"]},
            "video: need a prompt",
        ),
        ({"system_messages": ["x"]}, "no question: give a prompt"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "no question: give a prompt"),
        ({"prompt": "x", "images": ["a\0.png"]}, "'a\\x00.png' is not a file name"),
        ({"prompt": {"a": "x"}}, 'prompt: expected a text, got {"a": "x"}'),
        ({"prompt": True}, "prompt: expected a text, got true"),
        (
            {"system_messages": [["x"]], "prompt": "x"},
            'system_messages: expected a text, got ["x"]',
        ),
        (
            {"system_messages": {"a": 1}, "prompt": "x"},
            'system_messages: expected a text, got {"a": 1}',
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "images": ["a.png"]},
            "images: need a prompt",
        ),
        (
            {"prompt": "x", "images": ["none.png"]},
            "none.png: cannot be read: No such file or directory",
        ),
        (
            {"prompt": "x", "images": ["../a.png"]},
            "../a.png: images must be in ",
        ),
        (
            {"prompt": "x", "images": ["text.png"]},
            "text.png: not a PNG, JPEG, GIF, BMP or WebP image",
        ),
    ],
)
def test_turns_that_cannot_be_made_say_why(values, message, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(PlanError) as error:
        turns(values, {}, tmp_path)
    assert message in str(error.value)


def test_an_encrypted_file_has_no_images():
    with pytest.raises(PlanError, match=r"a\.png: cases in an encrypted file cannot have images"):
        turns({"prompt": "x", "images": ["a.png"]}, {}, None)


def test_values_that_name_each_other_many_times_are_refused_before_they_fill_the_memory():
    names = {f"a{i}": f"${{a{i + 1}}}" * 100 for i in range(7)} | {"a7": "x" * 10**5}
    with pytest.raises(PlanError, match="exceeds 8388608 characters after its"):
        turns({"prompt": "${a0}"}, names, None)
    many = {"rows": list(range(1000))}
    with pytest.raises(PlanError, match="exceeds 8388608 characters"):
        turns({"prompt": "${rows}" * 10000}, many, None)
