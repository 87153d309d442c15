"""Test what is kept of an answer: separate reasoning, cut stop strings, times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format.answer import response, split_thinking
from serve_eval.client.wire_format.wire import Said
from serve_eval.schema import Request, Response, SamplingParams, Usage


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
