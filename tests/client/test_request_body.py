"""Test that a body is the same whether or not the JSON around its prompt was encoded before."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.request import RequestEncoder
from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.wire import NeutralField, NeutralFields
from serve_eval.schema import Message, Request, SamplingParams

_PLAIN = SamplingParams(max_tokens=8)
_EXTRA = {"truncate_prompt_tokens": 4096}
_NEUTRAL = NeutralFields([NeutralField("top_k", -1, frozenset({"top_k"}), greedy=True)])
_KINDS = [
    (_PLAIN, _EXTRA, False),
    (replace(_PLAIN, stop=("\n", "</s>")), _EXTRA, False),
    (replace(_PLAIN, seed=7, temperature=0.5), {}, True),
    (_PLAIN, {"top_k": 3, "prompt": "that of the plan"}, False),
    (_PLAIN, {"model": "another"}, False),
]


@given(st.lists(st.tuples(st.sampled_from(_KINDS), st.text(), st.booleans()), max_size=12))
def test_the_body_of_a_request_does_not_depend_on_those_before(
    asked: list[tuple[tuple[SamplingParams, dict[str, object], bool], str, bool]],
) -> None:
    encoder = RequestEncoder('a "model"', "max_tokens", "inline")
    for (sampling, extra, stream), prompt, neutral in asked:
        encoder.neutral = _NEUTRAL if neutral else encoder.neutral
        request = Request(sample_id="1", prompt=prompt, sampling=sampling, extra=extra)
        for one in (request, msgspec.structs.replace(request, prompt=prompt + "?")):
            said = encoder.encode_at_once(one, stream=stream)
            plain = wire.encode(one, 'a "model"', stream=stream, neutral=encoder.neutral)
            assert said == plain


def test_fields_of_one_request_and_chats_are_not_taken_for_those_of_others() -> None:
    encoder = RequestEncoder("m", "max_completion_tokens", "inline")
    text = Request(sample_id="1", prompt="a", sampling=_PLAIN, extra=_EXTRA)
    chat = msgspec.structs.replace(text, prompt=(Message(role="user", content="a"),))
    for _ in range(3):
        assert b'"prompt":"a"' in (encoder.encode_at_once(text) or b"")
        over = encoder.encode_at_once(text, over={"prompt": "b"}) or b""
        assert b'"prompt":"b"' in over
        body = encoder.encode_at_once(chat) or b""
        assert b'"max_completion_tokens":8' in body
        assert b'"prompt"' not in body
