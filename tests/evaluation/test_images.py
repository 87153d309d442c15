"""Test images in a turn: they are sent, hashed, shown and counted."""

from __future__ import annotations

import asyncio
import json

from serve_eval.cli._dry_run import _readable
from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.datasets.small_media import shape
from serve_eval.evaluation.engine.lane import arrange
from serve_eval.launchers._simulated.answer_file import MEDIA_TOKENS
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.protocol.fingerprint import sample_key
from serve_eval.schema import (
    Endpoint,
    Failure,
    ImagePart,
    ImageUrl,
    Limits,
    Message,
    Request,
    Response,
    Sample,
    SamplingParams,
    TextPart,
)
from serve_eval.schema.media import media_url, prompt_sha256

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


def test_parts_are_sent_as_openai_has_them() -> None:
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


def test_a_turn_tells_its_text_and_its_images() -> None:
    assert (PROMPT[1].text, len(PROMPT[1].images)) == ("Left:\n?", 1)
    assert (PROMPT[0].text, PROMPT[0].images) == ("Be brief.", ())


def test_another_image_is_another_prompt() -> None:
    other = (
        PROMPT[0],
        Message(role="user", content=(ImagePart(image_url=ImageUrl(url=PIXEL + "A")),)),
    )
    assert prompt_sha256(PROMPT) != prompt_sha256(other)
    samples = [Sample(id="1", prompt=prompt, target="") for prompt in (PROMPT, other)]
    assert sample_key(samples[0]) != sample_key(samples[1])
    assert sorted(arrange(samples, [0, 1], "prefix", "")) == [0, 1]


def test_a_dry_run_shows_no_more_of_an_image_than_its_kind_and_size() -> None:
    shown = _readable(PROMPT)
    assert '"data:image/png;base64,... (944 characters)"' in shown
    assert "iVBOR" not in shown


def _send(config: SimulatorConfig) -> tuple[Response | Failure, set[str]]:
    async def main() -> tuple[Response | Failure, set[str]]:
        app = create_app(config)
        async with (
            serve(app) as url,
            Client(Endpoint(base_url=url, model="simulated"), Limits(max_attempts=1)) as client,
        ):
            return await client.send(REQUEST), set(app[STATS].requests)

    return asyncio.run(main())


def test_the_server_sees_the_prompt_that_we_hash() -> None:
    answer, seen = _send(SimulatorConfig())
    assert isinstance(answer, Response)
    assert seen == {prompt_sha256(PROMPT)}
    assert answer.usage.prompt_tokens == 4 + MEDIA_TOKENS


def test_a_server_without_eyes_refuses() -> None:
    answer, _ = _send(SimulatorConfig(no_images=True))
    assert isinstance(answer, Failure)
    assert (answer.status, "does not support image" in answer.message) == (400, True)
