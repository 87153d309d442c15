"""Test images, sounds and videos in a turn, from the plan to the run folder."""

import asyncio
import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.cli._dry_run import _readable
from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.datasets import small_media
from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.datasets.small_media import shape
from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.engine.lane import arrange
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._simulated.answers import MEDIA_TOKENS
from serve_eval.launchers._simulated.simulator import (
    STATS,
    SimulatorConfig,
    create_app,
    serve,
)
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    Connection,
    Endpoint,
    Failure,
    ImagePart,
    ImageUrl,
    InputAudio,
    InputAudioPart,
    Limits,
    MediaFile,
    Message,
    Plan,
    Request,
    Response,
    Sample,
    SamplingParams,
    Spec,
    TextPart,
    VerdictOutcome,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.media import media_url, prompt_sha256
from serve_eval.storage.prompts import read_prompts
from serve_eval.workflows.capsule import capsules

FOLDER = Path(small_media.__file__).parent
SOUND, SHAPE, DOT = (FOLDER / name for name in ("number.wav", "shape.png", "dot.mp4"))


def _request(*parts):
    turn = Message(role="user", content=(*parts, TextPart(text="What is it?")))
    return Request(sample_id="1", prompt=(turn,), sampling=SamplingParams(max_tokens=5))


def _send(request, send_media="inline", **config):
    async def main():
        app = create_app(SimulatorConfig(record=True, **config))
        endpoint, limits = Endpoint(base_url="", model="simulated"), Limits(max_attempts=2)
        async with serve(app) as url:
            endpoint = Endpoint(base_url=url, model="simulated")
            async with Client(endpoint, limits, send_media=send_media) as client:
                return await client.send(request), app[STATS]

    return asyncio.run(main())


def _kinds(stats):
    return [part["type"] for part in stats.bodies[0]["messages"][0]["content"]]


def test_files_are_sent_in_their_order_and_seen_as_we_hash_them():
    request = _request(
        video_part(DOT),
        image_part(SHAPE),
        audio_part(SOUND),
        image_part(SHAPE.read_bytes()),
        audio_part(SOUND, form="audio_url"),
    )
    answer, stats = _send(request)
    assert isinstance(answer, Response)
    assert set(stats.requests) == {prompt_sha256(request.prompt)}
    assert answer.usage.prompt_tokens == 3 + 5 * MEDIA_TOKENS
    assert _kinds(stats) == [
        *("video_url", "image_url", "input_audio", "image_url", "audio_url", "text")
    ]
    content = stats.bodies[0]["messages"][0]["content"]
    assert base64.b64decode(content[2]["input_audio"]["data"]) == SOUND.read_bytes()
    assert content[2]["input_audio"]["format"] == "wav"


def test_a_server_that_may_read_files_gets_their_paths():
    request = _request(video_part(DOT), audio_part(SOUND), image_part(SHAPE))
    answer, stats = _send(request, "path", local_media=str(FOLDER))
    assert isinstance(answer, Response)
    assert set(stats.requests) == {prompt_sha256(request.prompt)}
    video, sound, image, _ = stats.bodies[0]["messages"][0]["content"]
    assert video["video_url"]["url"] == DOT.as_uri()
    assert sound == {"type": "audio_url", "audio_url": {"url": SOUND.as_uri()}}
    assert image["image_url"]["url"] == SHAPE.as_uri()


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        ({}, "Cannot load local files"),
        ({"local_media": "/nowhere"}, "must be a subpath of /nowhere"),
    ],
)
def test_a_path_that_the_server_may_not_read_is_refused(config, refused):
    answer, _ = _send(_request(video_part(DOT)), "path", **config)
    assert isinstance(answer, Failure)
    assert (answer.status, refused in answer.message) == (400, True)


@pytest.mark.parametrize(
    ("part", "config", "refused"),
    [
        (small_media.number(), {"no_audio": True}, "does not support sound input"),
        (small_media.number("audio_url"), {"no_audio": True}, "does not support sound input"),
        (small_media.dot(), {"no_video": True}, "does not support video input"),
        (small_media.shape(), {"no_images": True}, "does not support image input"),
        (InputAudioPart(input_audio=InputAudio(data="???", format="wav")), {}, "base64"),
        (VideoPart(video_url=VideoUrl(url="https://example.org/a.mp4")), {}, "a file that may be"),
    ],
)
def test_what_a_server_cannot_take_is_refused(part, config, refused):
    answer, _ = _send(_request(part), **config)
    assert isinstance(answer, Failure)
    assert (answer.status, refused in answer.message) == (400, True)


@pytest.mark.parametrize(
    ("make", "path"), [(audio_part, SOUND), (image_part, SHAPE), (video_part, DOT)]
)
def test_half_a_medium_and_another_type_are_refused(make, path):
    content = path.read_bytes()
    half = make(content[: len(content) // 2])
    answer, _ = _send(_request(half))
    assert isinstance(answer, Failure)
    assert (answer.status, "is truncated" in answer.message) == (400, True)
    assert isinstance(_send(_request(half), any_media=True)[0], Response)
    text = base64.b64encode(b"not a medium").decode()
    other = msgspec.json.decode(
        msgspec.json.encode(_request(make(content)).prompt).replace(
            base64.b64encode(content), text.encode()
        ),
        type=tuple[Message, ...],
    )
    answer, _ = _send(msgspec.structs.replace(_request(), prompt=other))
    assert isinstance(answer, Failure)
    assert (answer.status, "cannot identify the" in answer.message) == (400, True)


def test_a_retry_reads_the_file_again(tmp_path):
    copy = tmp_path / "dot.mp4"
    copy.write_bytes(DOT.read_bytes())
    request = _request(video_part(copy))
    answer, stats = _send(request, failure_rate=1.0, failures_per_prompt=1)
    assert isinstance(answer, Response)
    assert len(answer.attempts) == 2
    assert stats.bodies[0] == stats.bodies[1]
    copy.write_bytes(b"another")
    with pytest.raises(DatasetError, match=r"dot\.mp4: the file has changed since"):
        _send(request)


def test_a_dry_run_shows_files_by_place_and_bytes_by_size():
    shown = _readable(_request(video_part(DOT), small_media.number()).prompt)
    assert f'"path": "{DOT}"' in shown
    assert '"data": "... (69904 characters)"' in shown
    assert "UklGR" not in shown


PIXEL = media_url(shape())
PROMPT = (
    Message(role="system", content="Be brief."),
    Message(
        role="user",
        content=(
            TextPart(text="Left:"),
            ImagePart(image_url=ImageUrl(url=PIXEL)),
            TextPart(text="?"),
        ),
    ),
)
REQUEST = Request(sample_id="1", prompt=PROMPT, sampling=SamplingParams(max_tokens=5))


def test_parts_are_sent_as_openai_has_them():
    assert json.loads(wire.encode(REQUEST, "m"))["messages"] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Left:"},
                {"type": "image_url", "image_url": {"url": PIXEL}},
                {"type": "text", "text": "?"},
            ],
        },
    ]
    assert wire.route(PROMPT) == "/chat/completions"


def test_a_turn_tells_its_text_and_its_images():
    assert (PROMPT[1].text, len(PROMPT[1].images)) == ("Left:\n?", 1)
    assert (PROMPT[0].text, PROMPT[0].images) == ("Be brief.", ())


def test_another_image_is_another_prompt():
    other = (
        PROMPT[0],
        Message(role="user", content=(ImagePart(image_url=ImageUrl(url=PIXEL + "A")),)),
    )
    assert prompt_sha256(PROMPT) != prompt_sha256(other)
    samples = [Sample(id="1", prompt=prompt, target="") for prompt in (PROMPT, other)]
    assert sample_key(samples[0]) != sample_key(samples[1])
    assert sorted(arrange(samples, [0, 1], "prefix", "")) == [0, 1]


def test_a_dry_run_shows_no_more_of_an_image_than_its_kind_and_size():
    shown = _readable(PROMPT)
    assert '"data:image/png;base64,... (944 characters)"' in shown
    assert "iVBOR" not in shown


def _send_images(config):
    async def main():
        app = create_app(config)
        async with (
            serve(app) as url,
            Client(Endpoint(base_url=url, model="simulated"), Limits(max_attempts=1)) as client,
        ):
            return await client.send(REQUEST), set(app[STATS].requests)

    return asyncio.run(main())


def test_the_server_sees_the_prompt_that_we_hash():
    answer, seen = _send_images(SimulatorConfig())
    assert isinstance(answer, Response)
    assert seen == {prompt_sha256(PROMPT)}
    assert answer.usage.prompt_tokens == 4 + MEDIA_TOKENS


def test_a_server_without_eyes_refuses():
    answer, _ = _send_images(SimulatorConfig(no_images=True))
    assert isinstance(answer, Failure)
    assert (answer.status, "does not support image" in answer.message) == (400, True)


CASES = """heard:
  cases:
    - case: both
      input: {prompt: What do you see and hear?, images: [shape.png], audio: [number.wav]}
      expected: I do not know.
    - case: moves
      input: {prompt: Where does it move?, video: [dot.mp4], audio: [number.wav]}
      expected: I do not know.
"""


@pytest.fixture
def plan(tmp_path):
    for name in ("shape.png", "number.wav", "dot.mp4"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "heard.yaml").write_text(CASES)
    task = Spec(name="cases:heard", options={"path": str(tmp_path / "heard.yaml")})
    launcher = Spec(name="external", options={"base_url": "http://localhost:1/v1"})
    return Plan(model="simulated", launcher=launcher, tasks=(task,), no_reference=True)


def _run(plan, out, config=None):
    async def main():
        async with serve(create_app(config or SimulatorConfig())) as url:
            launcher = replace(plan.launcher, options={"base_url": url})
            return await evaluate(replace(plan, launcher=launcher), out, environ={})

    return asyncio.run(main())


def _kept(out):
    return sorted(path.suffix for path in (out / "media").glob("*"))


def test_a_run_keeps_each_medium_once_and_no_path(plan, tmp_path):
    out = tmp_path / "run"
    [task] = _run(plan, out).tasks
    assert task.result.value == 100.0
    assert _kept(out) == [".mp4", ".png", ".wav"]
    prompts = [one.prompt for one in read_prompts(out, "cases:heard")]
    media = [part for prompt in prompts for turn in prompt or () for part in turn.media]
    assert [part.form for part in media if isinstance(part, MediaFile)] == [
        *("image_url", "input_audio", "input_audio", "video_url")
    ]
    assert str(tmp_path) not in (out / "prompts" / "cases-heard.jsonl").read_text()
    _run(replace(plan, no_media=True), tmp_path / "none")
    assert _kept(tmp_path / "none") == []


def test_a_server_that_may_read_the_files_gives_the_same_fingerprint(plan, tmp_path):
    by_path = replace(plan, connection=Connection(send_media="path"))
    [inline] = _run(plan, tmp_path / "inline").tasks
    [path] = _run(by_path, tmp_path / "path", SimulatorConfig(local_media=str(tmp_path))).tasks
    assert path.result.value == inline.result.value == 100.0
    assert path.fingerprint == inline.fingerprint


def test_what_the_endpoint_does_not_take_is_unsupported(plan, tmp_path):
    [task] = _run(plan, tmp_path / "run", SimulatorConfig(no_video=True)).tasks
    assert task.verdict.outcome is VerdictOutcome.UNSUPPORTED
    assert task.verdict.reasons[0].startswith("unsupported: the endpoint lacks videos: HTTP 400")
    assert task.verdict.reasons[0].endswith("Serve a model that takes videos.")


def test_a_file_that_is_missing_is_named_before_anything_is_asked(plan, tmp_path):
    (tmp_path / "dot.mp4").unlink()
    with pytest.raises(PlanError, match=r"dot\.mp4: No such file"):
        _run(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_capsule_holds_the_bytes_that_were_sent(plan, tmp_path):
    out = tmp_path / "run"
    _run(plan, out)
    [name] = [one.id for one in read_prompts(out, "cases:heard") if one.id.startswith("moves")]
    [folder] = capsules(out, [name], tmp_path / "capsules", environ={})
    body = json.loads((folder / "body.json").read_text())
    sound, video, _ = body["messages"][0]["content"]
    dot = base64.b64encode((FOLDER / "dot.mp4").read_bytes()).decode()
    assert video == {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{dot}"}}
    assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
