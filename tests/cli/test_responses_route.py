"""Test each command by /v1/responses: its chat prompts go there, or it says why they cannot."""

import json

import pytest

from serve_eval.evaluation.engine.send import QUESTION
from tests.cli.command import serve_eval
from tests.client.test_responses import MESSAGE, whole
from tests.scripted_server import ScriptedServer, answer, fail, json_reply, models

CHAT, ITEMS, TEXT = "/v1/chat/completions", "/v1/responses", "/v1/completions"
PROBLEMS = ("-t", "word_problems")
CHATS = ("--set", "protocol.apply_chat_template=true")
ASKS = (*PROBLEMS, "--limit", "4", *CHATS)
BY_ITEMS = ("--set", "connection.route=responses")
TAKES = ("--set", "word_problems.num_samples=4", "--runs", "1", "--references-dir", "DIR/refs")


def reply(request):
    if request.path != ITEMS:
        return answer("#### 4", usage=(20, 5))
    message = {**MESSAGE, "content": [{"type": "output_text", "text": "#### 4"}]}
    return json_reply(whole(message, usage={"input_tokens": 20, "output_tokens": 5}))


def reply_by_chat(request):
    """Answer like the orchestrator of trtllm-serve, which has no other route for chats."""
    return fail(404, "Not Found") if request.path == ITEMS else reply(request)


def serve_both(script=reply):
    return ScriptedServer(script, paths=(CHAT, ITEMS, TEXT), routes={"/v1/models": models("m")})


def ask(command, folder, *more, script=reply):
    """Run a command at a server and return it with the paths by which its prompts went."""
    server = serve_both(script)
    with server.serve_in_thread() as url:
        words = [str(one).replace("URL", url).replace("DIR", str(folder)) for one in more]
        done = serve_eval(f"{command} ", *words, "-o", folder / "out")
    # A watch first asks by chat whether the model thinks.
    asked = [one for one in server.asked if QUESTION not in json.dumps(one.body)]
    return done, {one.path for one in asked}


ASKING = {
    "run": ("--base-url", "URL", *ASKS, "--no-reference", *BY_ITEMS),
    "references take": ("URL", *PROBLEMS, *CHATS, *TAKES, *BY_ITEMS),
    "check load": ("URL", *ASKS, "--concurrency", "1,2", *BY_ITEMS),
    "check invariants": ("URL", *ASKS, *BY_ITEMS),
    "watch": ("URL", "--rounds", "1", "--budget-tokens", "3000", "--route", "responses"),
}


@pytest.mark.parametrize("command", ASKING)
def test_prompts_go_by_the_route(command, tmp_path):
    done, found = ask(command, tmp_path, *ASKING[command])
    assert done.returncode in (0, 1, 3), done.stderr
    assert found == {ITEMS}, done.stdout


B = ("--self", "0", "--set", "compare.route_b=responses")


def test_one_side_of_a_comparison_goes_by_it(tmp_path):
    done, found = ask("compare", tmp_path, "URL", "URL", *ASKS, *B)
    assert done.returncode in (0, 1, 3), done.stderr
    assert found == {CHAT, ITEMS}


IDLE = "word_problems would not be asked by /v1/responses: it takes chat prompts only"
REFUSING = {
    "run": (("--base-url", "URL", *PROBLEMS, "--no-reference", *BY_ITEMS), IDLE),
    "compare": (("URL", "URL", *PROBLEMS, *B), IDLE),
    "verify": (("URL", "--register", "DIR/new", *CHATS, *BY_ITEMS), "need log-probabilities"),
}


@pytest.mark.parametrize("command", REFUSING)
def test_a_command_that_cannot_ask_by_it_says_so_first(command, tmp_path):
    flags, told = REFUSING[command]
    done, found = ask(command, tmp_path, *flags)
    assert (done.returncode, found) == (2, set())
    assert told in done.stderr


READING = {
    "diagnose": (0, "NO REFERENCE"),
    "judge": (3, "NO REFERENCE"),
    "judge --rescore": (0, "UNCHANGED"),
    "show": (0, "test-"),
}


@pytest.fixture
def run(tmp_path):
    """Return the output of a run by the route, which is in the folder `out`."""
    done, _ = ask("run", tmp_path, *ASKING["run"])
    assert done.returncode == 3, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", READING)
def test_a_run_by_it_is_read_like_any_other(command, run, tmp_path):
    code, told = READING[command]
    word, *flags = command.split()
    serve_eval(word, tmp_path / "out", *flags, exits=code, prints=told)


def test_the_next_command_takes_a_reference_by_the_route(run):
    assert f"references take TRUSTED_HOST:8000 --runs 3 --model m {' '.join(PROBLEMS)}" in run
    assert " ".join(BY_ITEMS) in run


def test_workers_are_asked_by_chat_which_a_warning_says(run, tmp_path):
    one, other = serve_both(), serve_both()
    with one.serve_in_thread() as first, other.serve_in_thread() as second:
        workers = ("--worker", first, "--worker", second)
        told = "route: the run used /v1/responses, but workers are asked through chat"
        serve_eval("check", "workers", tmp_path / "out", *workers, exits=0, prints=told)
    assert {request.path for request in one.asked} == {CHAT}


def test_a_reference_by_it_has_no_probes(tmp_path):
    flags = ("URL", *PROBLEMS, *CHATS, *TAKES, *BY_ITEMS, "--probes", "4")
    done, _ = ask("references take", tmp_path, *flags)
    assert done.returncode == 3
    assert "the Responses route gives no log-probabilities" in done.stderr


@pytest.mark.parametrize("tasks", ["word_problems", "word_problems,passkey_short"])
def test_without_the_route_a_run_ends_before_its_first_sample(tasks, tmp_path):
    one = ("--set", "word_problems.apply_chat_template=true")
    flags = ("--base-url", "URL", "-t", tasks, *one, "--limit", "2", "--no-reference", *BY_ITEMS)
    done, found = ask("run", tmp_path, *flags, script=reply_by_chat)
    assert done.returncode == 4
    assert "/v1/responses does not answer a short request: HTTP 404" in done.stderr
    assert "Leave out --route (compare.route_b) to ask by /v1/chat/completions" in done.stderr
    assert CHAT not in found


def reply_from_16(request):
    """Answer like OpenAI, which refuses fewer tokens."""
    if request.body.get("max_output_tokens", 16) < 16:
        return fail(400, "Invalid 'max_output_tokens': integer below minimum value. Expected 16.")
    return reply(request)


def test_the_first_request_asks_for_as_many_tokens_as_the_route_needs(tmp_path):
    done, _ = ask("run", tmp_path, *ASKING["run"], script=reply_from_16)
    assert done.returncode == 3, done.stderr
