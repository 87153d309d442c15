"""Test the check of /v1/responses, by servers that have the route, in part or not at all."""

import pytest

from serve_eval.checks.run import choose_checks
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from serve_eval.launchers._standin.model import MadeUpModel
from tests.client.test_responses import CALL, MESSAGE, whole
from tests.client.test_responses_stream import OPENAI, told
from tests.scripted_server import ScriptedServer, answer, fail, json_reply, stream
from tests.workflows.smoke.trying import by_name, smoke_of
from tests.workflows.tools.on_standin import create_standin

ONLY = ["responses"]


def row_of(server, model=None):
    done = smoke_of(server, only=ONLY, items=True, model=model, level="quick")
    return by_name(done)["responses"]


def scripted(script):
    route = {"/v1/responses": script} if script else {}
    return ScriptedServer(lambda request: answer("Blue."), routes=route)


def test_it_is_checked_only_if_it_is_asked_for():
    names = [[check.name for check in choose_checks("full", items=wanted)] for wanted in (0, 1)]
    assert ["responses" in one for one in names] == [False, True]


def test_a_stand_in_keeps_answers_and_counts_no_tokens():
    row = row_of(create_standin(MadeUpModel(skilled=True)))
    assert row.outcome == "PASS", row
    has, lacks = row.told.split("; not seen: ")
    assert has.startswith("text, stream")
    assert "previous_response_id" in has
    assert "usage" in lacks


def test_the_simulated_endpoint_keeps_no_answers():
    row = row_of(create_app(SimulatorConfig()))
    assert (row.outcome, row.told) == (
        "PASS",
        "text, stream, function call, usage; not seen: previous_response_id, reasoning items",
    )


def remembers(request):
    """Answer in OpenAI's form, and count the tokens of the turn before."""
    body = request.body
    if body.get("stream"):
        return stream(told(OPENAI))
    counted = {"input_tokens": 40 if "previous_response_id" in body else 9, "output_tokens": 3}
    return json_reply(whole(CALL if "tools" in body else MESSAGE, usage=counted))


def forgets(request):
    """Take the id of an earlier answer, and ignore it."""
    request.body.pop("previous_response_id", None)
    return remembers(request)


@pytest.mark.parametrize(("script", "missing"), [(remembers, False), (forgets, True)])
def test_an_earlier_answer_must_count(script, missing):
    row = row_of(scripted(script), model="m")
    assert row.outcome == "PASS"
    assert ("not seen: previous_response_id" in row.told) is missing


def broken_stream(request):
    return stream(told(OPENAI[:-1])) if request.body.get("stream") else remembers(request)


@pytest.mark.parametrize(
    ("script", "outcome", "said"),
    [
        (None, "UNSUPPORTED", "/v1/responses is not served: HTTP 404"),
        (fail(501, "later"), "UNSUPPORTED", "is not served: HTTP 501"),
        (fail(400, "no input items"), "UNSUPPORTED", "no input items"),
        (fail(500, "engine died"), "FAIL", "engine died"),
        (json_reply({"choices": []}), "FAIL", "it has choices"),
        (json_reply(whole()), "FAIL", "the answer is empty"),
        (broken_stream, "FAIL", "stream: the stream ended without an event"),
    ],
)
def test_a_server_with_a_fault_has_its_row(script, outcome, said):
    row = row_of(scripted(script), model="m")
    assert (row.outcome, said in row.told) == (outcome, True), row
