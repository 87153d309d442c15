"""Test the route /v1/responses: requests, whole answers and what is no answer."""

import asyncio
import json

import pytest

from serve_eval.client.client import Client
from serve_eval.client.preflight import check
from serve_eval.client.wire_format import responses, wire
from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.launchers._http.responses import to_chat
from serve_eval.schema import (
    CallMessage,
    Endpoint,
    Failure,
    ImagePart,
    ImageUrl,
    Limits,
    Message,
    Request,
    ResultMessage,
    Route,
    SamplingParams,
    TextPart,
    ThoughtMessage,
    ToolCall,
)
from tests.scripted_server import ScriptedServer, json_reply

RESPONSES = ("/v1/responses",)
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Paris.", "annotations": []}],
}
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "France, so Paris."}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "get_weather",
    "arguments": '{"city": "Paris"}',
    "status": "completed",
}
USAGE = {
    "input_tokens": 12,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 19,
}


def whole(*output, **fields):
    """Return the body of an answer in OpenAI's form."""
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "output": list(output),
        "usage": USAGE,
        **fields,
    }


def decoded(body):
    return responses.decode(json.dumps(body).encode(), "application/json")


def written(prompt, extra=None, stream=False, **sampling):
    sampling = SamplingParams(**{"max_tokens": 64, **sampling})
    request = Request(sample_id="1", prompt=prompt, sampling=sampling, extra=extra or {})
    return json.loads(wire.encode(request, "m", stream=stream, by=Route.RESPONSES))


PROMPT = (Message(role="user", content="Capital?"),)


def ask(script, prompt=PROMPT, **limits):
    server = ScriptedServer(script, paths=RESPONSES)

    async def main():
        async with (
            server.serve() as url,
            Client(
                Endpoint(base_url=url, model="m"),
                Limits(max_attempts=1, **limits),
                route="responses",
            ) as client,
        ):
            request = Request(
                sample_id="1", prompt=prompt, sampling=SamplingParams(max_tokens=16, stop=("\n",))
            )
            return await client.send(request)

    return asyncio.run(main()), server


async def test_the_short_request_before_a_run_asks_for_as_many_tokens_as_openai_needs():
    server = ScriptedServer([json_reply(whole(MESSAGE))], paths=RESPONSES)
    async with (
        server.serve() as url,
        Client(Endpoint(base_url=url, model="m"), Limits(), route="responses") as client,
    ):
        await check(client, chat=True, sampling=SamplingParams(max_tokens=2), extra={})
    [asked] = server.asked
    assert asked.body["max_output_tokens"] == 16


def test_messages_go_to_the_route_and_are_answered():
    said, server = ask([json_reply(whole(REASONING, MESSAGE))])
    assert (said.text, said.reasoning, said.finish_reason) == (
        "Paris.",
        "France, so Paris.",
        "stop",
    )
    usage = said.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (12, 7)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (4, 5)
    assert server.bodies == [
        {
            "model": "m",
            "input": [{"type": "message", "role": "user", "content": "Capital?"}],
            "max_output_tokens": 16,
            "temperature": 0.0,
            "top_p": 1.0,
            "store": False,
        }
    ]


def test_texts_go_to_completions_by_the_same_client():
    said, server = ask([json_reply(whole(MESSAGE))], prompt="2 + 2 =")
    assert isinstance(said, Failure)
    assert [request.path for request in server.requests] == []


def test_a_conversation_is_written_as_items():
    image = ImagePart(image_url=ImageUrl(url="data:image/png;base64,AA=="))
    calls = (ToolCall(name="get_weather", arguments='{"city": "Paris"}'),)
    prompt = (
        Message(role="system", content="Be brief."),
        Message(role="user", content=(TextPart(text="Here?"), image)),
        CallMessage(role="assistant", content="", tool_calls=calls, call_ids=("call_1",)),
        ResultMessage(role="tool", content="22 C", call_id="call_1"),
        Message(role="assistant", content="It is warm."),
        Message(role="user", content="Thanks."),
    )
    body = written(prompt)
    assert body["instructions"] == "Be brief."
    assert [(item["type"], item.get("role")) for item in body["input"]] == [
        ("message", "user"),
        ("function_call", None),
        ("function_call_output", None),
        ("message", "assistant"),
        ("message", "user"),
    ]
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "Here?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
    ]
    assert body["input"][1]["call_id"] == body["input"][2]["call_id"] == "call_1"
    assert body["input"][2]["output"] == "22 C"
    assert body["input"][3]["content"][0] == {
        "type": "output_text",
        "text": "It is warm.",
        "annotations": [],
    }


def test_fields_of_chat_are_translated():
    function = {"name": "get_weather", "parameters": {"type": "object"}}
    schema = {"name": "answer", "schema": {"type": "object"}, "strict": True}
    body = written(
        (Message(role="user", content="?"),),
        {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "response_format": {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": "low",
            "top_k": 1,
            "store": True,
        },
        stream=True,
        stop=("END",),
        seed=7,
        temperature=None,
    )
    assert body["tools"] == [{"type": "function", **function}]
    assert body["tool_choice"] == {"type": "function", "name": "get_weather"}
    assert body["text"] == {"format": {"type": "json_schema", **schema}}
    assert body["reasoning"] == {"effort": "low"}
    assert (body["top_k"], body["store"], body["stream"], body["seed"]) == (1, True, True, 7)
    absent = {"stop", "stream_options", "messages", "max_tokens", "response_format", "temperature"}
    assert not absent & body.keys()


@pytest.mark.parametrize(
    ("body", "finish", "server"),
    [
        (whole(MESSAGE), "stop", None),
        (whole(CALL), "tool_calls", None),
        (
            whole(
                MESSAGE,
                status="incomplete",
                incomplete_details={"reason": "max_output_tokens"},
            ),
            "length",
            "max_output_tokens",
        ),
        (whole(MESSAGE, status="incomplete"), "length", "incomplete"),  # trtllm-serve
        (whole(), "stop", None),
        (whole(MESSAGE, usage=None), "stop", None),
    ],
)
def test_a_status_says_how_an_answer_ended(body, finish, server):
    said = decoded(body)
    assert (said.finish_reason, said.server_finish) == (finish, server)


def test_calls_and_refusals_are_read():
    refusal = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    said = decoded(whole(refusal, CALL))
    assert said.tool_calls == (ToolCall(name="get_weather", arguments='{"city": "Paris"}'),)
    assert (said.text, said.refusal, said.call_faults) == ("", "No.", ())


def test_a_commentary_is_no_part_of_the_answer():
    before = {**MESSAGE, "phase": "commentary", "content": [{"type": "text", "text": "I look."}]}
    assert decoded(whole(before, {**MESSAGE, "phase": "final_answer"})).text == "Paris."
    assert decoded(whole(before)).text == "I look."


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ([], "no JSON object"),
        ({"choices": [{"message": {"content": "4"}}]}, "it has choices"),
        (whole(MESSAGE, object="chat.completion"), "its object is 'chat.completion'"),
        (whole(MESSAGE, status="failed", error={"message": "no KV blocks"}), "no KV blocks"),
        (whole(MESSAGE, status="cancelled"), "status 'cancelled'"),
        (whole(MESSAGE, status="in_progress"), "not finished"),
        (whole(MESSAGE, status="queued"), "not finished"),
        (whole(MESSAGE, status=None), "no status"),
        (whole(MESSAGE, output=None), "no output"),
        (whole(MESSAGE, error={"message": "engine died"}), "engine died"),
        ({"error": {"message": "engine died"}}, "engine died"),
        ({"detail": "Not Found"}, "Not Found"),
        (
            whole(MESSAGE, status="incomplete", incomplete_details={"reason": "content_filter"}),
            "content_filter",
        ),
        (
            whole({"type": "message", "content": [{"type": "odd", "text": "4"}]}),
            "unknown type 'odd'",
        ),
    ],
)
def test_a_body_without_an_answer_is_refused(body, why):
    with pytest.raises(InvalidResponse, match=why):
        decoded(body)


def test_a_stop_string_ends_an_answer_that_did_not_know_it():
    told = {**MESSAGE, "content": [{"type": "output_text", "text": "Paris.\nQuestion: next"}]}
    cut = whole(told, status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    said, server = ask([json_reply(cut)])
    assert (said.text, said.finish_reason, said.stop_reason) == ("Paris.", "stop", "\n")
    assert "stop" not in server.bodies[0]


def test_an_answer_of_all_tokens_is_cut_although_the_server_says_completed():
    used = {"input_tokens": 5, "output_tokens": 16}
    said, _ = ask([json_reply(whole(MESSAGE, usage=used))])
    assert (said.finish_reason, said.server_finish) == ("length", "completed")


def test_an_error_is_a_failure_with_the_words_of_the_server():
    error = {"error": {"message": "Unsupported parameter: 'top_p'", "type": "invalid_request"}}
    said, _ = ask([json_reply(error, status=400)])
    assert isinstance(said, Failure)
    assert said.message == "HTTP 400: Unsupported parameter: 'top_p'"


CALLS = (ToolCall(name="get_weather", arguments="{}"),)


@pytest.mark.parametrize(
    ("tagged", "calls", "kinds"),
    [
        (False, (), ["message", "reasoning", "message"]),
        (False, CALLS, ["message", "reasoning", "message", "function_call"]),
        (True, (), ["message", "message"]),
    ],
)
def test_thoughts_of_the_history_reach_the_chat_that_a_server_makes_of_items(tagged, calls, kinds):
    turn = ThoughtMessage(
        role="assistant",
        content="Warm.",
        tool_calls=calls,
        call_ids=("call_1",) * len(calls),
        reasoning="It is June.",
        tagged=tagged,
    )
    body = written((Message(role="user", content="Is it?"), turn))
    assert [item["type"] for item in body["input"]] == kinds
    _, *turns = to_chat(json.dumps(body).encode()).chat["messages"]
    thoughts = [one.get("reasoning_content") for one in turns]
    assert thoughts[0] == (None if tagged else "It is June.")
    assert turns[0]["content"] == ("<think>\nIt is June.\n</think>\n\nWarm." if tagged else "Warm.")


def test_thoughts_without_a_text_go_to_the_call_that_follows_them():
    turn = ThoughtMessage(
        role="assistant",
        content="",
        tool_calls=CALLS,
        call_ids=("call_1",),
        reasoning="It is June.",
    )
    body = written((Message(role="user", content="Is it?"), turn))
    [_, told] = to_chat(json.dumps(body).encode()).chat["messages"]
    assert (told["reasoning_content"], len(told["tool_calls"])) == ("It is June.", 1)


def test_the_first_stop_string_in_an_answer_is_its_reason():
    said = responses.settle(
        Said(text="Paris. Q: next\nQ:"), SamplingParams(max_tokens=8, stop=("\n", "Q:"))
    )
    assert (said.finish_reason, said.stop_reason) == ("stop", "Q:")
