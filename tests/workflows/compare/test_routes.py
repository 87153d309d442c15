"""Compare one server with itself by two routes: what differs is named, and nothing else."""

import json

import pytest

from tests.cli.command import serve_eval
from tests.client.test_responses import MESSAGE, REASONING, whole
from tests.scripted_server import ScriptedServer, answer, json_reply, models

CHAT, ITEMS = "/v1/chat/completions", "/v1/responses"


def served(items):
    """Return a server that answers chats with 4, and the other route as `items` says."""

    def script(request):
        if request.path == CHAT:
            return answer("The answer is 4.", usage=(20, 5))
        return json_reply({**items, "id": f"resp_{request.number}"})

    routes = {"/v1/models": models("m")}
    return ScriptedServer(script, paths=(CHAT, ITEMS), routes=routes)


def says(text, *before, prompt=20, **fields):
    message = {**MESSAGE, "content": [{"type": "output_text", "text": text}]}
    used = {"input_tokens": prompt, "output_tokens": 5}
    return whole(*before, message, usage=used, **fields)


def warnings_of(server, tmp_path, *flags):
    with server.serve_in_thread() as url:
        done = serve_eval(
            *("compare", url, url, "-t", "word_problems", "--limit", "5", "--self", "0"),
            *("--set", "protocol.apply_chat_template=true", "-o", str(tmp_path / "out"), "--json"),
            *flags,
        )
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)["result"]["warnings"]


def on_routes(warnings):
    return [one for one in warnings if one.startswith("route")]


B = ("--set", "compare.route_b=responses")
ASKED = "route: A was asked by /v1/chat/completions, and B by /v1/responses"
SAME = "The answer is 4."


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (says(SAME), []),
        (
            says(SAME, prompt=32),
            ["template: 5 of 5 prompts have other token counts, B +12 at the median"],
        ),
        (says(SAME, REASONING), ["thoughts: 0 of 5 answers of A have some, 5 of B"]),
        (says(SAME, status="incomplete"), ["cut answers: 0 of 5 of A, 5 of B"]),
        (says(f" {SAME}\n"), ["spaces: 5 of 5 texts differ only in spaces at their ends"]),
        (
            says(SAME, prompt=0),
            ["counts: B counts no tokens, so templates are not compared"],
        ),
    ],
)
def test_each_difference_of_the_routes_is_named(items, said, tmp_path):
    found = on_routes(warnings_of(served(items), tmp_path, *B))
    assert found == [ASKED, *(f"route, word_problems: {line}" for line in said)]


def test_one_route_has_no_differences(tmp_path):
    by_items = ("--set", "connection.route=responses")
    with served(says(SAME)).serve_in_thread() as url, served(says(SAME)).serve_in_thread() as b:
        done = serve_eval(
            *("compare", url, b, "-t", "word_problems", "--limit", "5", "--self", "0"),
            *("--set", "protocol.apply_chat_template=true", "-o", str(tmp_path / "out"), "--json"),
            *by_items,
        )
    assert done.returncode in (0, 3), done.stderr
    told = json.loads(done.stdout)["result"]["warnings"]
    assert [one for one in told if one.startswith("route")] == []


def adding(usual, *, greedy=True):
    """Return a server whose answers show the fields that decide them.

    By the other route it adds those that are `usual`. If that is not `greedy`, it samples also at
    temperature 0.
    """

    def script(request):
        by_items = request.path == ITEMS
        fields = {**(usual if by_items else {}), **request.body}
        shown = [name for name in NEUTRAL if fields.get(name, NEUTRAL[name]) != NEUTRAL[name]]
        if fields.get("temperature") != 0 and fields.get("top_p") != 0.001:
            shown.append(f"seed {fields.get('seed')}")
        if by_items and not greedy:
            shown.append(f"drawn {request.number}")
        text = f"text {shown}"
        return json_reply(says(text)) if by_items else answer(text, usage=(20, 5))

    routes = {"/v1/models": models("m")}
    return ScriptedServer(script, paths=(CHAT, ITEMS), routes=routes, probed=True)


NEUTRAL = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}
ADDS = "the servers' sampling defaults differ: B adds repetition_penalty"


@pytest.mark.parametrize(
    ("policy", "effect"),
    [
        ("keep", "the answers below differ by repetition_penalty"),
        ("neutral", "the answers below do not differ by repetition_penalty"),
    ],
)
def test_a_sampling_default_of_one_route_is_named(policy, effect, tmp_path):
    """Each route of one address is probed by itself."""
    flags = (*B, "--set", f"server_defaults={policy}")
    found = warnings_of(adding({"repetition_penalty": 1.4}), tmp_path, *flags)
    [named] = [one for one in found if one.startswith(ADDS)]
    assert effect in named


def test_equal_defaults_of_both_routes_are_no_difference(tmp_path):
    assert on_routes(warnings_of(adding({}), tmp_path, *B)) == [ASKED]


def test_a_route_that_ignores_the_temperature_is_named(tmp_path):
    found = on_routes(warnings_of(adding({}, greedy=False), tmp_path, *B))
    why = "greedy answers to one prompt differ"
    assert f"route: the sampling defaults of B are not known: {why}" in found


def test_stop_strings_and_seeds_make_no_difference_of_their_own(tmp_path):
    """The other route has no stop strings, so that the client cuts its answers."""
    cut = says(f"{SAME}\nQuestion: next")

    def script(request):
        return json_reply(cut) if request.path == ITEMS else answer(SAME, usage=(20, 5))

    server = ScriptedServer(script, paths=(CHAT, ITEMS), routes={"/v1/models": models("m")})
    flags = ("--set", 'word_problems.stop=["\n"]', "--set", "word_problems.temperature=0.7")
    found = warnings_of(server, tmp_path, *B, *flags)
    assert on_routes(found) == [ASKED]
    chats, items = ([one for one in server.bodies if key in one] for key in ("messages", "input"))
    assert any("stop" in one for one in chats)
    assert not any("stop" in one for one in items)
    assert {one.get("seed") for one in chats} == {one.get("seed") for one in items}
