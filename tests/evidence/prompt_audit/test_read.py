"""Test how tokens of a prompt are read, from a server or from the files of a model."""

import asyncio
import json
import shutil
from datetime import date

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import PlanError
from serve_eval.evidence.prompt_audit import MOST_ANSWERS, MOST_REQUESTS, PROMPTS, audit, reader_of
from serve_eval.evidence.prompt_tokens import (
    LocalTokenizer,
    PromptCause,
    open_local,
)
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.protocol.chat_template import renderer
from serve_eval.schema import Endpoint, Limits, Message
from tests.scripted_server import (
    EVERY_PATH,
    ScriptedServer,
    answer,
    fail,
    json_reply,
    models,
    raw,
    serve,
)

TODAY = date(2026, 11, 26)
TEMPLATE = json.loads((WEIGHTS / "tokenizer_config.json").read_text())["chat_template"]


class EmbeddedTokenizer:
    """Reads tokenizer.json as the embedded model's server does; adds `bos` to texts if given."""

    def __init__(self, folder, *, bos=None):
        self._tokenizer, self._bos = Tokenizer(folder / "tokenizer.json"), bos
        content = json.loads((folder / "tokenizer.json").read_text())
        self._ids = content["model"]["vocab"] | self._tokenizer.special
        self._pieces = {number: piece for piece, number in self._ids.items()}

    def encode(self, text, *, add_special_tokens):
        first = [self._ids[self._bos]] if self._bos and add_special_tokens else []
        return first + self._tokenizer.encode(text)

    def piece(self, token):
        return self._pieces.get(token)

    def find(self, piece):
        return self._ids.get(piece)


def make_folder(path, template=TEMPLATE, **config):
    """Copy the embedded model's tokenizer, with another template and settings."""
    path.mkdir(exist_ok=True)
    shutil.copy(WEIGHTS / "tokenizer.json", path)
    given = config if template is None else {"chat_template": template, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(given))
    return path


def local_side(folder, *, bos=None):
    """Return the side of a folder, which renders in this process."""
    tokenizer = EmbeddedTokenizer(folder, bos=bos)
    return LocalTokenizer(folder, tokenizer, today=TODAY, rendering=renderer)


def serve_folder(
    folder,
    *,
    bos=None,
    counted_more=0,
    ids=True,
    chats_only=False,
    answer_tokens=1,
):
    """Serve the ids that a folder gives, without their texts.

    Answers count `counted_more` tokens more, and `answer_tokens` of their own; without `ids` no
    route gives them.
    """
    local = local_side(folder, bos=bos)

    async def respond(request):
        messages = request.body.get("messages")
        prompt = request.body.get("prompt") or tuple(Message(**one) for one in messages)
        found = list((await local.read(prompt)).ids or ())
        if request.path == "/tokenize":
            return json_reply({"count": len(found), "tokens": found if ids else []})
        made = min(answer_tokens, request.max_tokens) if answer_tokens > 1 else 1
        return answer("x", usage=(len(found) + counted_more, made))

    paths = ["/tokenize", "/v1/chat/completions"] + ([] if chats_only else ["/v1/completions"])
    return ScriptedServer(respond, paths=paths, routes={"/v1/models": lambda _: models("m")})


TEXT = "The sum"
CHAT = (Message(role="user", content="The sum"),)
IDS = [1, 7, 8]


def _read(routes, prompt):
    server = _server(routes)

    async def main():
        async with (
            server.serve() as url,
            Client(Endpoint(base_url=url, model="m"), Limits()) as client,
        ):
            return await reader_of(client, side="the server").read(prompt)

    return asyncio.run(main()), server


def _server(routes):
    def respond(request):
        return routes.get(request.path, lambda _: fail(404, "Not Found"))(request)

    return ScriptedServer(respond, paths=EVERY_PATH)


def _answers(count=3, *, strict=False, ids=False):
    """Answer completions and chats; `strict` refuses the field that asks for ids."""

    def reply(request):
        assert request.max_tokens == 1
        if "return_token_ids" not in request.body:
            return answer("x", usage=(count, 1))
        if strict:
            return fail(400, "extra fields not permitted")
        told = {"prompt_token_ids": IDS} if ids else {}
        if request.chat:
            return answer("x", usage=(count, 1), body=told)
        return answer("x", usage=(count, 1), choice=told)

    return {"/v1/completions": reply, "/v1/chat/completions": reply}


def _vllm(request):
    assert request.body["model"] == "m"
    assert ("prompt" in request.body) != ("messages" in request.body)
    written = ["<s>", "The", "Ġsum"] if request.body["return_token_strs"] else None
    return json_reply({"count": 3, "tokens": IDS, "token_strs": written})


def _llama_cpp(request):
    if "content" not in request.body:
        return json_reply({"tokens": []})
    assert request.body["add_special"]
    assert request.body["content"] in ("The sum", "[INST] The sum")
    pieces = ["<s>", "The", [0xC3]]
    return json_reply(
        {"tokens": [{"id": one, "piece": piece} for one, piece in zip(IDS, pieces, strict=True)]}
    )


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_ids_in_an_answer_come_first_and_tokenize_gives_their_texts(prompt):
    reading, server = _read({**_answers(ids=True), "/tokenize": _vllm}, prompt)
    assert (reading.ids, reading.count, reading.source) == ((1, 7, 8), 3, "return_token_ids")
    assert reading.pieces == ("<s>", "The", " sum")
    assert reading.text == "<s>The sum"
    assert reading.agrees
    assert len(server.requests) == 2
    reading, server = _read(_answers(ids=True), prompt)
    assert (reading.ids, reading.pieces) == ((1, 7, 8), None)
    assert len(server.requests) == 2


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_texts_of_other_ids_are_not_taken(prompt):
    other = {"/tokenize": lambda _: json_reply({"tokens": [7, 8], "token_strs": ["The", "Ġsum"]})}
    reading, _ = _read({**_answers(ids=True), **other}, prompt)
    assert (reading.ids, reading.pieces) == ((1, 7, 8), None)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_without_ids_in_answers_vllms_route_gives_them(prompt, strict):
    reading, _ = _read({**_answers(strict=strict), "/tokenize": _vllm}, prompt)
    assert (reading.ids, reading.count, reading.source) == ((1, 7, 8), 3, "/tokenize")


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_llama_cpp_renders_a_chat_and_tokenizes_its_text(prompt):
    template = {"/apply-template": lambda _: json_reply({"prompt": "[INST] The sum"})}
    reading, _ = _read({**_answers(), "/tokenize": _llama_cpp, **template}, prompt)
    assert (reading.ids, reading.pieces) == ((1, 7, 8), ("<s>", "The", "\ufffd"))


def test_trtllm_serve_tokenizes_texts_only():
    routes = {"/_internal/tokenize": lambda _: json_reply({"count": 3, "tokens": IDS})}
    reading, _ = _read({**_answers(strict=True), **routes}, TEXT)
    assert (reading.ids, reading.source) == ((1, 7, 8), "/_internal/tokenize")
    reading, _ = _read({**_answers(strict=True), **routes}, CHAT)
    assert (reading.ids, reading.count, reading.problem) == (None, 3, "")


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_the_render_routes_of_vllm_and_trtllm_serve_give_ids(prompt):
    one = {"kind": "chat", "token_ids": IDS}
    routes = {
        "/v1/chat/completions/render": lambda _: json_reply(one),
        "/v1/completions/render": lambda _: json_reply([one]),
    }
    reading, _ = _read({**_answers(strict=True), **routes}, prompt)
    assert reading.ids == (1, 7, 8)
    assert reading.source.endswith("completions/render")


def test_a_count_without_ids_comes_from_answers_or_from_count_tokens():
    reading, server = _read(_answers(5, strict=True), CHAT)
    assert (reading.ids, reading.count, reading.problem) == (None, 5, "")
    assert sum("completions" in one.path for one in server.requests) - 1 == MOST_ANSWERS
    counts = {"/v1/messages/count_tokens": lambda _: json_reply({"input_tokens": 6})}
    silent = {"/v1/chat/completions": lambda _: answer("x")}
    reading, _ = _read({**silent, **counts}, CHAT)
    assert (reading.ids, reading.count) == (None, 6)
    reading, server = _read(silent, CHAT)
    assert (reading.count, reading.problem) == (None, "answers count no prompt tokens")


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_a_route_counts_without_an_answer(prompt):
    def count(routes):
        server = _server(routes)

        async def main():
            async with (
                server.serve() as url,
                Client(Endpoint(base_url=url, model="m"), Limits()) as client,
            ):
                return await reader_of(client).count_by_route(prompt)

        return asyncio.run(main()), {one.path for one in server.requests}

    assert count({**_answers(9), "/tokenize": _vllm}) == (3, {"/tokenize"})
    counted, paths = count(_answers(9))
    assert counted is None
    assert not paths & {*_answers()}
    route = {"/v1/messages/count_tokens": lambda _: json_reply({"input_tokens": 6})}
    assert count(route)[0] == (None if isinstance(prompt, str) else 6)


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_a_failed_request_is_the_problem_of_the_reading(prompt):
    reading, server = _read({}, prompt)
    assert (reading.ids, reading.count) == (None, None)
    assert reading.problem == "HTTP 404: Not Found"
    odd = {path: lambda _: raw(b"<html>") for path in ("/tokenize", *_answers())}
    reading, server = _read(odd, prompt)
    assert reading.problem.startswith("HTTP 200")
    worst = {
        **{path: lambda _: fail(500, "oops") for path in _answers()},
        "/tokenize": lambda _: json_reply({"tokens": []}),
        "/apply-template": lambda _: json_reply({"prompt": "x"}),
    }
    reading, server = _read(worst, prompt)
    assert reading.problem == "HTTP 500: oops"
    assert len(server.requests) <= MOST_REQUESTS


def test_nobody_who_listens_is_no_finding_about_tokens():
    async def main():
        endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="m")
        async with Client(endpoint, Limits()) as one, Client(endpoint, Limits()) as other:
            return await audit(one, other)

    findings = asyncio.run(main())
    assert [one.cause for one in findings] == [PromptCause.NOT_READ] * len(PROMPTS)
    assert all(one.same is None for one in findings)


def _audit(routes, others, prompts):
    async def main():
        async with (
            _server(routes).serve() as url,
            _server(others).serve() as there,
            Client(Endpoint(base_url=url, model="m"), Limits()) as one,
            Client(Endpoint(base_url=there, model="m"), Limits()) as other,
        ):
            return await audit(one, other, prompts, today=date(2026, 11, 26))

    return asyncio.run(main())


def test_two_endpoints_are_compared_prompt_by_prompt():
    sound = {**_answers(ids=True), "/tokenize": _vllm}
    assert [one.cause for one in _audit(sound, sound, [TEXT, CHAT])] == [PromptCause.SAME] * 2

    def doubled(request):
        return json_reply({"tokens": [1, *IDS], "token_strs": ["<s>", "<s>", "The", "Ġsum"]})

    faulty = {**_answers(4), "/tokenize": doubled}
    for one in _audit(faulty, sound, [TEXT, CHAT]):
        assert one.cause is PromptCause.BOS_DOUBLED
        assert "begins 2 times with <s> (id 1)" in one.told
    counted = _audit(_answers(4, strict=True), sound, [TEXT])
    assert [one.cause for one in counted] == [PromptCause.COUNT_DIFFERS]
    assert "4 tokens, 1 more than http://" in counted[0].told


CHAT_LOCAL = (Message(role="user", content="Name a colour."),)


def _read_local(local, prompt):
    with local:
        return asyncio.run(local.read(prompt))


def test_a_chat_is_rendered_and_a_text_is_not():
    chat = _read_local(local_side(WEIGHTS), CHAT_LOCAL)
    assert chat.text == "<|user|>\nName a colour.<|end|>\n<|assistant|>\n"
    assert (chat.dated, chat.bos, chat.problem) == (False, None, "")
    assert _read_local(local_side(WEIGHTS), "Name a colour.").text == "Name a colour."


def test_texts_get_the_tokenizers_special_tokens_and_chats_the_templates(tmp_path):
    folder = make_folder(tmp_path, bos_token="<|end|>")
    text, chat = (
        _read_local(local_side(folder, bos="<|end|>"), one) for one in ("Name", CHAT_LOCAL)
    )
    assert (text.ids[0], text.bos) == (0, 0)
    assert chat.ids[0] != 0


def test_a_count_is_that_of_the_ids(tmp_path):
    folder = make_folder(tmp_path, bos_token="<|end|>")
    for prompt in ("Name", CHAT_LOCAL):
        with local_side(folder, bos="<|end|>") as side:
            assert side.count(prompt) == len(side.read_now(prompt).ids or ())
    with local_side(make_folder(tmp_path / "bare", None)) as side:
        assert side.count("Name")
        with pytest.raises(PlanError, match="template"):
            side.count(CHAT_LOCAL)


def test_a_template_with_a_date_is_found_by_another_date(tmp_path):
    dated = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE
    reading = _read_local(local_side(make_folder(tmp_path, dated)), CHAT_LOCAL)
    assert reading.dated is True
    assert (reading.text or "").startswith("26 Nov 2026 <|user|>")
    year = "{{ strftime_now('%Y') }} " + TEMPLATE
    assert _read_local(local_side(make_folder(tmp_path, year)), CHAT_LOCAL).dated is True


def test_a_template_that_is_missing_or_fails_is_the_problem_of_chats_only(tmp_path):
    folder = make_folder(tmp_path, None)
    assert "has no chat template" in _read_local(local_side(folder), CHAT_LOCAL).problem
    assert _read_local(local_side(folder), "Name").ids
    failing = make_folder(tmp_path, "{{ raise_exception('no') }}")
    assert "the chat template fails: no" in _read_local(local_side(failing), CHAT_LOCAL).problem


def _audit_local(server, *locals_):
    async def main():
        async with (
            serve(server) as url,
            Client(Endpoint(base_url=url, model="m"), Limits()) as client,
        ):
            return [await audit(client, local, today=TODAY) for local in locals_]

    return asyncio.run(main())


def test_the_embedded_model_reads_prompts_as_its_files_say(tmp_path):
    with_system = "<|system|>\nBe nice.<|end|>\n" + TEMPLATE
    app = create_app(WEIGHTS, {"m": "none"})
    own, other = _audit_local(
        app, local_side(WEIGHTS), local_side(make_folder(tmp_path, with_system))
    )
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
def test_ids_of_a_server_get_the_texts_of_the_files(tmp_path, cause):
    server = serve_folder(make_folder(tmp_path, SERVED[cause]))
    [[text, *chats]] = _audit_local(server, local_side(WEIGHTS))
    assert text.cause is PromptCause.SAME
    assert PromptCause(cause) in {one.cause for one in chats}
    if cause == "spaces_stripped":
        assert [one.cause for one in chats] == ["same", "spaces_stripped", "same"]


def test_a_first_token_that_the_server_adds_to_a_template_with_one_is_doubled(
    tmp_path,
):
    folder = make_folder(tmp_path / "model", "{{ bos_token }}" + TEMPLATE, bos_token="<|end|>")
    faulty = make_folder(tmp_path / "served", "<|end|><|end|>" + TEMPLATE)
    [[text, *chats]] = _audit_local(serve_folder(faulty), local_side(folder, bos="<|end|>"))
    assert text.cause is PromptCause.BOS_MISSING
    assert {one.cause for one in chats} == {PromptCause.BOS_DOUBLED}


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(PlanError, match=r"has no tokenizer\.json"):
        open_local(tmp_path)


def test_the_package_tokenizers_gives_the_same_ids():
    pytest.importorskip("tokenizers")
    with open_local(WEIGHTS, today=TODAY) as local:
        for prompt in PROMPTS:
            assert asyncio.run(local.read(prompt)) == _read_local(local_side(WEIGHTS), prompt)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PlanError, match="cannot be read"):
        open_local(tmp_path)
