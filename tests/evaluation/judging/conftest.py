"""Fixtures: a judge that listens on a socket, and a task that asks it."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

import serve_eval.tasks
from serve_eval.launchers._http.answers import Generated, TokenUsage, answer_body
from serve_eval.launchers._http.requests import DEFAULT_MAX_TOKENS, RefusedRequest, understand
from serve_eval.launchers._simulated import answers
from tests.scripted_server import ScriptedServer, json_reply, raw, stall


def fair(prompt, number):
    """Return the verdict of a judge that compares the answer with the expected text."""
    texts = dict(re.findall(r"<(expected|answer)-\w+>\n(.*?)\n</", prompt, re.DOTALL))
    return f"I compared them.\nVerdict: {'yes' if texts['expected'] == texts['answer'] else 'no'}"


def unsure(prompt, number):
    """Return a text without a verdict."""
    return "Hard to say."


class JudgeServer:
    """Answers chat requests by `says`.

    `prompts` holds the received prompts, `short` counts those of the preflight. `waiting` is set
    once a prompt arrived that gets no answer.
    """

    def __init__(self, says=fair, model="judge-1"):
        self.says, self.model = says, model
        self.prompts = []
        self.keys = set()
        self.short, self.waiting = 0, asyncio.Event()

    def reply(self, request):
        try:
            ask = understand(request.raw, chat=True, models={self.model})
        except RefusedRequest as refused:
            return json_reply(refused.body, refused.status)
        (prompt,) = ask.prompts
        assert isinstance(prompt, tuple)
        text = prompt[-1].text
        self.keys.add(request.headers.get("Authorization"))
        if text == "1 + 1 =":
            self.short += 1
            return raw(_answer(ask, 1, "2"))
        self.prompts.append(text)
        said = self.says(text, len(self.prompts) - 1)
        if isinstance(said, int):
            return json_reply({"error": {"message": "refused"}}, said)
        if said is None:
            self.waiting.set()
            return stall()
        return raw(_answer(ask, len(self.prompts), said))

    def serving(self):
        return ScriptedServer(self.reply, paths=["/v1/chat/completions"]).serve()


def _answer(ask, number, said):
    one = answers.limit(Generated(said, "stop"), ask.max_tokens or DEFAULT_MAX_TOKENS, ask.stop)
    (prompt,) = ask.prompts
    assert isinstance(prompt, tuple)
    usage = TokenUsage(answers.of_prompt(prompt, None), len((one.text or "").split()))
    return answer_body(ask, number, [one], usage)


@pytest.fixture
def judged_task(monkeypatch):
    """Name a task of tests/judging, registered for the length of a test."""
    name = "capitals_judged"
    monkeypatch.setattr(
        serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(Path(__file__).parent)]
    )
    yield name
    sys.modules.pop(f"serve_eval.tasks.{name}", None)
    if hasattr(serve_eval.tasks, name):
        delattr(serve_eval.tasks, name)
