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


def warnings_of(items, tmp_path, *flags):
    with served(items).serve_in_thread() as url:
        done = serve_eval(
            *("compare", url, url, "-t", "word_problems", "--limit", "5", "--self", "0"),
            *("--set", "protocol.apply_chat_template=true", "-o", str(tmp_path / "out"), "--json"),
            *flags,
        )
    assert done.returncode in (0, 3), done.stderr
    told = json.loads(done.stdout)["result"]["warnings"]
    return [one for one in told if one.startswith("route")]


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
    found = warnings_of(items, tmp_path, *B)
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
