"""Test what is kept of an answer: its finish reason and its tool calls."""

import asyncio
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format import bodies, wire
from serve_eval.client.wire_format.bodies import (
    BAD_INDEX,
    NO_ID,
    NO_NAME,
    REPEATED_ID,
    SHARED_INDEX,
    Said,
    ToolCalls,
    response,
    split_thinking,
)
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.evaluation.results.scoring import score_response
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.schema import (
    LOOPED,
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
    Usage,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.storage.journal import Journal, Record
from tests.evaluation.test_capabilities import prepared


def _response(said, prompt="p", stop=(), **more):
    request = Request(
        sample_id="1", prompt=prompt, sampling=SamplingParams(max_tokens=9, stop=stop)
    )
    return response(request, said, start=1.0, end=3.5, **more)


@pytest.mark.parametrize(
    ("text", "answer", "thoughts"),
    [
        ("#### 7", "#### 7", None),
        ("<think>3 + 4</think>#### 7", "#### 7", "3 + 4"),
        ("<think>\n\n</think>\n\n#### 7", "\n\n#### 7", None),
        ("3 + 4 is 8, no.</think>#### 7", "#### 7", "3 + 4 is 8, no."),
        ("<think>a</think>b<think>c</think>d", "bd", "a\nc"),
        ("<think>it is 7, so #### 7", "", "<think>it is 7, so #### 7"),
        ("#### 8 <think>or 7", "", "#### 8 <think>or 7"),
        ("<think>", "", "<think>"),
        ("", "", None),
        ("a < b", "a < b", None),
    ],
)
def test_thoughts_are_no_part_of_the_answer(text, answer, thoughts):
    assert split_thinking(text) == (answer, thoughts)


def test_a_prompt_that_ends_with_the_model_thinking_needs_a_close():
    assert (
        _response(Said(text="7 or 8", finish_reason="length"), prompt="<assistant><think>\n").text
        == ""
    )
    closed = _response(
        Said(text="7 or 8</think>7", finish_reason="stop"), prompt="<assistant><think>\n"
    )
    assert (closed.text, closed.reasoning) == ("7", "7 or 8")


def test_thoughts_that_the_server_split_off_stay_first():
    both = _response(Said(text="<think>b</think>7", reasoning="a", finish_reason="stop"))
    assert (both.text, both.reasoning) == ("7", "a\nb")


@given(
    st.lists(st.sampled_from(["a", "<think>", "</think>", "7", "\n"]), max_size=10), st.booleans()
)
def test_an_answer_never_holds_an_opening_and_thoughts_that_end_leave_the_rest(parts, opened):
    text = "".join(parts)
    answer, thoughts = split_thinking(text, opened=opened)
    assert "<think>" not in answer
    if thoughts is None and not opened and "</think>" not in text and "<think>" not in text:
        assert answer == text


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("a</s>b", ("</s>",), "a"),
        ("abc", ("x",), "abc"),
        ("1 Q: 2 </s>", ("</s>", "Q:"), "1 "),
        ("abc", (), "abc"),
        ("<think>Q: no</think>7 Q: 8", ("Q:",), "7 "),
    ],
)
def test_the_answer_is_cut_at_the_first_stop_string(text, stop, kept):
    assert _response(Said(text=text, finish_reason="stop"), stop=stop).text == kept


@pytest.mark.parametrize(
    ("said", "stopped"),
    [
        (Said(text="<think>so Question:", finish_reason="stop"), True),
        (Said(text="", reasoning="so", finish_reason="stop"), True),
        (Said(text="<think>so", finish_reason="length"), False),
        (Said(text="7", reasoning="so", finish_reason="stop"), False),
        (Said(text="", finish_reason="stop"), False),
    ],
)
def test_an_end_within_the_thoughts_is_told_from_a_cut(said, stopped):
    assert _response(said).stopped_in_reasoning is stopped


def test_times_of_a_stream_are_from_the_request_on_and_per_token_after_the_first():
    said = Said(text="abc", finish_reason="stop", usage=Usage(completion_tokens=5))
    streamed = _response(said, first_at=1.5, last_at=3.5)
    assert (streamed.latency_s, streamed.ttft_s, streamed.tpot_s) == (2.5, 0.5, 0.5)
    one = _response(
        Said(text="a", finish_reason="stop", usage=Usage(completion_tokens=1)),
        first_at=2.0,
        last_at=2.0,
    )
    assert (one.ttft_s, one.tpot_s) == (1.0, None)
    assert (_response(said).ttft_s, _response(said).tpot_s) == (None, None)


KNOWN = {
    "stop": "stop eos eos_token end_turn STOP stop_sequence COMPLETE complete stop_token Stop"
    " FINISH_REASON_STOP FinishReason.STOP endTurn end-turn eosFound stop_words end_id completed"
    " stopStringFound",
    "length": "length max_tokens MAX_TOKENS LENGTH maxTokens FINISH_REASON_MAX_TOKENS model_length"
    " max_output_tokens token_limit model_context_window_exceeded contextLengthReached limit"
    " maxPredictedTokensReached",
    "tool_calls": "tool_calls tool_use tool-calls TOOL_CALL",
    "function_call": "function_call",
    LOOPED: "repetition REPETITION repeat repetition_truncation repetition_detected loop_detected",
    BREAK: "cancelled canceled CANCELLED abort aborted timeout timed_out error ERROR content_filter"
    " contentFilter content-filter SAFETY safety sensitive network_error time_limit"
    " insufficient_system_resource ERROR_TOXIC upstream_error internal_server_error"
    " client_disconnected request_cancelled engine_dead_error out_of_memory gpu_oom RECITATION"
    " guardrail_intervened engine_overloaded failed modelUnloaded user_cancel",
    PENDING: "null None not_finished FINISH_REASON_UNSPECIFIED in_progress",
}
ROWS = [(reason, meant) for meant, reasons in KNOWN.items() for reason in reasons.split()]


def _whole(reason, text="Par"):
    choice = {"message": {"content": text}, "finish_reason": reason}
    return wire.decode(json.dumps({"choices": [choice]}).encode(), "application/json")


def _streamed(*reasons):
    answer = StreamedAnswer()
    for reason in reasons:
        text = {"content": "Par"} if reason is reasons[0] else {}
        choice = {"index": 0, "delta": text, "finish_reason": reason}
        answer.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", 0.0)
    return answer.finish()


def _response_finish_reasons(said):
    asked = Request(sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=5))
    return response(asked, said, start=0.0, end=1.0)


@pytest.mark.parametrize(("reason", "meant"), ROWS)
def test_what_servers_are_known_to_send(reason, meant):
    assert meaning(reason) == meant
    for read in (_whole, _streamed):
        if meant in (BREAK, PENDING):
            with pytest.raises(InvalidResponse, match="ended without an answer"):
                read(reason)
            continue
        found = _response_finish_reasons(read(reason))
        assert (found.finish_reason, found.text) == (meant, "Par")
        assert found.truncated is (meant == "length")
        assert found.looping is (meant == LOOPED)
        assert not found.unlisted_finish
        assert (found.server_finish or reason) == reason


@given(st.sampled_from(ROWS), st.randoms())
def test_the_case_of_letters_means_nothing(row, random):
    reason, meant = row
    if reason.islower():
        assert meaning(reason.upper()) == meant
        assert meaning(reason.replace("_", "-")) == meant
        assert meaning(f" {reason}") == meant


@pytest.mark.parametrize("reason", ["unknown", "other", "my_gateway_ended", "OK", "malformed_call"])
def test_a_reason_of_no_known_server_is_scored_and_says_so(reason):
    for read in (_whole, _streamed):
        found = _response_finish_reasons(read(reason))
        assert (found.text, found.finish_reason, found.unlisted_finish) == ("Par", reason, True)
        assert not found.truncated


def test_a_healthy_reason_keeps_no_second_word():
    assert _whole("stop").server_finish is None
    assert _whole("length").server_finish is None


@pytest.mark.parametrize("before", ["null", "", "not_finished", None])
def test_a_stream_goes_on_until_a_reason_ends_it(before):
    assert _streamed(before, before, "stop").finish_reason == "stop"


@pytest.mark.parametrize("others", [("error", "stop"), ("stop", "error"), ("stop", "cancelled")])
def test_a_break_before_or_after_another_reason_is_no_answer(others):
    with pytest.raises(InvalidResponse, match="ended without an answer"):
        _streamed(None, *others)


@pytest.mark.parametrize(
    ("told", "meant"), [({"type": "stop", "matched": 2}, "stop"), ({"type": "length"}, "length")]
)
def test_the_object_of_sglang_is_read(told, meant):
    assert _whole(told).finish_reason == _streamed(told).finish_reason == meant


@pytest.mark.parametrize("told", [7, True, [], {}, {"type": 3}, ["stop"]])
def test_a_reason_that_is_no_word_ends_nothing(told):
    for read in (_whole, _streamed):
        with pytest.raises(InvalidResponse, match="finish_reason"):
            read(told)


@given(st.text(max_size=30))
def test_any_word_has_a_meaning(reason):
    assert isinstance(meaning(reason), str)


PARIS = ToolCall("weather", '{"city": "Paris"}')
LYON = ToolCall("weather", '{"city": "Lyon"}')
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def _answer_calls(*calls, **message):
    choice = {
        "message": {"content": None, "tool_calls": list(calls), **message},
        "finish_reason": "tool_calls",
    }
    return json.dumps({"choices": [choice]}).encode()


def _call(name="weather", arguments=PARIS.arguments):
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
def test_the_calls_of_a_whole_answer_are_kept(told, kept):
    said = wire.decode(_answer_calls(*told), "application/json")
    assert (said.tool_calls, said.text, said.finish_reason) == (kept, "", "tool_calls")


@pytest.mark.parametrize("told", [None, {"name": "x"}, "x", 3, True])
def test_what_are_no_calls_spoils_no_answer(told):
    choice = {"message": {"content": "7", "tool_calls": told}, "finish_reason": "stop"}
    assert wire.decode(json.dumps({"choices": [choice]}).encode(), "") == bodies.Said(
        text="7", finish_reason="stop"
    )


def _piece(index, identity=None, **function):
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
def test_the_calls_of_a_stream_are_put_together(pieces, kept):
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
def test_anything_at_all_may_stand_for_calls(told):
    calls = ToolCalls()
    calls.add(told)
    calls.add(told)
    assert all(call.name for call in calls.whole())


# Through a real socket


def _ask(tmp_path, *, stream, right, tools, **config):
    prompt = (Message(role="user", content="How is the weather?"),)
    line = {"sha256": prompt_sha256(prompt), "right": right, "wrong": "", "probability": 1.0}
    (tmp_path / "answers.jsonl").write_bytes(msgspec.json.encode(line) + b"\n")

    async def main():
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
def test_a_call_comes_back_is_journalled_and_is_not_empty(tmp_path, stream):
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

    def judged(sample, response):
        assert response.tool_calls == (PARIS,)
        return Score(value=1.0, outcome=Outcome.CORRECT)

    task = prepared(score=judged)
    assert score_response(task.task, task.dataset.samples[0], response).outcome is Outcome.CORRECT


@pytest.mark.parametrize(("tools", "config"), [(None, {}), (TOOLS, {"no_tools": True})])
def test_without_tools_the_same_answer_is_a_text(tmp_path, tools, config):
    response = _ask(tmp_path, stream=False, right=CALLING, tools=tools, **config)
    assert (response.text, response.tool_calls) == (CALLING, ())


def test_a_call_without_thoughts_ended_was_not_stopped_in_reasoning():
    response = Response(text="", finish_reason="stop", reasoning="hm", tool_calls=(PARIS,))
    assert not response.stopped_in_reasoning


def test_a_piece_that_is_no_call_hides_none_behind_it():
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


def _piece(index, one_id, name="weather"):
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
def test_faults_in_the_frame_of_calls_are_told(pieces, streamed, faults):
    calls = ToolCalls(streamed=streamed)
    for piece in pieces:
        calls.add([piece])
    assert calls.faults() == faults


def test_turns_with_calls_and_results_are_sent_as_openai_has_them():
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
