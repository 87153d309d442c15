"""The meaning of each finish_reason, whole and streamed, and the differences between servers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.answer import response
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.client.wire_format.wire import InvalidResponse, Said
from serve_eval.schema import LOOPED, Request, Response, SamplingParams

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


def _response(said: Said) -> Response:
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
        found = _response(read(reason))
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
        found = _response(read(reason))
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
