"""No message shows a place in the source of the server that refused a request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.refusal import find_refused

RECORDED = Path(__file__).resolve().parents[3] / "shared/recorded_trtllm/answers.jsonl"
FASTAPI = (
    "1 validation error:\n  {'type': 'extra_forbidden', 'loc': ('body', 'modalities'), 'msg':"
    " 'Extra inputs are not permitted', 'input': ['text']}\n\n  File"
    ' "tensorrt_llm/serve/openai_server.py", line 232, in wrapper\n    POST /v1/chat/completions'
)


@pytest.mark.parametrize("body", [{"error": FASTAPI}, {"message": FASTAPI}, {"detail": FASTAPI}])
def test_the_place_that_fastapi_adds_is_left_out(body: dict[str, str]) -> None:
    told = wire.describe(json.dumps(body).encode())
    assert told.endswith("'msg': 'Extra inputs are not permitted', 'input': ['text']}")
    found = find_refused(told, ["modalities"])
    assert found is not None
    assert (found.name, found.by_value) == ("modalities", False)


def test_a_traceback_keeps_its_words() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/srv/app.py", line 7, in answer\n    raise\n'
        "ValueError: no such model"
    )
    told = wire.describe(text.encode())
    assert ".py" not in told
    assert told.endswith("ValueError: no such model")


def test_a_message_of_nothing_else_stays() -> None:
    assert wire.describe(b'File "/srv/app.py", line 7') == 'File "/srv/app.py", line 7'


def test_a_file_that_a_request_names_stays() -> None:
    told = wire.describe(b'{"error": "the prompt asks for File app.py, line 7"}')
    assert told == "the prompt asks for File app.py, line 7"


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded answers are not here")
def test_no_recorded_refusal_shows_a_place() -> None:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    refusals = [one for one in lines if one["status"] >= 400 and "File " in one["body"]]
    assert len(refusals) > 30
    for one in refusals:
        told = wire.describe(one["body"].encode())
        assert ".py" not in told, one["case"]
        assert len(told) > 20
