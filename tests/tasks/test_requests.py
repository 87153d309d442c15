"""Recorded requests are sent as they were, but for what the plan sets; their form is counted."""

from __future__ import annotations

import json

import pytest

from serve_eval.errors import PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import RecordedBody, Response, Route, Spec, ToolCall
from serve_eval.tasks.requests import find_fault, find_groups, show_prompt
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail, json_reply, models

KEY = "sk-proj-9aB3dE7fG1hJ5kL2mN8pQ"
CHAT = {
    "model": "old",
    "messages": [{"role": "user", "content": [{"type": "text", "text": f"Hi {KEY}"}]}],
    "max_completion_tokens": 9,
    "logit_bias": {"5": -1},
    "user": "ann",
}
STREAMED = {"messages": [{"role": "user", "content": "Go"}], "stream": True, "temperature": 0}
TEXT = {"model": "old", "prompt": "One, two,", "max_tokens": 4, "stop": ["."]}
OURS = "--set server_defaults=keep --set limits.order=natural --concurrency 1"


SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}
ITEMS = {
    "/v1/responses": json_reply({"object": "response", "status": "completed", "output": [SAID]})
}


def write_log(folder, *rows):
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(folder, rows, *more, reply=None, exits=3, tells=""):
    """Run the command with a log of these rows; return the requests for them, and the folder."""
    said = reply or answer("Yes", usage=(3, 1))
    server = ScriptedServer(said, routes={"/v1/models": models("new"), **ITEMS})
    log, out = write_log(folder, *rows), folder / "out"
    with server.serve_in_thread() as url:
        serve_eval(
            f"run --base-url {url} --model new --requests {log} -o {out} {OURS}",
            *more,
            exits=exits,
            tells=tells,
        )
    texts = ("Hi ***", '"Go"', "One, two,")
    return [one for one in server.requests if any(t in json.dumps(one.body) for t in texts)], out


def test_each_body_is_sent_as_it_was_but_for_the_name_of_the_model(tmp_path):
    asked, out = run(tmp_path, [CHAT, {"url": "/v1/completions", "body": TEXT}, STREAMED])
    bodies = [one.body for one in asked]
    chat = {
        **CHAT,
        "model": "new",
        "user": "***",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi ***"}]}],
    }
    for wanted in (chat, {**TEXT, "model": "new"}, {**STREAMED, "model": "new"}):
        assert wanted in bodies
    assert read_json(out / "report.json")["tasks"][0]["verdict"]["outcome"] == "NO REFERENCE"
    kept = "".join(file.read_text(errors="ignore") for file in out.rglob("*") if file.is_file())
    assert KEY not in kept
    assert "ann" not in (out / "prompts/requests.jsonl").read_text()


def test_what_the_plan_sets_replaces_fields_and_null_leaves_them_out(tmp_path):
    asked, _ = run(
        tmp_path,
        [CHAT, TEXT],
        *("--set", "requests.max_tokens=7", "--set", "requests.temperature=0.5"),
        *("--set", 'requests.extra_body={"logit_bias": null, "top_k": 3}'),
    )
    bodies = {one.chat: one.body for one in asked}
    assert (bodies[True]["max_completion_tokens"], bodies[False]["max_tokens"]) == (7, 7)
    assert "max_tokens" not in bodies[True]
    assert all((body["temperature"], body["top_k"]) == (0.5, 3) for body in bodies.values())
    assert all("logit_bias" not in body for body in bodies.values())


MARK = "Zanzibar"
MARKED = [
    {
        "timestamp": 5,
        "headers": {"x-user": MARK},
        "request": {
            "messages": [
                {"role": "system", "content": f"You serve {MARK}."},
                {"role": "user", "name": MARK, "content": "Hi ***"},
                {"role": "tool", "tool_call_id": "1", "content": json.dumps({"city": MARK})},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "description": MARK}}],
            "metadata": {"who": MARK},
            "user": MARK,
            "extra_headers": {"x-user": MARK},
        },
        "response": {"choices": [{"message": {"content": MARK}}]},
    },
    {"timestamp": 6, "url": "/v1/completions", "body": {**TEXT, "suffix": MARK}},
    {"timestamp": 7, "url": "/v1/responses", "body": {"input": MARK, "instructions": MARK}},
]


def test_no_prompts_keeps_nothing_of_a_body_in_any_file(tmp_path):
    done = []

    def reply(asked):
        return fail(400, "no suffix") if "suffix" in asked.body else answer("Yes")

    for more in ((), ("--set", "no_prompts=true")):
        folder = tmp_path / str(len(done))
        folder.mkdir()
        _, out = run(folder, MARKED, *more, reply=reply)
        serve_eval(f"show {out} line-1 line-2 --capsule", exits=2 if more else 0)
        texts = [file.read_text(errors="ignore") for file in out.rglob("*") if file.is_file()]
        done.append(sum(MARK in text for text in texts))
    assert done[0] > 0
    assert done[1] == 0


@pytest.mark.parametrize(
    "options",
    [{"system_prompt": "Be brief."}, {"apply_chat_template": False}, {"thinking": True}],
)
def test_choices_that_make_prompts_are_refused(options):
    with pytest.raises(PlanError, match="requests are sent as they were recorded"):
        build_task(Spec(name="requests", options={"path": "log.jsonl", **options}))


def test_a_broken_line_ends_the_run_before_a_request_unless_it_is_left_out(tmp_path):
    file = write_log(tmp_path, TEXT, {"model": "m"})
    line = f"run --base-url http://127.0.0.1:9 --model m --requests {file} --dry-run"
    serve_eval(line, exits=2, tells="line 2: no messages, prompt or input in it")
    _, out = run(tmp_path, [TEXT, {"model": "m"}], "--set", "requests.skip_broken=true")
    assert "line 2 is left out" in (out / "report.json").read_text()


def test_a_refused_request_is_a_failure_and_no_wrong_answer(tmp_path):
    def reply(asked):
        return fail(400, "no logit_bias") if "logit_bias" in asked.body else answer("Yes")

    _, out = run(tmp_path, [CHAT, TEXT, STREAMED], reply=reply)
    result = read_json(out / "report.json")["tasks"][0]["result"]
    assert (result["scored"], result["failed"], result["value"]) == (2, 1, 100.0)


def test_requests_start_at_their_recorded_times_and_the_report_says_how_late(tmp_path):
    rows = [{"timestamp": 1700000000 + at, "body": TEXT} for at in (0.6, 0.0, 0.3)]
    _, out = run(tmp_path, rows, "--pace", "recorded")
    late = read_json(out / "report.json")["loads"][-1]["lateness"]
    assert (late["requests"], late["span_s"]) == (3, 0.6)
    assert 0.0 <= late["median_s"] <= late["p99_s"] <= late["worst_s"] < 0.5
    assert read_json(out / "report.json")["loads"][-1]["wall_s"] >= 0.6


def test_a_pace_without_recorded_times_is_refused(tmp_path):
    run(tmp_path, [TEXT], "--pace", "recorded", exits=2, tells="has no recorded times")


TOOLS = {"tools": [{"type": "function", "function": {"name": "add"}}]}
JSON = {"response_format": {"type": "json_object"}}


def call(name, arguments):
    return {"tool_calls": (ToolCall(name=name, arguments=arguments),)}


@pytest.mark.parametrize(
    ("fields", "said", "fault"),
    [
        ({}, {"text": "Yes"}, None),
        ({}, {"text": ""}, "empty"),
        ({}, {"text": "", "refusal": "No."}, None),
        ({}, {"text": "", "reasoning": "Hm", "finish_reason": "length"}, None),
        (JSON, {"text": '{"a": 1}'}, None),
        (JSON, {"text": '{"a": '}, "invalid JSON"),
        (JSON, {"text": '{"a": ', "finish_reason": "length"}, "cut JSON"),
        ({"text": {"format": {"type": "json_schema"}}}, {"text": "a"}, "invalid JSON"),
        ({"response_format": {"type": "text"}}, {"text": "a"}, None),
        (TOOLS, {"text": "", **call("add", '{"a": 1}')}, None),
        (TOOLS, {"text": "", **call("add", "")}, None),
        (TOOLS, {"text": "", **call("add", '{"a"')}, "broken arguments"),
        (TOOLS, {"text": "", **call("sub", "{}")}, "unknown tool"),
        ({"tools": [{"type": "function", "name": "sub"}]}, call("sub", "{}"), None),
    ],
)
def test_an_answer_has_the_form_that_its_request_asks_for(fields, said, fault):
    response = Response(**{"text": "", "finish_reason": "stop", **said})
    assert find_fault(fields, response) == fault


def test_readers_see_the_texts_of_a_body_and_the_types_of_the_rest():
    image = {"type": "image_url", "image_url": {"url": "data:..."}}
    content = [{"type": "text", "text": "What?"}, image]
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": None}]
    shown = show_prompt(RecordedBody(route=Route.CHAT, fields={"messages": turns}))
    assert [(one.role, one.content) for one in shown] == [
        ("user", "What?\n[image_url]"),
        ("assistant", ""),
    ]


def test_equal_bodies_and_the_turns_of_a_conversation_form_a_group():
    few = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    first, other = [*few, {"role": "user", "content": "2+2"}], [{"role": "user", "content": "Hi"}]
    later = [*first, {"role": "assistant", "content": "4"}, {"role": "user", "content": "Sure?"}]
    last = [*later, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Why?"}]
    shared = [*few, {"role": "user", "content": "3+3"}]
    bodies = [
        *({"messages": turns, "seed": 1} for turns in (last, first, other, later, shared, first)),
        *({"prompt": text} for text in ("Hi", "Hi", "Hi there")),
    ]
    names = find_groups(
        [
            RecordedBody(route=Route.COMPLETIONS if "prompt" in one else Route.CHAT, fields=one)
            for one in bodies
        ]
    )
    places = [names.index(name) for name in names]
    assert places == [0, 0, 2, 0, 4, 0, 6, 6, 8]


def send_with_the_sdk(url):
    """Send one request of each kind that clients send."""
    import openai

    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    function = {"name": "add", "parameters": {"type": "object"}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    text = {"type": "text", "text": "Hi ***"}
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    for more in (
        {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"},
        {"response_format": {"type": "json_schema", "json_schema": schema}},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"n": 2, "logprobs": True, "seed": 5, "extra_body": {"top_k": 4}},
        {"messages": [{"role": "user", "content": [text, image]}]},
    ):
        turns = [{"role": "user", "content": "Hi ***"}]
        client.chat.completions.create(**{"model": "old", "messages": turns, **more})
    client.completions.create(model="old", prompt=["Hi ***", "Hi *** again"], max_tokens=5)
    client.responses.create(model="old", input="Hi ***", instructions="Go", store=False)


def test_what_the_sdk_sends_is_sent_again_as_it_was(tmp_path):
    server = ScriptedServer(answer("Yes"), routes=ITEMS)
    with server.serve_in_thread() as url:
        send_with_the_sdk(url)
    sent = [one.body for one in server.requests]
    assert len(sent) == 7
    asked, out = run(tmp_path, sent)
    again = [one.body for one in asked]
    assert all({**body, "model": "new"} in again for body in sent)
    notes = (out / "report.json").read_text()
    assert "requests for several answers: 2; only the first is compared" in notes
    assert "requests for log-probabilities: 1; only texts are compared" in notes
