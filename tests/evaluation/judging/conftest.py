"""A judge that listens on a socket, and a task that asks it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

import serve_eval.tasks
from launchers._http.answers import Generated, Usage, answer_body
from launchers._http.requests import DEFAULT_MAX_TOKENS, Ask, understand
from launchers._http.server import Refused, encode, json_response, serve_app
from launchers._simulated import words

Says = Callable[[str, int], str | int | None]
"""What is said to a prompt, given how many came before: a text, an HTTP status, or None for nothing ever."""


def fair(prompt: str, number: int) -> str:
    """What a judge says that compares what is expected with what was answered."""
    texts = dict(re.findall(r"<(expected|answer)-\w+>\n(.*?)\n</", prompt, re.DOTALL))
    return f"I compared them.\nVerdict: {'yes' if texts['expected'] == texts['answer'] else 'no'}"


def unsure(prompt: str, number: int) -> str:
    """What a judge says that comes to no verdict."""
    return "Hard to say."


class JudgeServer:
    """Answers chat requests by `says`; `prompts` are those that came, `short` counts those of the preflight. It is
    `waiting` when it was given something that it says nothing to."""

    def __init__(self, says: Says = fair, model: str = "judge-1") -> None:
        self.says, self.model = says, model
        self.prompts: list[str] = []
        self.keys: set[str | None] = set()
        self.short, self.waiting = 0, asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        try:
            ask = understand(await request.read(), chat=True, models={self.model})
        except Refused as refused:
            return json_response(refused.status, encode(refused.body))
        (prompt,) = ask.prompts
        assert isinstance(prompt, tuple)
        text = prompt[-1].text
        self.keys.add(request.headers.get("Authorization"))
        if text == "1 + 1 =":
            self.short += 1
            return json_response(200, _answer(ask, 1, "2"))
        self.prompts.append(text)
        said = self.says(text, len(self.prompts) - 1)
        if isinstance(said, int):
            return json_response(said, b'{"error": {"message": "refused"}}')
        if said is None:
            self.waiting.set()
            await asyncio.Event().wait()
            raise AssertionError
        return json_response(200, _answer(ask, len(self.prompts), said))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.handle)
        async with serve_app(app) as url:
            yield url


def _answer(ask: Ask, number: int, said: str) -> bytes:
    one = words.limited(Generated(said, "stop"), ask.max_tokens or DEFAULT_MAX_TOKENS, ask.stop)
    (prompt,) = ask.prompts
    assert isinstance(prompt, tuple)
    usage = Usage(words.of_prompt(prompt, None), len((one.text or "").split()))
    return answer_body(ask, number, [one], usage)


@pytest.fixture
def judged_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a task of tests/judging, which is one of ours for the length of a test."""
    name = "capitals_judged"
    monkeypatch.setattr(serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(Path(__file__).parent)])
    yield name
    sys.modules.pop(f"serve_eval.tasks.{name}", None)
    if hasattr(serve_eval.tasks, name):
        delattr(serve_eval.tasks, name)
