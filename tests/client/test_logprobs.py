"""Test log-probabilities of prompts: every form over a socket, and bodies as servers write them."""

import asyncio
import json

import msgspec
import pytest

from serve_eval.client.client import Client
from serve_eval.client.wire_format.logprobs import _offsets, decode
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.schema import (
    Endpoint,
    Failure,
    Limits,
    PromptLogprobs,
    Request,
    Response,
    SamplingParams,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.scorers.likelihood import continuation, is_likeliest, negative_log_likelihood
from serve_eval.storage.journal import Journal, Record

TEXT = "The sky is blue."
JSON = "application/json"


def _ask(form, served, answers, **limits):
    line = {"sha256": prompt_sha256(TEXT), "right": "-0.25", "wrong": "-4", "probability": 1.0}
    answers.write_bytes(msgspec.json.encode(line) + b"\n")
    app = create_app(SimulatorConfig(answers=answers, prompt_logprobs=served, record=True))
    request = Request(
        sample_id="1",
        prompt=TEXT,
        sampling=SamplingParams(max_tokens=1, stop=("sky",)),
        prompt_logprobs=True,
    )

    async def main():
        chosen = Limits(max_attempts=1, **limits)
        async with (
            serve(app) as url,
            Client(Endpoint(base_url=url, model="simulated"), chosen) as client,
        ):
            client.logprobs_form = form
            return await client.send(request)

    return asyncio.run(main()), app[STATS].bodies[-1]


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_token_but_the_first_has_its_log_probability(form, stream, tmp_path):
    result, body = _ask(form, form, tmp_path / "a", stream=stream)
    assert isinstance(result, Response), result
    told = result.prompt_logprobs
    assert told == PromptLogprobs(
        values=(-0.25,) * 3, skipped=1, offsets=(3, 7, 10), likeliest="111"
    )
    assert (result.text, result.truncated, result.usage.prompt_tokens) == ("", False, 4)
    assert "stream" not in body
    with Journal(tmp_path / "j") as journal:
        journal.append(Record(id="1", response=result))
        assert [record.response for record in journal.records()] == [result]


@pytest.mark.parametrize(
    ("form", "served"),
    [
        ("echo", "none"),
        ("echo", "prompt_logprobs"),
        ("prompt_logprobs", "none"),
        ("prompt_logprobs", "echo"),
    ],
)
def test_a_server_that_ignores_the_fields_is_no_answer(form, served, tmp_path):
    result, _ = _ask(form, served, tmp_path / "a")
    assert isinstance(result, Failure)
    assert "0 log-probabilities for a prompt of 4 tokens" in result.message


def _body(usage=None, **choice):
    told = None if usage is None else {"prompt_tokens": usage, "completion_tokens": 1}
    return json.dumps({"choices": [{"finish_reason": "length", **choice}], "usage": told}).encode()


def _echo(tokens, values, offsets=None):
    return {
        "logprobs": {
            "tokens": tokens,
            "token_logprobs": values,
            "text_offset": offsets,
            "top_logprobs": None,
        }
    }


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        # the usage or the offset shows where the generated token begins
        (
            _body(3, **_echo(["a", " b", " c", " d"], [None, -1.0, -2.0, -9.0], [0, 1, 3, 5])),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3)),
        ),
        (
            _body(None, **_echo(["a", " b", " c", " d"], [None, -1.0, -2.0, -9.0], [0, 1, 3, 5])),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3)),
        ),
        # a token before the text, whose letters vLLM counts into the offsets
        (
            _body(4, **_echo(["<s>", "a", " b", " c"], [None, -0.5, -1.0, -2.0], [0, 3, 4, 6])),
            PromptLogprobs(values=(-0.5, -1.0, -2.0), offsets=(0, 1, 3)),
        ),
        # a token before the text that is counted but not listed, as in llama-cpp-python
        (
            _body(4, **_echo(["a", " b", " c", " d"], [None, -1.0, -2.0, -9.0], [0, 1, 3, 5])),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3)),
        ),
        # a prompt whose beginning truncate_prompt_tokens removed
        (
            _body(2, **_echo([" b", " c"], [None, -2.0], [0, 2])),
            PromptLogprobs(values=(-2.0,), offsets=(3,)),
        ),
        # a token before the text that is counted but not listed; the first listed one begins with a
        # space
        (
            _body(4, **_echo([" a", " b", " c", " d"], [None, -1.0, -2.0, -9.0])),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3)),
        ),
        # a server that gives a value to the first token as well
        (
            _body(3, **_echo(["a", " b", " c"], [-3.0, -1.0, -2.0])),
            PromptLogprobs(values=(-3.0, -1.0, -2.0), skipped=0, offsets=(0, 1, 3)),
        ),
        # tokens without text: the offsets are trusted, or the tokens kept
        (
            _body(3, **_echo(["a", " \ufffd", "\ufffd"], [None, -1.0, -2.0], [0, 1, 3])),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3)),
        ),
        (
            _body(3, **_echo(["a", " \ufffd", "\ufffd"], [None, -1.0, -2.0], [0, 1, 30])),
            PromptLogprobs(values=(-1.0, -2.0), tokens=(" \ufffd", "\ufffd")),
        ),
        (
            _body(3, logprobs={"token_logprobs": [None, -1, -2]}),
            PromptLogprobs(values=(-1.0, -2.0)),
        ),
        # vLLM's field, with a likelier token next to that of the prompt
        (
            _body(
                3,
                prompt_logprobs=[
                    None,
                    {
                        "7": {"logprob": -1.0, "rank": 2, "decoded_token": " b"},
                        "8": {"logprob": -0.1, "rank": 1},
                    },
                    {"9": {"logprob": -2.0, "rank": 1, "decoded_token": " c"}},
                ],
            ),
            PromptLogprobs(values=(-1.0, -2.0), offsets=(1, 3), likeliest="01"),
        ),
        # the likeliest token of each position, which may be that of the prompt; the last entry was
        # generated
        (
            _body(
                3,
                logprobs={
                    "token_logprobs": [None, -1.0, -2.0, -0.1],
                    "top_logprobs": [
                        None,
                        {" b": -1.0, " x": -3.0},
                        {" c": -2.0, " y": -0.5},
                        {".": -0.1},
                    ],
                },
            ),
            PromptLogprobs(values=(-1.0, -2.0), likeliest="10"),
        ),
    ],
)
def test_bodies_of_servers(body, kept):
    assert decode(body, JSON, "a b c").prompt_logprobs == kept
    named = json.dumps({**json.loads(body), "id": "cmpl-1"}).encode()
    assert (decode(body, JSON, "a b c").id, decode(named, JSON, "a b c").id) == (None, "cmpl-1")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (_body(3, text="a b c"), "0 log-probabilities for a prompt of 3 tokens"),
        (_body(None, text="a b c"), "0 log-probabilities for a prompt of some tokens"),
        (_body(3, **_echo(["x"], [-1.0], [0])), "1 log-probabilities for a prompt of 3 tokens"),
        (_body(3, **_echo(["a", " b", " c"], [None, None, -1.0])), "1 of 3 tokens"),
        (_body(3, **_echo(["a", " b", " c"], [None, -1.0, None])), "1 of 3 tokens"),
        (_body(1, **_echo(["a"], [None])), "0 of 1 tokens"),
        (
            _body(None, **_echo(["a", " b", " c", " d"], [None, -1.0, -2.0, -9.0])),
            "which tokens belong to the prompt",
        ),
        (
            _body(3, **_echo(["a", " b", " c"], ["x", -1.0, -1.0])),
            "no log-probabilities",
        ),
        (b'{"error": "no"}', "an error object"),
        (b'{"choices": []}', "no choices"),
        (b"<html>", "no log-probabilities"),
        (_body(1, finish_reason="cancelled", **_echo(["a"], [-1.0])), "finish_reason 'cancelled'"),
    ],
)
def test_what_does_not_tell_of_the_whole_prompt_is_no_answer(body, why):
    with pytest.raises(InvalidResponse, match=why):
        decode(body, JSON, "a b c")


@pytest.mark.parametrize(
    ("tokens", "given", "known"),
    [
        ([None] * 3, [0, 0, 3], [0, 0, 3]),
        ([None] * 3, [0, 2, 4], None),  # beyond the four characters of the prompt
        ([None] * 3, [0, 3, 2], None),
        ([None] * 3, [], None),
        ([None] * 3, None, None),
        (["a", "bc", "d"], [7, 7, 7], [0, 1, 3]),
        ([None, "bc", "d"], [7, 7, 7], [1, 1, 3]),
        (["<s>", "bc", "d"], None, [1, 1, 3]),
        (["a", "x", "d"], [0, 1, 3], [0, 1, 3]),
    ],
)
def test_the_places_of_tokens_are_those_of_their_texts_or_else_those_that_fit_the_prompt(
    tokens, given, known
):
    assert _offsets(tokens, given, "abcd") == known


def test_what_a_text_and_a_continuation_are_worth():
    told = PromptLogprobs(values=(-1.0, -2.0, -3.0), offsets=(1, 4, 8))
    assert negative_log_likelihood(told) == (6.0, 3)
    text = "a bb ccc d"
    assert continuation(told, text, 4) == (-2.0, -3.0)
    assert continuation(told, text, 6) == (-2.0, -3.0)  # the token from 4 on reaches into it
    assert continuation(told, text, 0) == (-1.0, -2.0, -3.0)
    assert continuation(told, text, 9) == (-3.0,)
    assert is_likeliest(told, 2) is None
    known = msgspec.structs.replace(told, likeliest="011")
    assert [is_likeliest(known, count) for count in (1, 2, 3)] == [True, True, False]


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        (("\ufffd", "\ufffd", ":", " A"), (-4.0,)),  # the tokens of ∈ have no text
        (("\ufffd", "\ufffd", ":", " ", "A"), (-4.0, -5.0)),
        (("\ufffd", "\ufffd", ": A"), (-3.0,)),  # it reaches into the continuation
        (("\ufffd", "\ufffd", ":", " \ufffd"), None),
        (("A",), None),
        (None, None),
    ],
)
def test_a_continuation_is_found_by_its_tokens_where_places_are_not_told(tokens, kept):
    values = tuple(-float(i) for i in range(1, len(tokens or ".") + 1))
    assert continuation(PromptLogprobs(values=values, tokens=tokens), "∈: A", 2) == kept


@pytest.mark.parametrize(
    ("told", "kept"),
    [(1.75, 1.75), (2, 2.0), (128, 128.0), (2**53, None), (None, None), ("2", None), (0, None)],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_per_step_of_speculative_decoding_are_kept(told, kept, stream):
    from serve_eval.client.wire_format import wire
    from serve_eval.client.wire_format.stream import StreamedAnswer

    choice = {"index": 0, "text": "7", "finish_reason": "stop", "avg_decoded_tokens_per_iter": told}
    body = json.dumps({"choices": [choice]}).encode()
    if stream:
        answer = StreamedAnswer()
        answer.feed(b"data: " + body + b"\n\ndata: [DONE]\n\n", 0.0)
        assert answer.finish().tokens_per_step == kept
    else:
        assert wire.decode(body, JSON).tokens_per_step == kept


def test_a_byte_order_mark_and_another_order_of_choices_change_no_log_probability():
    listed = {"tokens": ["a", "b"], "token_logprobs": [None, -1.5], "text_offset": [0, 1]}
    choices = [{"index": 1, "logprobs": None}, {"index": 0, "logprobs": listed}]
    body = json.dumps(
        {"choices": choices, "usage": {"prompt_tokens": 2, "completion_tokens": 0}}
    ).encode()
    told = decode(b"\xef\xbb\xbf" + body, "application/json", "ab").prompt_logprobs
    assert told.values == (-1.5,)


def test_log_probabilities_keep_the_configuration_that_gave_them():
    body = {
        "choices": [{"logprobs": {"tokens": ["T", "h"], "token_logprobs": [None, -1.0]}}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 0},
        "system_fingerprint": "vllm-0.32.0-ce948131",
    }
    said = decode(json.dumps(body).encode(), JSON, "Th")
    assert said.fingerprint == "vllm-0.32.0-ce948131"
