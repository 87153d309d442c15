import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client import questions
from serve_eval.client.wire_format import bodies, refusal, wire
from serve_eval.schema import Message, Request, SamplingParams, Usage

JSON = "application/json"


def _request(**more):
    fields = {"sample_id": "1", "prompt": "Hi", "sampling": SamplingParams(max_tokens=5)} | more
    return Request(**fields)


def test_sampling_is_always_sent_in_full():
    assert json.loads(wire.encode(_request(), "m")) == {
        "model": "m",
        "prompt": "Hi",
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 1.0,
    }


def test_stop_seed_and_extra_fields_are_sent_when_they_are_set():
    sampling = SamplingParams(max_tokens=5, seed=7, stop=("a", "b"))
    body = json.loads(
        wire.encode(_request(sampling=sampling, extra={"truncate_prompt_tokens": 9}), "m")
    )
    assert (body["seed"], body["stop"], body["truncate_prompt_tokens"]) == (7, ["a", "b"], 9)


def test_a_field_that_is_none_is_left_out():
    body = json.loads(
        wire.encode(
            _request(sampling=SamplingParams(max_tokens=5, temperature=None, top_p=None)), "m"
        )
    )
    assert set(body) == {"model", "prompt", "max_tokens"}


def test_a_chat_request_can_name_its_length_as_hosted_models_want_it():
    chat = _request(prompt=(Message(role="user", content="u"),))
    body = json.loads(wire.encode(chat, "m", max_tokens_field="max_completion_tokens"))
    assert (body["max_completion_tokens"], "max_tokens" in body) == (5, False)
    text = json.loads(wire.encode(_request(), "m", max_tokens_field="max_completion_tokens"))
    assert text["max_tokens"] == 5  # /v1/completions has only the old name


def test_a_stream_is_asked_for_with_its_usage():
    body = json.loads(wire.encode(_request(), "m", stream=True))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(("told", "kept"), [("</s>", "</s>"), (None, None), (151645, None)])
def test_the_stop_string_that_ended_an_answer_is_kept(told, kept):
    body = {"choices": [{"text": "7", "finish_reason": "stop", "stop_reason": told}]}
    assert wire.decode(json.dumps(body).encode(), JSON).stop_reason == kept


def test_messages_go_to_the_chat_route():
    prompt = (Message(role="system", content="s"), Message(role="user", content="u"))
    body = json.loads(wire.encode(_request(prompt=prompt), "m"))
    assert body["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    assert wire.route(prompt) == "/chat/completions"
    assert wire.route("text") == "/completions"


def test_a_completion_of_trtllm_serve_is_read():
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [
            {
                "index": 0,
                "text": " B",
                "token_ids": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "total_tokens": 9,
            "completion_tokens": 2,
            "prompt_tokens_details": {},
        },
        "prompt_token_ids": None,
    }
    answer = wire.decode(json.dumps(body).encode(), JSON)
    assert (answer.text, answer.finish_reason) == (" B", "length")
    assert answer.usage == Usage(prompt_tokens=7, completion_tokens=2)


@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ({"cached_tokens": 5}, 5),
        ({"cached_tokens": 0}, 0),
        ({}, None),
        (None, None),
        ({"cached_tokens": "5"}, None),
    ],
)
def test_the_tokens_that_a_prefix_cache_had_are_kept_and_so_is_the_id(details, kept):
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": details}
    body = {"id": "cmpl-1", "choices": [{"text": "7", "finish_reason": "stop"}], "usage": usage}
    said = wire.decode(json.dumps(body).encode(), JSON)
    assert (said.id, said.usage.cached_tokens) == ("cmpl-1", kept)


def test_a_chat_answer_keeps_reasoning_apart():
    message = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": []}
    answer = wire.decode(
        json.dumps({"choices": [{"message": message, "finish_reason": "length"}]}).encode(), JSON
    )
    assert (answer.text, answer.reasoning) == ("", "hm")


@pytest.mark.parametrize(
    "usage",
    [
        None,
        [],
        {},
        {"prompt_tokens": None},
        {"completion_tokens": 2.0},
        "many",
        {"prompt_tokens": -1},
    ],
)
def test_an_odd_usage_never_costs_the_answer(usage):
    body = json.dumps(
        {"choices": [{"text": "7", "finish_reason": "stop"}], "usage": usage}
    ).encode()
    answer = wire.decode(body, JSON)
    assert answer.text == "7"
    assert answer.usage.completion_tokens in (0, 2)


@pytest.mark.parametrize(
    ("prompt", "completion", "kept"),
    [
        (7, 2, (7, 2)),
        (7, 2.5, (7, 2)),
        (7, "2", (7, 0)),
        (7, None, (7, 0)),
        ("7", 2, (0, 2)),
        (7, -2, (7, 0)),
    ],
)
def test_a_count_of_tokens_that_is_no_number_spoils_not_the_other(prompt, completion, kept):
    usage = bodies.usage({"prompt_tokens": prompt, "completion_tokens": completion})
    assert (usage.prompt_tokens, usage.completion_tokens) == kept


def test_an_empty_text_with_a_finish_reason_is_an_answer():
    assert wire.decode(b'{"choices": [{"text": "", "finish_reason": "stop"}]}', JSON).text == ""
    assert (
        wire.decode(
            b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}', JSON
        ).text
        == ""
    )


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (
            b"<html><head><title>Welcome to nginx</title></head></html>",
            "text/html",
            "Welcome to nginx",
        ),
        (b"", JSON, "an empty body"),
        (b"null", JSON, "not an OpenAI answer"),
        (b'{"choices": ' + b"[" * 100_000, JSON, "not an OpenAI answer"),
        (b'{"usage": ' + b"[" * 100_000, JSON, "not an OpenAI answer"),
        (b"[]", JSON, "not an OpenAI answer"),
        (b'{"choices": []}', JSON, "no choices"),
        (b'{"choices": null}', JSON, "no choices"),
        (b"{}", JSON, "no choices"),
        (b'{"choices": [{"text": "abc"', JSON, "not an OpenAI answer"),
        (b'{"choices": [{"text": 3, "finish_reason": "stop"}]}', JSON, "not an OpenAI answer"),
        (
            b'{"choices": [{"text": null, "finish_reason": null}]}',
            JSON,
            "neither a text nor a finish_reason",
        ),
        (
            b'{"choices": [{"message": {"content": null}}]}',
            JSON,
            "neither a text nor a finish_reason",
        ),
        (b'{"choices": [{"text": ""}]}', JSON, "neither a text nor a finish_reason"),
        (
            b'{"choices": [{"message": {"content": "", "reasoning_content": "hm"}}]}',
            JSON,
            "neither a text nor",
        ),
        (b'{"choices": [{"text": "half", "finish_reason": "cancelled"}]}', JSON, "'cancelled'"),
        (b'{"choices": [{"text": "half", "finish_reason": "timeout"}]}', JSON, "'timeout'"),
        (b'{"choices": [{"text": "", "finish_reason": "abort"}]}', JSON, "'abort'"),
        (b'{"choices": [{"text": "7", "finish_reason": "not_finished"}]}', JSON, "'not_finished'"),
        (b'{"error": {"message": "overloaded"}}', JSON, "overloaded"),
    ],
)
def test_a_body_without_an_answer_is_invalid_never_empty(body, content_type, message):
    with pytest.raises(refusal.InvalidResponse, match=message):
        wire.decode(body, content_type)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            (
                b'{"object":"error","message":"too'
                b' long","type":"BadRequestError","param":null,"code":400}'
            ),
            "too long",
        ),
        (b"{\"error\": \"[{'type': 'extra_forbidden'}]\"}", "[{'type': 'extra_forbidden'}]"),
        (b'{"detail": "Internal server error 400"}', "Internal server error 400"),
        (b'{"detail": [{"loc": ["body"], "msg": "field required"}]}', "field required"),
        (
            (
                b'{"error":{"message":"no such'
                b' model","type":"x","code":"model_not_found","param":null}}'
            ),
            "no such model",
        ),
        (b"LLM is unavailable.", "LLM is unavailable."),
        (b"", "an empty body"),
        (b"<!doctype html><title> Oops </title>", "an HTML page titled 'Oops'"),
        (b"<p>x", "an HTML page"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b'"quoted"', "quoted"),
        (b"{}", "{}"),
    ],
)
def test_every_shape_of_error_body_gives_its_message(body, message):
    assert refusal.describe(body) == message


def test_a_deeply_nested_error_is_text():
    assert refusal.describe(b"[" * 100_000) == "[" * refusal.MAX_MESSAGE
    assert questions.model_ids(b'{"data": ' + b"[" * 100_000) == []


def test_a_long_error_is_cut():
    assert len(refusal.describe(b"x" * 100_000)) == refusal.MAX_MESSAGE


def test_model_lists_are_read_leniently():
    assert questions.model_ids(b'{"object":"list","data":[{"id":"a"},{"id":"b"}]}') == [
        "a",
        "b",
    ]
    for body in (
        b"[]",
        b"",
        b"<html>",
        b'{"data": null}',
        b'{"data": [1]}',
        b'{"detail":"Not Found"}',
    ):
        assert questions.model_ids(body) == []


@given(st.binary(max_size=300), st.sampled_from([JSON, "text/html", ""]))
def test_any_bytes_give_an_answer_or_an_invalid_response(body, content_type):
    with contextlib.suppress(refusal.InvalidResponse):
        wire.decode(body, content_type)
    assert refusal.describe(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["choices", "text", "message", "error", "content", "finish_reason", "detail"]
                ),
                x,
            )
        ),
    )
)
def test_any_json_gives_an_answer_or_an_invalid_response(value):
    body = json.dumps(value).encode()
    with contextlib.suppress(refusal.InvalidResponse):
        wire.decode(body, JSON)
    assert isinstance(refusal.describe(body), str)


def test_an_orchestrator_counts_what_it_asked_again():
    body = b"""# HELP ctx_retry_requests_total Total number of retry requests
# TYPE ctx_retry_requests_total counter
ctx_retry_requests_total 0.0
gen_retry_requests_total{pid="7"} 3.0
encode_retry_requests_total 2.0
# TYPE ctx_retry_requests_created gauge
ctx_retry_requests_created 1.7e+09
"""
    assert questions.count_hidden_retries(body) == {
        "context": 0,
        "generation": 3,
        "encode": 2,
    }
    assert questions.count_hidden_retries(b"<html>no</html>\xff") == {}


def _decoded(*choices, before=b""):
    return wire.decode(before + json.dumps({"choices": choices}).encode(), JSON)


def test_a_byte_order_mark_before_an_answer_is_passed_over():
    assert _decoded({"text": "80", "finish_reason": "stop"}, before=b"\xef\xbb\xbf").text == "80"


def test_the_choice_with_the_index_0_counts_wherever_it_stands():
    other, first = (
        {"index": i, "text": t, "finish_reason": "stop"} for i, t in ((1, "8"), (0, "7"))
    )
    assert _decoded(other, first).text == "7"
    assert _decoded({**first, "index": None}).text == "7"


@pytest.mark.parametrize(
    ("indices", "many"),
    [([1], "no"), ([1, 2], "no"), ([0, 0], "2"), ([0, None], "2"), ([0, 1, 0, 0], "3")],
)
def test_without_one_choice_of_the_index_0_there_is_no_answer(indices, many):
    with pytest.raises(
        refusal.InvalidResponse, match=f"^{many} choices with the index 0 in the answer"
    ):
        _decoded(*({"index": index, "text": "7", "finish_reason": "stop"} for index in indices))


@pytest.mark.parametrize("more", [{"finish_reason": None}, {}, {"finish_reason": ""}])
@pytest.mark.parametrize(
    "said",
    [
        {"text": "7"},
        {"message": {"content": "7"}},
        {"message": {"tool_calls": [{"function": {"name": "f"}}]}},
    ],
    ids=["text", "message", "call"],
)
def test_a_whole_answer_without_a_finish_reason_is_none(said, more):
    with pytest.raises(refusal.InvalidResponse, match="no finish_reason"):
        _decoded({**said, **more})
