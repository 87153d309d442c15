"""Conversations of cases, over real sockets: requests, scores, what is kept, turns by id."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.cases import file
from serve_eval.cases.questions import questions
from serve_eval.client.traffic import count_uncounted
from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.plan import resolve
from serve_eval.protocol.conversation import bound_requests, find_next, join
from serve_eval.schema import (
    Attempt,
    Conversation,
    Cut,
    Exchange,
    FailureKind,
    Message,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    ToolCall,
    Usage,
    UserTurn,
    find_cut,
)
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from tests.cli.command import environment, serve_eval
from tests.client.test_responses import CALL, MESSAGE, whole
from tests.root import ROOT
from tests.scripted_server import (
    ScriptedServer,
    answer,
    fail,
    json_reply,
    models,
    serve_in_thread,
    stall,
    tool_call,
)
from tests.workflows.tools.on_standin import create_standin

CAPITALS = """
trip:
  scorer: words
  system_messages: ["Answer with the name alone."]
  cases:
    - case: france
      input:
        turns:
          - {say: "Capital of France?", expect: {answer: Paris}}
          - {say: "And of Japan?", expect: {answer: Tokyo}}
          - "Thank you."
"""


def _server(reply):
    return ScriptedServer(reply, routes={"/v1/models": models("m")})


def _run(tmp_path, url, text=CAPITALS, **more):
    (tmp_path / "cases.yaml").write_text(text)
    settings = {
        "cases": [str(tmp_path / "cases.yaml")],
        "base_url": url,
        "model": "m",
        "no_reference": True,
        **more,
    }
    return asyncio.run(
        evaluate(resolve.resolve({}, settings, {}).plan, tmp_path / "out", environ={})
    )


def _asked(server, start=0):
    """Return the last turns of the requests for cases, without those that look at the server."""
    prompts = [one.prompt for one in server.asked[start:]]
    return [one for one in prompts if one.endswith(("France?", "Japan?", "you."))]


def _history(request):
    return [(one["role"], one["content"]) for one in request.body["messages"]]


def test_each_turn_is_asked_with_the_answers_of_the_server_before_it(tmp_path):
    said = {"Capital of France?": "Paris", "And of Japan?": "Kyoto", "Thank you.": "Gladly."}
    server = _server(lambda request: answer(said.get(request.prompt, "2"), usage=(10, 2)))
    with server.serve_in_thread() as url:
        report = _run(tmp_path, url)
    assert _history(server.asked[-1]) == [
        ("system", "Answer with the name alone."),
        ("user", "Capital of France?"),
        ("assistant", "Paris"),
        ("user", "And of Japan?"),
        ("assistant", "Kyoto"),
        ("user", "Thank you."),
    ]
    [task] = report.tasks
    assert (task.result.value, task.result.planned, task.result.scored) == (50.0, 1, 1)
    assert task.result.secondary == {"turn 1": 100.0, "turn 2": 0.0}
    assert task.result.modes == {"turn 2: all words missing": 1}
    assert task.fingerprint["history_thoughts"] == '"drop"'
    assert (task.traffic.prompt_tokens, task.traffic.completion_tokens) == (30, 6)
    serve_eval("show", str(tmp_path / "out"), "--wrong", exits=0, prints="answer 1 ")
    shown = serve_eval("show", str(tmp_path / "out"), "--wrong").stdout
    shown = shown[shown.index("France?") :]
    places = [shown.index(one) for one in ("France?", "Paris", "Japan?", "Kyoto", "Thank", "Glad")]
    assert places == sorted(places)


def test_a_turn_that_fails_leaves_its_conversation_without_a_score(tmp_path):
    down = [True]

    def reply(request):
        if request.prompt == "And of Japan?" and down[0]:
            return fail(400, "no")
        return answer("Paris Tokyo")

    server = _server(reply)
    with server.serve_in_thread() as url:
        report = _run(tmp_path, url)
        result = report.tasks[0].result
        assert (result.scored, result.failed, result.value) == (0, 1, None)
        shown = serve_eval("show", str(tmp_path / "out"), "--failed").stdout
        assert "turn 2 of 3" in shown
        assert shown.index("France?") < shown.index("answer 1") < shown.index("Japan?")
        out = tmp_path / "capsule"
        name = json.loads((tmp_path / "out/samples/cases-trip.jsonl").read_text().splitlines()[0])
        serve_eval("show", str(tmp_path / "out"), "--capsule", name["id"], "-o", str(out), exits=0)
        bodies = sorted(out.rglob("body*.json"))
        assert [len(json.loads(one.read_bytes())["messages"]) for one in bodies] == [2, 4]
        down[0], before = False, len(server.asked)
        result = _run(tmp_path, url).tasks[0].result
    assert (result.scored, result.value) == (1, 100.0)
    assert _asked(server, before) == ["And of Japan?", "Thank you."]


def test_a_killed_run_goes_on_at_the_turn(tmp_path):
    holds = [True]

    def reply(request):
        if request.prompt == "Thank you." and holds[0]:
            return stall()
        return answer("Paris Tokyo")

    (tmp_path / "cases.yaml").write_text(CAPITALS)
    server = _server(reply)
    with server.serve_in_thread() as url:
        command = [sys.executable, "-m", "serve_eval", "run", "--base-url", url, "--model", "m"]
        command += ["--cases", str(tmp_path / "cases.yaml"), "--no-reference"]
        command += ["-o", str(tmp_path / "out")]
        with subprocess.Popen(command, env=environment(), cwd=ROOT) as process:
            end = time.monotonic() + 60
            while not any(one.prompt == "Thank you." for one in server.asked):
                assert time.monotonic() < end
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        holds[0], before = False, len(server.asked)
        serve_eval(*command[3:], exits=3)
    # The kill may leave the latest answer without a proof that it belongs to its request.
    assert _asked(server, before)[-1:] == ["Thank you."]
    assert "Capital of France?" not in _asked(server, before)
    [record] = journal.read(tmp_path / "out/samples/cases-trip.jsonl")
    assert [one.turn for one in record.response.exchanges] == [0, 1, 2]


TOOLS = """
trip:
  scorer: words
  cases:
    - case: weather
      input:
        tools: [{type: function, function: {name: weather, parameters: {type: object}}}]
        results: {weather: {degrees: 31}}
        tool_rounds: 2
        turns: ["How warm is it?", "Thank you."]
      score: last
      expected: {answer: welcome}
"""


def test_calls_of_tools_get_the_scripted_results(tmp_path):
    def reply(request):
        last = request.body["messages"][-1]
        if last["content"] == "Thank you.":
            return answer("You are welcome.")
        return tool_call("weather" if last["role"] == "user" else "wind", {})

    server = _server(reply)
    with server.serve_in_thread() as url:
        report = _run(tmp_path, url, TOOLS)
    assert report.tasks[0].result.value == 100.0
    history = server.asked[-1].body["messages"]
    assert [one["role"] for one in history] == ["user", *["assistant", "tool"] * 3, "user"]
    assert [one["content"] for one in history if one["role"] == "tool"] == [
        '{"degrees": 31}',
        *["There is no tool wind."] * 2,
    ]
    ids = [one["tool_call_id"] for one in history if one["role"] == "tool"]
    assert ids == [one["tool_calls"][0]["id"] for one in history if "tool_calls" in one]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(("policy", "kept"), [(None, [None, None]), ("keep", ["so", "so"])])
def test_thoughts_of_earlier_turns_are_dropped_unless_the_protocol_keeps_them(
    tmp_path, policy, kept
):
    choice = {"message": {"role": "assistant", "content": "Paris", "reasoning_content": "so"}}
    server = _server(lambda request: answer("", choice=choice))
    more = {} if policy is None else {"history_thoughts": policy}
    with server.serve_in_thread() as url:
        report = _run(tmp_path, url, protocol=more)
    answers = [one for one in server.asked[-1].body["messages"] if one["role"] == "assistant"]
    assert [one.get("reasoning_content") for one in answers] == kept
    told = report.tasks[0].fingerprint["history_thoughts"]
    assert told == json.dumps(policy or "drop")


def test_kept_conversations_are_scored_again_without_a_request(tmp_path):
    server = _server(lambda request: answer("Paris Tokyo"))
    with server.serve_in_thread() as url:
        assert _run(tmp_path, url).tasks[0].result.value == 100.0
        asked = len(_asked(server))
        again = _run(tmp_path, url, CAPITALS.replace("answer: Tokyo", "answer: Osaka"))
    assert (again.tasks[0].result.value, len(_asked(server))) == (50.0, asked)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('{prompt: "a", turns: ["b"]}', "leave the prompt out"),
        ("{turns: []}", "not empty"),
        ('{turns: [{say: "a", except: "b"}]}', "unknown key"),
        ('{turns: ["a"]}, score: each', "needs turns with `expect`"),
        ('{turns: [{say: "a", expect: "b"}]}, expected: "c"', "leave one of them out"),
        ('{turns: [{say: "a", expect: {checks: "x"}, scorer: code}]}', "score: last"),
    ],
)
def test_a_wrong_conversation_is_refused_before_a_request(tmp_path, given, told):
    path = tmp_path / "c.yaml"
    path.write_text(f"t:\n  - {{case: one, input: {given}}}\n")
    with pytest.raises(PlanError) as caught:
        questions(file.read([str(path)]), "t")
    assert told in " ".join(caught.value.problems)


def _sample(turns, rounds, results):
    later = tuple(UserTurn(message=Message(role="user", content=str(i))) for i in range(turns))
    talk = Conversation(turns=later, rounds=rounds, results=results)
    prompt = (Message(role="user", content="first"),)
    return Sample(id="a", prompt=prompt, target="", conversation=talk)


@given(
    turns=st.integers(0, 3),
    rounds=st.integers(1, 3),
    scripted=st.booleans(),
    calls=st.lists(st.integers(0, 2), min_size=40, max_size=40),
)
def test_every_conversation_ends_within_its_bound(turns, rounds, scripted, calls):
    sample = _sample(turns, rounds, {"f": "1"} if scripted else {})
    done, prompts = [], []
    while (found := find_next(sample, done)) is not None:
        turn, prompt = found
        prompts.append(prompt)
        made = (ToolCall(name="f"),) * calls[len(done)]
        usage = Usage(prompt_tokens=1, completion_tokens=2)
        one = Response(text="x", finish_reason="stop", tool_calls=made, usage=usage)
        done.append(Exchange(turn=turn, response=one))
    assert len(done) <= bound_requests(sample.conversation)
    assert {one.turn for one in done} == set(range(turns + 1))
    assert all(after[: len(before)] == before for before, after in pairwise(prompts))
    assert all(prompt[-1].role in ("user", "tool") for prompt in prompts)
    joined = join(done)
    assert joined.usage.completion_tokens == 2 * len(done)
    assert msgspec.json.decode(msgspec.json.encode(joined), type=Response) == joined


def _attempt(failure=None):
    status = None if failure is None else 500
    return Attempt(start_s=1.0, end_s=2.0, failure=failure, status=status, request_id="a")


def test_the_answers_of_a_conversation_are_counted_with_their_tokens():
    lost = Response(text="a", finish_reason="stop", attempts=(_attempt(), _attempt()))
    sure = Response(text="b", finish_reason="stop", attempts=(_attempt(),))
    late = Response(
        text="c",
        finish_reason="stop",
        attempts=(_attempt(FailureKind.HTTP_ERROR), _attempt()),
    )

    def uncounted(*told):
        exchanges = tuple(Exchange(turn=i, response=one) for i, one in enumerate(told))
        attempts = tuple(a for one in told for a in one.attempts)
        whole = Response(text="", finish_reason="stop", attempts=attempts, exchanges=exchanges)
        return count_uncounted(whole)

    assert [uncounted(sure, sure), uncounted(lost, sure), uncounted(late, sure)] == [0, 1, 1]


@pytest.mark.parametrize(
    ("tokens", "cut"),
    [((300, 300), Cut.WINDOW), ((300, 512), Cut.MAX_TOKENS), ((1, 100), Cut.WINDOW)],
)
def test_the_cause_of_a_cut_is_read_from_the_turn_that_was_cut(tokens, cut):
    said = [
        Response(
            text="a",
            finish_reason="stop" if turn == 0 else "length",
            usage=Usage(prompt_tokens=9, completion_tokens=count),
        )
        for turn, count in enumerate(tokens)
    ]
    whole = join([Exchange(turn=turn, response=one) for turn, one in enumerate(said)])
    assert find_cut(whole, Outcome.WRONG, SamplingParams(max_tokens=512)) is cut


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
