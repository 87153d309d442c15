"""Test chat templates that would block the embedded server, over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.protocol import chat_template
from tests.launchers.embedded import tiny

ENDLESS = "{% for _ in range(90000) %}" * 3 + "{% endfor %}" * 3


def _with(folder: Path, template: str) -> Path:
    tiny.write(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


async def _chats(folder: Path, *variables: dict[str, object]) -> list[tuple[int, str]]:
    """Return the responses to chats sent together, and check that texts are answered meanwhile."""

    async def ask(
        session: aiohttp.ClientSession, url: str, path: str, body: object
    ) -> tuple[int, str]:
        async with session.post(
            url + path, json={"model": "tiny", "max_tokens": 2, **dict(body)}
        ) as reply:  # type: ignore[call-overload]
            return reply.status, await reply.text()

    async with (
        serve_app(create_app(folder, {"tiny": "none"})) as url,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        turns = [{"role": "user", "content": "Hi"}]
        bodies = [{"messages": turns, "chat_template_kwargs": one} for one in variables]
        chats = [
            asyncio.create_task(ask(session, url, "/chat/completions", body)) for body in bodies
        ]
        assert (await ask(session, url, "/completions", {"prompt": "Hi"}))[0] == 200
        return list(await asyncio.gather(*chats))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (ENDLESS, "the chat template fails: took longer than 1 s"),
        ("{{ 'a' * 10**12 }}", "the chat template fails: MemoryError"),
        ("{{ 'a'|center(4 * 10**7) }}", "it makes a prompt of 40000000 characters"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth"),
        ("{{ messages.__init__.__globals__ }}", "access to attribute '__init__'"),
        ("{{ raise_exception('no system prompt') }}", "no system prompt"),
    ],
)
def test_a_template_that_never_ends_or_fails_is_a_400(
    template: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "RENDERING_S", 1.0 if template == ENDLESS else 20.0)
    [(status, text)] = asyncio.run(_chats(_with(tmp_path, template), {}))
    assert (status, said in json.loads(text)["message"]) == (400, True), text
    assert str(tmp_path) not in text


def test_variables_of_one_chat_are_not_those_of_the_next(tmp_path: Path) -> None:
    folder = _with(tmp_path, "{{ raise_exception('it is ' ~ x) if x is defined else 'fine' }}")
    answers = asyncio.run(_chats(folder, {"x": 1}, {}, {"x": 2}, {"messages": []}))
    assert [status for status, _ in answers] == [400, 200, 400, 400]
    assert ["it is 1" in answers[0][1], "it is 2" in answers[2][1]] == [True, True]


def test_a_folder_whose_template_is_none_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the chat template fails"):
        create_app(_with(tmp_path, "{% for"), {"tiny": "none"})
