"""Test prompts as the files of a model render and tokenize them, and a server against its files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import PlanError
from serve_eval.evidence.prompt_audit.audit import PROMPTS, audit
from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer, open_local
from serve_eval.evidence.prompt_audit.reading import PromptCause, PromptFinding, PromptReading
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Endpoint, Limits, Message, Prompt
from tests.evidence.prompt_audit.embedded_tokenizer import (
    TEMPLATE,
    TODAY,
    local_side,
    make_folder,
    serve_folder,
)
from tests.scripted_server import serve

CHAT: Prompt = (Message(role="user", content="Name a colour."),)


def _read(local: LocalTokenizer, prompt: Prompt) -> PromptReading:
    with local:
        return asyncio.run(local.read(prompt))


def test_a_chat_is_rendered_and_a_text_is_not() -> None:
    chat = _read(local_side(WEIGHTS), CHAT)
    assert chat.text == "<|user|>\nName a colour.<|end|>\n<|assistant|>\n"
    assert (chat.dated, chat.bos, chat.problem) == (False, None, "")
    assert _read(local_side(WEIGHTS), "Name a colour.").text == "Name a colour."


def test_texts_get_the_tokenizers_special_tokens_and_chats_the_templates(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, bos_token="<|end|>")
    text, chat = (_read(local_side(folder, bos="<|end|>"), one) for one in ("Name", CHAT))
    assert text.ids is not None
    assert chat.ids is not None
    assert (text.ids[0], text.bos) == (0, 0)
    assert chat.ids[0] != 0


def test_a_count_is_that_of_the_ids(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, bos_token="<|end|>")
    for prompt in ("Name", CHAT):
        with local_side(folder, bos="<|end|>") as side:
            assert side.count(prompt) == len(side.read_now(prompt).ids or ())
    with local_side(make_folder(tmp_path / "bare", None)) as side:
        assert side.count("Name")
        with pytest.raises(PlanError, match="template"):
            side.count(CHAT)


def test_a_template_with_a_date_is_found_by_another_date(tmp_path: Path) -> None:
    dated = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE
    reading = _read(local_side(make_folder(tmp_path, dated)), CHAT)
    assert reading.dated is True
    assert (reading.text or "").startswith("26 Nov 2026 <|user|>")
    year = "{{ strftime_now('%Y') }} " + TEMPLATE
    assert _read(local_side(make_folder(tmp_path, year)), CHAT).dated is True


def test_a_template_that_is_missing_or_fails_is_the_problem_of_chats_only(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, None)
    assert "has no chat template" in _read(local_side(folder), CHAT).problem
    assert _read(local_side(folder), "Name").ids
    failing = make_folder(tmp_path, "{{ raise_exception('no') }}")
    assert "the chat template fails: no" in _read(local_side(failing), CHAT).problem


def _audit(server: Any, *locals_: LocalTokenizer) -> list[list[PromptFinding]]:
    async def main() -> list[list[PromptFinding]]:
        async with (
            serve(server) as url,
            Client(Endpoint(base_url=url, model="m"), Limits()) as client,
        ):
            return [await audit(client, local, today=TODAY) for local in locals_]

    return asyncio.run(main())


def test_the_embedded_model_reads_prompts_as_its_files_say(tmp_path: Path) -> None:
    with_system = "<|system|>\nBe nice.<|end|>\n" + TEMPLATE
    app = create_app(WEIGHTS, {"m": "none"})
    own, other = _audit(app, local_side(WEIGHTS), local_side(make_folder(tmp_path, with_system)))
    assert [one.cause for one in own] == [PromptCause.SAME_COUNT] * len(PROMPTS)
    assert [one.cause for one in other[1:]] == [PromptCause.COUNT_DIFFERS] * 3


SERVED = {
    "same": TEMPLATE,
    "system_added": "<|system|>\nBe nice.<|end|>\n" + TEMPLATE,
    "spaces_stripped": TEMPLATE.replace("message['content']", "message['content'] | trim"),
    "other_template": TEMPLATE.replace("<|assistant|>\n", "<|assistant|>\nWell, "),
    "bos_added": "<|end|>" + TEMPLATE,
}


@pytest.mark.parametrize("cause", SERVED)
def test_ids_of_a_server_get_the_texts_of_the_files(tmp_path: Path, cause: str) -> None:
    server = serve_folder(make_folder(tmp_path, SERVED[cause]))
    [[text, *chats]] = _audit(server, local_side(WEIGHTS))
    assert text.cause is PromptCause.SAME
    assert PromptCause(cause) in {one.cause for one in chats}
    if cause == "spaces_stripped":
        assert [one.cause for one in chats] == ["same", "spaces_stripped", "same"]


def test_a_first_token_that_the_server_adds_to_a_template_with_one_is_doubled(
    tmp_path: Path,
) -> None:
    folder = make_folder(tmp_path / "model", "{{ bos_token }}" + TEMPLATE, bos_token="<|end|>")
    faulty = make_folder(tmp_path / "served", "<|end|><|end|>" + TEMPLATE)
    [[text, *chats]] = _audit(serve_folder(faulty), local_side(folder, bos="<|end|>"))
    assert text.cause is PromptCause.BOS_MISSING
    assert {one.cause for one in chats} == {PromptCause.BOS_DOUBLED}


def test_a_folder_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"has no tokenizer\.json"):
        open_local(tmp_path)


def test_the_package_tokenizers_gives_the_same_ids() -> None:
    pytest.importorskip("tokenizers")
    with open_local(WEIGHTS, today=TODAY) as local:
        for prompt in PROMPTS:
            assert asyncio.run(local.read(prompt)) == _read(local_side(WEIGHTS), prompt)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PlanError, match="cannot be read"):
        open_local(tmp_path)
