"""Test every form of thoughts through real sockets, whole and streamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.send import QUESTION, send_to_thinker
from serve_eval.schema import Endpoint, Limits, Message, Request, Response, SamplingParams
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, json_reply, stream

ANSWER, THOUGHTS = "The answer is 7.", "I think of 8. Question: or 9?"
FORMS: dict[str, dict[str, str]] = {
    "plain": {"content": ANSWER},
    "reasoning_content": {"content": ANSWER, "reasoning_content": THOUGHTS},
    "reasoning": {"content": ANSWER, "reasoning": THOUGHTS},
    "inline": {"content": f"<think>{THOUGHTS}</think>{ANSWER}"},
    "opened": {"content": f"{THOUGHTS}</think>{ANSWER}"},
}
CUT: dict[str, dict[str, str]] = {
    "reasoning_content": {"content": "", "reasoning_content": THOUGHTS},
    "reasoning": {"content": "", "reasoning": THOUGHTS},
    "inline": {"content": f"<think>{THOUGHTS}"},
    "opened": {"content": THOUGHTS},
}


class Thinker:
    """Answers in one form; cuts answers at max_tokens, and all that it writes at stop strings."""

    def __init__(self, form: str, *, cut: bool = False) -> None:
        self.form, self.cut = form, cut
        self.server = ScriptedServer(self.reply)

    def reply(self, request: HttpRequest) -> Reply:
        body = request.body
        easy = body["messages"][-1]["content"] == QUESTION
        message = FORMS[self.form]
        finish = "stop"
        if self.cut and not easy:
            message, finish = CUT[self.form], "length"
        elif body.get("stop") and self.form != "plain":
            message = {name: _before(text, body["stop"]) for name, text in CUT[self.form].items()}
        usage = {"prompt_tokens": 9, "completion_tokens": 20}
        if body.get("stream"):
            return stream([*_list_events(message, finish, usage), "[DONE]"])
        said = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
        return json_reply({"choices": [said], "usage": usage})


def _list_events(message: dict[str, str], finish: str, usage: dict[str, int]) -> list[Any]:
    """Return a message as the events of a stream, thoughts first, in pieces that cut tags."""
    pieces = [
        {name: text[at : at + 5]}
        for name, text in sorted(message.items(), reverse=True)
        for at in range(0, len(text), 5)
    ]
    events: list[Any] = [
        {"choices": [{"index": 0, "delta": piece, "finish_reason": None}]} for piece in pieces
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*events, {"choices": [], "usage": usage}]


def _before(text: str, stops: Any) -> str:
    return text.partition(stops[0])[0]


def _ask(
    thinker: Thinker, *stop: str, times: int = 1, streamed: bool = False
) -> tuple[list[Response], Client]:
    request = Request(
        sample_id="a",
        prompt=(Message(role="user", content="How many?"),),
        sampling=SamplingParams(max_tokens=64, stop=stop),
    )

    async def main() -> tuple[list[Response], Client]:
        async with (
            thinker.server.serve() as url,
            Client(
                Endpoint(base_url=url, model="m"), Limits(max_attempts=1, stream=streamed)
            ) as client,
        ):
            found = [await send_to_thinker(client, request) for _ in range(times)]
        assert all(isinstance(one, Response) for one in found)
        return [one for one in found if isinstance(one, Response)], client

    return asyncio.run(main())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_answers_hold_no_thoughts(form: str, streamed: bool) -> None:
    [said], _ = _ask(Thinker(form), streamed=streamed)
    assert said.text == ANSWER
    assert said.reasoning == (None if form == "plain" else THOUGHTS)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", CUT)
def test_an_answer_that_was_cut_within_its_thoughts_has_no_text(form: str, streamed: bool) -> None:
    [said], _ = _ask(Thinker(form, cut=True), streamed=streamed)
    assert said.text == ""
    assert said.truncated
    assert THOUGHTS in (said.reasoning or "")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_stop_string_within_thoughts_ends_no_answer(form: str, streamed: bool) -> None:
    thinker = Thinker(form)
    said, client = _ask(thinker, "Question:", "is 7", times=3, streamed=streamed)
    assert {one.text for one in said} == {"The answer "}
    seen = client.thoughts.seen
    asked = [one.body for one in thinker.server.requests if "messages" in one.body]
    if form == "plain":
        assert (seen.stopped, seen.withheld) == (0, 0)
        assert all("stop" in body for body in asked if body["messages"][-1]["content"] != QUESTION)
        return
    assert {one.stop_reason for one in said} == {"is 7"}
    assert (seen.stopped, seen.withheld) == (1, 2)
    assert [("stop" in body) for body in asked if body["messages"][-1]["content"] != QUESTION] == [
        *(True, False, False, False)
    ]
