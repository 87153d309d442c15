"""Conversations whose server keeps the turns before, which the id of an answer then names."""

from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from tests.cases.test_conversations import CAPITALS, TOOLS
from tests.cli.command import serve_eval
from tests.client.test_responses import CALL, MESSAGE, whole
from tests.scripted_server import (
    ScriptedServer,
    fail,
    json_reply,
    models,
    serve_in_thread,
)
from tests.workflows.tools.on_standin import create_standin

ITEMS = "/v1/responses"
BY_ID = "responses_by_id"


def says(text, number):
    message = {**MESSAGE, "content": [{"type": "output_text", "text": text}]}
    return json_reply({**whole(message), "id": f"resp_{number}"})


def served(script):
    return ScriptedServer(script, paths=(ITEMS,), routes={"/v1/models": models("m")})


def run(folder, url, route=BY_ID, cases=CAPITALS, model="m"):
    (folder / "cases.yaml").write_text(cases)
    return serve_eval(
        *("run", "--base-url", url, "--model", model, "--cases", folder / "cases.yaml"),
        *("--route", route, "--no-reference", "-o", folder / route),
    )


def turns_of(server):
    """Return (instructions, input, id) of the requests of the case, without those before it."""
    asked = [one.body for one in server.asked if "Answer with" in str(one.body.get("instructions"))]
    return [
        (
            one["instructions"],
            [item.get("content", item["type"]) for item in one["input"]],
            one.get("previous_response_id"),
            one["store"],
        )
        for one in asked
    ]


def test_a_turn_names_the_answer_before_it(tmp_path):
    server = served(lambda request: says("Paris", request.number))
    with server.serve_in_thread() as url:
        done = run(tmp_path, url)
    assert done.returncode == 3, done.stderr
    first, second, third = turns_of(server)
    system = "Answer with the name alone."
    assert first == (system, ["Capital of France?"], None, True)
    assert (second[:2], third[:2]) == (
        (system, ["And of Japan?"]),
        (system, ["Thank you."]),
    )
    ids = [f"resp_{one.number}" for one in server.asked if "previous_response_id" in one.body]
    assert third[2] == ids[0]
    assert second[2] not in (None, third[2])


def test_without_it_the_whole_history_is_sent(tmp_path):
    server = served(lambda request: says("Paris", request.number))
    with server.serve_in_thread() as url:
        assert run(tmp_path, url, "responses").returncode == 3
    assert [len(items) for _, items, _, _ in turns_of(server)] == [1, 3, 5]
    assert {(name, stored) for _, _, name, stored in turns_of(server)} == {(None, False)}


def test_a_server_that_forgets_leaves_the_conversation_unanswered(tmp_path):
    def script(request):
        if "previous_response_id" in request.body:
            return fail(404, "Response with id 'resp_1' not found.")
        return says("Paris", request.number)

    with served(script).serve_in_thread() as url:
        done = run(tmp_path, url)
    assert done.returncode == 4
    [record] = journal.read(samples_file(tmp_path / BY_ID, "cases-trip"))
    assert record.failure.message == ("turn 2 of 3: HTTP 404: Response with id 'resp_1' not found.")


def test_after_a_call_the_whole_history_goes_since_its_ids_are_ours(tmp_path):
    def script(request):
        last, tools = request.body["input"][-1], request.body.get("tools")
        if tools and last.get("content") != "Thank you." and last["type"] == "message":
            called = {**CALL, "name": tools[0]["name"], "arguments": '{"word": "violet"}'}
            return json_reply({**whole(called), "id": "resp_call"})
        return says("warm", request.number)

    server = served(script)
    with server.serve_in_thread() as url:
        done = run(tmp_path, url, cases=TOOLS)
    assert done.returncode == 3, done.stderr
    asked = [one.body for one in server.asked if "How warm" in str(one.body)]
    assert [item["type"] for item in asked[1]["input"]] == [
        "message",
        "function_call",
        "function_call_output",
    ]
    assert "previous_response_id" not in asked[1]
    last = server.asked[-1].body
    assert [item["content"] for item in last["input"]] == ["Thank you."]
    assert last["previous_response_id"] == f"resp_{len(server.asked) - 1}"


SUMS = """
sums:
  scorer: words
  cases:
    - case: sum
      input:
        turns:
          - {say: "What is 12 + 30?", expect: {answer: "42"}}
          - {say: "What is 2 + 3?", expect: {answer: "5"}}
"""


def test_the_stand_in_answers_alike_either_way(tmp_path):
    app = create_standin(MadeUpModel(skilled=True))
    texts = []
    with serve_in_thread(app) as url:
        for route in ("responses", BY_ID):
            assert run(tmp_path, url, route, SUMS, "M").returncode == 3
            [record] = journal.read(samples_file(tmp_path / route, "cases-sums"))
            texts.append([one.response.text for one in record.response.exchanges])
    assert texts[0] == texts[1] == ["42", "5"]
