"""Test /v1/responses of the stand-in's worker, in the form of trtllm-serve."""

import asyncio

import pytest

from serve_eval.client.client import Client
from serve_eval.launchers._http.requests import RefusedRequest
from serve_eval.launchers._http.responses import MOST_KEPT, Conversations, to_chat
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.schema import Endpoint, Limits, Message, Request, SamplingParams
from tests.standin.deployments import HTTP, deployed
from tests.workflows.tools.on_standin import create_standin

SUM = (Message(role="user", content="What is 12 + 30?"),)


def talk(story, **standin):
    async def main():
        app = create_standin(MadeUpModel(skilled=True), **standin)
        async with serve_app(app) as url:
            return await story(url)

    return asyncio.run(main())


def ask(url, prompt=SUM, *, route="responses", stream=False, max_tokens=32, **extra):
    sampling = SamplingParams(max_tokens=max_tokens)
    request = Request(sample_id="1", prompt=prompt, sampling=sampling, extra=extra)

    async def main():
        limits = Limits(stream=stream, max_attempts=1)
        async with Client(Endpoint(base_url=url, model="M"), limits, route=route) as client:
            return await client.send(request)

    return main()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("thinks", [False, True])
def test_both_routes_say_the_same_but_for_spaces(stream, thinks):
    async def story(url):
        return [await ask(url, route=route, stream=stream) for route in ("chat", "responses")]

    chat, items = talk(story, thinks=thinks)
    assert items.text == chat.text.strip() == "42"
    assert (items.reasoning or "").strip() == (chat.reasoning or "").strip()
    assert (items.finish_reason, items.usage.completion_tokens) == ("stop", 0)


def test_a_cut_answer_is_incomplete_without_a_reason():
    said = talk(lambda url: ask(url, (Message(role="user", content="Hello?"),), max_tokens=1))
    assert (said.finish_reason, said.server_finish) == ("length", "incomplete")


def test_an_answer_is_kept_for_the_next_turn():
    async def story(url):
        first = await ask(url, store=True)
        kept = await ask(url, previous_response_id=first.answer_id)
        again = await ask(url, previous_response_id=kept.answer_id)
        unknown = await ask(url, previous_response_id="resp_0")
        return kept, again, unknown

    kept, again, unknown = talk(story)
    assert kept.text == "42"
    assert again.message.startswith("HTTP 404: Response with id")  # sent without store
    assert unknown.message == "HTTP 404: Response with id 'resp_0' not found."


@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_an_orchestrator_has_no_such_route(flavour):
    """No release of trtllm-serve has one; a change that adds it is open (PR 18497)."""

    async def main():
        async with deployed(1, 1, flavour=flavour, greeted=False) as found:
            front = await asyncio.to_thread(
                HTTP.post, f"{found.url}/responses", json={"input": "?"}
            )
            return front, await ask(found.workers["generation_0"])

    front, worker = asyncio.run(main())
    assert (front.status_code, front.json()) == (404, {"detail": "Not Found"})
    assert worker.text


def test_the_turns_before_an_answer_are_asked_again():
    kept = Conversations()
    first = to_chat(b'{"input": "2 + 3?", "instructions": "Be brief."}', kept)
    kept.keep("resp_1", first, {"content": "5"})
    second = to_chat(b'{"input": "And 4 + 4?", "previous_response_id": "resp_1"}', kept)
    assert [(turn["role"], turn["content"]) for turn in second.chat["messages"]] == [
        ("system", "Be brief."),
        ("user", "2 + 3?"),
        ("assistant", "5"),
        ("user", "And 4 + 4?"),
    ]


def test_only_the_newest_conversations_are_kept():
    kept = Conversations()
    asked = to_chat(b'{"input": "hi"}', kept)
    for number in range(MOST_KEPT + 1):
        kept.keep(f"resp_{number}", asked, {"content": "yes"})
    assert kept.find("resp_1")
    with pytest.raises(RefusedRequest):
        kept.find("resp_0")
