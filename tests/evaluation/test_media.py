"""Test sounds and videos in a turn: read when they are sent, hashed, refused and retried."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve_eval.cli._dry_run import _readable
from serve_eval.client.client import Client
from serve_eval.datasets import small_media
from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.errors import DatasetError
from serve_eval.launchers._simulated.answer_file import MEDIA_TOKENS
from serve_eval.launchers._simulated.simulator import (
    STATS,
    SimulatorConfig,
    Stats,
    create_app,
    serve,
)
from serve_eval.schema import (
    Endpoint,
    Failure,
    InputAudio,
    InputAudioPart,
    Limits,
    MediaPart,
    Message,
    Request,
    Response,
    SamplingParams,
    SendMedia,
    TextPart,
    VideoPart,
    VideoUrl,
)
from serve_eval.schema.media import prompt_sha256

FOLDER = Path(small_media.__file__).parent
SOUND, SHAPE, DOT = (FOLDER / name for name in ("number.wav", "shape.png", "dot.mp4"))


def _request(*parts: MediaPart) -> Request:
    turn = Message(role="user", content=(*parts, TextPart(text="What is it?")))
    return Request(sample_id="1", prompt=(turn,), sampling=SamplingParams(max_tokens=5))


def _send(
    request: Request, send_media: SendMedia = "inline", **config: Any
) -> tuple[Response | Failure, Stats]:
    async def main() -> tuple[Response | Failure, Stats]:
        app = create_app(SimulatorConfig(record=True, **config))
        endpoint, limits = Endpoint(base_url="", model="simulated"), Limits(max_attempts=2)
        async with serve(app) as url:
            endpoint = Endpoint(base_url=url, model="simulated")
            async with Client(endpoint, limits, send_media=send_media) as client:
                return await client.send(request), app[STATS]

    return asyncio.run(main())


def _kinds(stats: Stats) -> list[str]:
    return [part["type"] for part in stats.bodies[0]["messages"][0]["content"]]


def test_files_are_sent_in_their_order_and_seen_as_we_hash_them() -> None:
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


def test_a_server_that_may_read_files_gets_their_paths() -> None:
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
def test_a_path_that_the_server_may_not_read_is_refused(
    config: dict[str, Any], refused: str
) -> None:
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
def test_what_a_server_cannot_take_is_refused(
    part: MediaPart, config: dict[str, Any], refused: str
) -> None:
    answer, _ = _send(_request(part), **config)
    assert isinstance(answer, Failure)
    assert (answer.status, refused in answer.message) == (400, True)


@pytest.mark.parametrize(
    ("make", "path"), [(audio_part, SOUND), (image_part, SHAPE), (video_part, DOT)]
)
def test_half_a_medium_and_another_type_are_refused(
    make: Callable[[bytes], MediaPart], path: Path
) -> None:
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


def test_a_retry_reads_the_file_again(tmp_path: Path) -> None:
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


def test_a_dry_run_shows_files_by_place_and_bytes_by_size() -> None:
    shown = _readable(_request(video_part(DOT), small_media.number()).prompt)
    assert f'"path": "{DOT}"' in shown
    assert '"data": "... (69904 characters)"' in shown
    assert "UklGR" not in shown
