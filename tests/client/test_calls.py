"""Test tool calls, whole and in pieces of a stream, as servers send them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.bodies import (
    BAD_INDEX,
    NO_ID,
    NO_NAME,
    REPEATED_ID,
    SHARED_INDEX,
    ToolCalls,
)
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.evaluation.results.accumulator import score_response
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.schema import (
    CallMessage,
    Endpoint,
    Limits,
    Message,
    Outcome,
    Request,
    Response,
    ResultMessage,
    SamplingParams,
    Score,
    ToolCall,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.storage.journal import Journal, Record
from tests.evaluation.test_capabilities import prepared

PARIS = ToolCall("weather", '{"city": "Paris"}')
LYON = ToolCall("weather", '{"city": "Lyon"}')
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def _whole(*calls: Any, **message: Any) -> bytes:
    choice = {
        "message": {"content": None, "tool_calls": list(calls), **message},
        "finish_reason": "tool_calls",
    }
    return json.dumps({"choices": [choice]}).encode()


def _call(name: str = "weather", arguments: Any = PARIS.arguments) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ([_call()], (PARIS,)),
        ([_call(), _call(arguments=LYON.arguments)], (PARIS, LYON)),
        ([_call(arguments={"city": "Paris"})], (ToolCall("weather", '{"city":"Paris"}'),)),
        ([_call(arguments=None)], (ToolCall("weather", ""),)),
        ([_call(arguments="{broken")], (ToolCall("weather", "{broken"),)),
        ([], ()),
        (["nonsense", {"function": 1}, {"function": {"arguments": "{}"}}], ()),
    ],
)
def test_the_calls_of_a_whole_answer_are_kept(told: list[Any], kept: tuple[ToolCall, ...]) -> None:
    said = wire.decode(_whole(*told), "application/json")
    assert (said.tool_calls, said.text, said.finish_reason) == (kept, "", "tool_calls")


@pytest.mark.parametrize("told", [None, {"name": "x"}, "x", 3, True])
def test_what_are_no_calls_spoils_no_answer(told: Any) -> None:
    choice = {"message": {"content": "7", "tool_calls": told}, "finish_reason": "stop"}
    assert wire.decode(json.dumps({"choices": [choice]}).encode(), "") == wire.Said(
        text="7", finish_reason="stop"
    )


def _piece(index: int | None, identity: str | None = None, **function: Any) -> dict[str, Any]:
    return {"id": identity, "function": function} | ({} if index is None else {"index": index})


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        # OpenAI, vLLM: the name in the first piece, then the arguments, one call after the other
        ([[_piece(0, "a", name="weather", arguments="")],
          [_piece(0, arguments=PARIS.arguments[:5])],
          [_piece(0, arguments=PARIS.arguments[5:])],
          [_piece(1, "b", name="weather", arguments=LYON.arguments)]],
         (PARIS, LYON)),
        # two calls in one chunk, with alternating pieces
        ([[_piece(0, name="weather"), _piece(1, name="weather")],
          [_piece(1, arguments=LYON.arguments), _piece(0, arguments=PARIS.arguments)]],
         (PARIS, LYON)),
        # the name with every piece
        ([[_piece(0, name="weather", arguments=PARIS.arguments[:3])],
          [_piece(0, name="weather", arguments=PARIS.arguments[3:])]], (PARIS,)),
        # whole calls without an index, as Ollama sends them
        ([[_piece(None, "a", name="weather", arguments=PARIS.arguments)],
          [_piece(None, "b", name="weather", arguments=LYON.arguments)]], (PARIS, LYON)),
        # no index, and later pieces that continue a call
        ([[_piece(None, "a", name="weather", arguments=PARIS.arguments[:3])],
          [_piece(None, arguments=PARIS.arguments[3:])]], (PARIS,)),
    ],
)  # fmt: skip
def test_the_calls_of_a_stream_are_put_together(
    pieces: list[Any], kept: tuple[ToolCall, ...]
) -> None:
    answer = StreamedAnswer()
    for number, piece in enumerate(pieces):
        chunk = {"choices": [{"index": 0, "delta": {"tool_calls": piece}}]}
        answer.feed(f"data: {json.dumps(chunk)}\n\n".encode(), float(number))
    answer.feed(
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}\n\n', 9.0
    )
    assert answer.finish().tool_calls == kept
    assert (answer.first_at, answer.last_at) == (0.0, float(len(pieces) - 1))


FIELDS = st.sampled_from(["index", "id", "function", "name", "arguments"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner),
)


@given(ANYTHING)
def test_anything_at_all_may_stand_for_calls(told: Any) -> None:
    calls = ToolCalls()
    calls.add(told)
    calls.add(told)
    assert all(call.name for call in calls.whole())


# Through a real socket


def _ask(tmp_path: Path, *, stream: bool, right: str, tools: Any, **config: Any) -> Response:
    prompt = (Message(role="user", content="How is the weather?"),)
    line = {"sha256": prompt_sha256(prompt), "right": right, "wrong": "", "probability": 1.0}
    (tmp_path / "answers.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    async def main() -> Any:
        simulator = SimulatorConfig(answers=tmp_path / "answers.jsonl", **config)
        async with (
            serve(simulator) as url,
            Client(Endpoint(base_url=url, model="simulated"), limits) as client,
        ):
            return await client.send(request)

    limits = Limits(stream=stream, stall_timeout_s=20.0, sample_timeout_s=40.0, max_attempts=2)
    sampling = SamplingParams(max_tokens=50)
    request = Request(
        sample_id="1", prompt=prompt, sampling=sampling, extra={"tools": tools} if tools else {}
    )
    result = asyncio.run(main())
    assert isinstance(result, Response)
    return result


CALLING = '{"tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}]}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_comes_back_is_journalled_and_is_not_empty(tmp_path: Path, stream: bool) -> None:
    response = _ask(tmp_path, stream=stream, right=CALLING, tools=TOOLS)
    assert (response.text, response.tool_calls, response.finish_reason) == (
        "",
        (PARIS,),
        "tool_calls",
    )
    assert response.usage.completion_tokens > 0
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(Record(id="1", response=response))
        [record] = journal.records()
    assert record.response == response

    def judged(sample: object, response: Response) -> Score:
        assert response.tool_calls == (PARIS,)
        return Score(value=1.0, outcome=Outcome.CORRECT)

    task = prepared(score=judged)
    assert score_response(task.task, task.dataset.samples[0], response).outcome is Outcome.CORRECT


@pytest.mark.parametrize(("tools", "config"), [(None, {}), (TOOLS, {"no_tools": True})])
def test_without_tools_the_same_answer_is_a_text(
    tmp_path: Path, tools: Any, config: dict[str, Any]
) -> None:
    response = _ask(tmp_path, stream=False, right=CALLING, tools=tools, **config)
    assert (response.text, response.tool_calls) == (CALLING, ())


def test_a_call_without_thoughts_ended_was_not_stopped_in_reasoning() -> None:
    response = Response(text="", finish_reason="stop", reasoning="hm", tool_calls=(PARIS,))
    assert not response.stopped_in_reasoning


def test_a_piece_that_is_no_call_hides_none_behind_it() -> None:
    calls = ToolCalls()
    calls.add(
        [
            "no call",
            {"function": "none"},
            _call(),
            {"id": "call_2"},
            _call(arguments=LYON.arguments),
        ]
    )
    assert calls.whole() == (PARIS, LYON)


def _piece(index: int | None, one_id: str | None, name: str | None = "weather") -> dict[str, Any]:
    told = {"index": index, "id": one_id, "function": {"name": name, "arguments": "{}"}}
    return {key: value for key, value in told.items() if value is not None}


@pytest.mark.parametrize(
    ("pieces", "streamed", "faults"),
    [
        ([_piece(0, "a"), _piece(1, "b")], True, ()),
        ([_piece(0, "a"), _piece(0, None, None)], True, ()),
        ([_piece(None, "a"), _piece(None, "b")], False, ()),
        ([_piece(None, "a")], True, (BAD_INDEX,)),
        ([_piece(1, "a")], True, (BAD_INDEX,)),
        ([_piece(0, "a"), _piece(0, "b")], True, (SHARED_INDEX,)),
        ([_piece(0, "a"), _piece(1, "a")], True, (REPEATED_ID,)),
        ([_piece(0, None)], True, (NO_ID,)),
        ([_piece(0, "a", None)], True, (NO_NAME,)),
    ],
)
def test_faults_in_the_frame_of_calls_are_told(
    pieces: list[Any], streamed: bool, faults: tuple[str, ...]
) -> None:
    calls = ToolCalls(streamed=streamed)
    for piece in pieces:
        calls.add([piece])
    assert calls.faults() == faults


def test_turns_with_calls_and_results_are_sent_as_openai_has_them() -> None:
    turns = (
        Message(role="user", content="Weather?"),
        CallMessage(role="assistant", content="", tool_calls=(PARIS,), call_ids=("c1",)),
        ResultMessage(role="tool", content="sunny", call_id="c1"),
    )
    request = Request(sample_id="1", prompt=turns, sampling=SamplingParams(max_tokens=5))
    [user, call, result] = json.loads(wire.encode(request, "m"))["messages"]
    assert user == {"role": "user", "content": "Weather?"}
    assert call["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "weather", "arguments": PARIS.arguments},
        }
    ]
    assert (result["tool_call_id"], result["content"]) == ("c1", "sunny")
