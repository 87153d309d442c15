"""Test what is kept of an answer, and what each finish reason means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.answer import response, split_thinking
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.client.wire_format.wire import InvalidResponse, Said
from serve_eval.schema import LOOPED, Request, Response, SamplingParams, Usage


def _response(said: Said, prompt: str = "p", stop: tuple[str, ...] = (), **more: Any) -> Response:
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
def test_thoughts_are_no_part_of_the_answer(text: str, answer: str, thoughts: str | None) -> None:
    assert split_thinking(text) == (answer, thoughts)


def test_a_prompt_that_ends_with_the_model_thinking_needs_a_close() -> None:
    assert (
        _response(Said(text="7 or 8", finish_reason="length"), prompt="<assistant><think>\n").text
        == ""
    )
    closed = _response(
        Said(text="7 or 8</think>7", finish_reason="stop"), prompt="<assistant><think>\n"
    )
    assert (closed.text, closed.reasoning) == ("7", "7 or 8")


def test_thoughts_that_the_server_split_off_stay_first() -> None:
    both = _response(Said(text="<think>b</think>7", reasoning="a", finish_reason="stop"))
    assert (both.text, both.reasoning) == ("7", "a\nb")


@given(
    st.lists(st.sampled_from(["a", "<think>", "</think>", "7", "\n"]), max_size=10), st.booleans()
)
def test_an_answer_never_holds_an_opening_and_thoughts_that_end_leave_the_rest(
    parts: list[str], opened: bool
) -> None:
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
def test_the_answer_is_cut_at_the_first_stop_string(
    text: str, stop: tuple[str, ...], kept: str
) -> None:
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
def test_an_end_within_the_thoughts_is_told_from_a_cut(said: Said, stopped: bool) -> None:
    assert _response(said).stopped_in_reasoning is stopped


def test_times_of_a_stream_are_from_the_request_on_and_per_token_after_the_first() -> None:
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


def _whole(reason: object, text: str = "Par") -> Said:
    choice = {"message": {"content": text}, "finish_reason": reason}
    return wire.decode(json.dumps({"choices": [choice]}).encode(), "application/json")


def _streamed(*reasons: object) -> Said:
    answer = StreamedAnswer()
    for reason in reasons:
        text = {"content": "Par"} if reason is reasons[0] else {}
        choice = {"index": 0, "delta": text, "finish_reason": reason}
        answer.feed(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", 0.0)
    return answer.finish()


def _response_finish_reasons(said: Said) -> Response:
    asked = Request(sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=5))
    return response(asked, said, start=0.0, end=1.0)


@pytest.mark.parametrize(("reason", "meant"), ROWS)
def test_what_servers_are_known_to_send(reason: str, meant: str) -> None:
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
def test_the_case_of_letters_means_nothing(row: tuple[str, str], random: object) -> None:
    reason, meant = row
    if reason.islower():
        assert meaning(reason.upper()) == meant
        assert meaning(reason.replace("_", "-")) == meant
        assert meaning(f" {reason}") == meant


@pytest.mark.parametrize("reason", ["unknown", "other", "my_gateway_ended", "OK", "malformed_call"])
def test_a_reason_of_no_known_server_is_scored_and_says_so(reason: str) -> None:
    for read in (_whole, _streamed):
        found = _response_finish_reasons(read(reason))
        assert (found.text, found.finish_reason, found.unlisted_finish) == ("Par", reason, True)
        assert not found.truncated


def test_a_healthy_reason_keeps_no_second_word() -> None:
    assert _whole("stop").server_finish is None
    assert _whole("length").server_finish is None


@pytest.mark.parametrize("before", ["null", "", "not_finished", None])
def test_a_stream_goes_on_until_a_reason_ends_it(before: str | None) -> None:
    assert _streamed(before, before, "stop").finish_reason == "stop"


@pytest.mark.parametrize("others", [("error", "stop"), ("stop", "error"), ("stop", "cancelled")])
def test_a_break_before_or_after_another_reason_is_no_answer(others: tuple[str, str]) -> None:
    with pytest.raises(InvalidResponse, match="ended without an answer"):
        _streamed(None, *others)


@pytest.mark.parametrize(
    ("told", "meant"), [({"type": "stop", "matched": 2}, "stop"), ({"type": "length"}, "length")]
)
def test_the_object_of_sglang_is_read(told: object, meant: str) -> None:
    assert _whole(told).finish_reason == _streamed(told).finish_reason == meant


@pytest.mark.parametrize("told", [7, True, [], {}, {"type": 3}, ["stop"]])
def test_a_reason_that_is_no_word_ends_nothing(told: object) -> None:
    for read in (_whole, _streamed):
        with pytest.raises(InvalidResponse, match="finish_reason"):
            read(told)


@given(st.text(max_size=30))
def test_any_word_has_a_meaning(reason: str) -> None:
    assert isinstance(meaning(reason), str)
