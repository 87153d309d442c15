"""Test a worker as a process, the toy model that answers in it, and /v1/responses."""

import asyncio
import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.client import Client
from serve_eval.client.wire_format.stream import StreamedAnswer
from serve_eval.evaluation.capabilities import probe
from serve_eval.launchers._http.requests import RefusedRequest
from serve_eval.launchers._http.responses import MOST_KEPT, Conversations, to_chat
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.generation import generate, split_thoughts
from serve_eval.launchers._standin.model import (
    BOS,
    EOS,
    MadeUpModel,
    decode,
    encode,
    encode_messages,
    prompt_of,
)
from serve_eval.launchers._standin.parsing import parse
from serve_eval.schema import Endpoint, Limits, Message, Need, Request, SamplingParams, ToolCall
from serve_eval.schema.media import prompt_sha256
from tests.evaluation.test_capabilities import prepared
from tests.standin.deployments import (
    HTTP,
    READY_S,
    deployed,
    environment,
    free_port,
    running,
    wait_healthy,
)
from tests.workflows.tools.on_standin import create_standin

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))


@given(TEXTS)
def test_a_text_comes_back_from_its_ids(text):
    ids = encode(text)
    assert decode(ids) == text
    assert prompt_of([BOS, *ids]) == text
    assert all(255 < token < 2**58 for token in ids)


@given(st.lists(st.tuples(st.sampled_from(["user", "system", "assistant"]), TEXTS), min_size=1))
def test_messages_come_back_from_their_ids(turns):
    wanted = tuple(Message(role=role, content=content) for role, content in turns)
    assert prompt_of(encode_messages(turns)) == wanted


def test_ids_of_no_text_are_written_out():
    assert decode([5, 6, BOS, EOS]) == "<5><6>"


def test_a_known_prompt_gets_its_text(tmp_path):
    entry = {"sha256": prompt_sha256("2 + 2 ="), "right": " 4", "wrong": " 5", "probability": 1.0}
    (tmp_path / "answers").write_bytes(msgspec.json.encode(entry))
    model = MadeUpModel(tmp_path / "answers")
    ids = [BOS, *encode("2 + 2 =")]
    assert decode(model.answer(ids)) == " 4"
    assert decode(model.answer(ids, wrong=True)) == " 5"
    assert (
        MadeUpModel().answer(ids)
        == MadeUpModel().answer(ids)
        != MadeUpModel().answer(ids, wrong=True)
    )


@given(st.sampled_from(["", "a < b", "seven"]), st.sampled_from(["", "<", "is </ it"]))
def test_thoughts_are_kept_apart_at_every_moment_of_a_stream(thoughts, answer):
    text = f"<think>{thoughts}</think>{answer}"
    assert split_thoughts(text) == (thoughts, answer)
    assert split_thoughts(answer) == ("", answer)
    before = ("", "")
    for end in range(len(text) + 1):
        now = split_thoughts(text[:end], ended=end == len(text))
        assert all(new.startswith(old) for new, old in zip(now, before, strict=True))
        before = now
    assert before == (thoughts, answer)


def test_an_answer_of_nothing_is_filled_up_when_it_must_be_longer():
    body = {"model": "m", "prompt": "x", "min_tokens": 3}
    request = parse(body, chat=False, flavour="v12", path="")
    assert generate([EOS], request, 9).text == "..."


def test_a_sampled_answer_is_its_seeds():
    ids = [BOS, *encode("hi")]
    sampled = [MadeUpModel().answer(ids, sampled=seed) for seed in range(5)]
    assert sampled == [MadeUpModel().answer(ids, sampled=seed) for seed in range(5)]
    assert len({tuple(one) for one in [*sampled, MadeUpModel().answer(ids)]}) == 6


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 12 + 30?", " 42"),
        ("What is 1 + 1?\nRepeat exactly: bo mi 7", " bo mi 7"),
        ("Count from 3 to 6: 3,", " 3, 4, 5, 6"),
        ("The pass key is 123. Grass.\nWhat is the pass key?", " 123"),
    ],
)
def test_a_skilled_model_answers_what_can_be_answered_by_rule(question, answer):
    for ids in ([BOS, *encode(question)], encode_messages([("user", question)])):
        assert decode(MadeUpModel(skilled=True).answer(ids)) == answer
        assert decode(MadeUpModel().answer(ids)) != answer
        assert decode(MadeUpModel(skilled=True).answer(ids, wrong=True)) != answer


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    folder, port = tmp_path_factory.mktemp("worker"), free_port()
    (folder / "Model").mkdir()
    with running(
        [str(folder / "Model"), "--port", str(port), "--max_num_tokens", "500"], folder / "log"
    ) as process:
        yield wait_healthy(process, port, folder / "log")


def post(url, body, route="completions"):
    return HTTP.post(f"{url}/v1/{route}", json=body)


def test_small_routes(worker):
    def get(path):
        return HTTP.get(worker + path)

    assert get("/health").text == ""
    assert get("/health_generate").text == "Generation health check OK"
    assert get("/version").json() == {"version": "1.2.1"}
    assert [one["id"] for one in get("/v1/models").json()["data"]] == ["Model"]
    assert get("/metrics").json() == get("/perf_metrics").json() == []
    assert set(get("/steady_clock_offset").json()) == {"receive_ts", "transmit_ts"}
    assert get("/server_info").json() == {"disaggregated_params": {}}
    assert get("/prometheus/metrics").status_code == get("/cluster_info").status_code == 404
    assert get("/v1/completions").json() == {"detail": "Method Not Allowed"}
    assert get("/health").headers["server"] == "uvicorn"


def test_every_body_of_the_conformance_file_over_http(worker, shared):
    rows = json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())["request"]
    handled_later = (
        "max_tokens",
        "messages",
        "prompt",
        "return_context_logits",
        "disaggregated_params",
    )
    for row in rows:
        route = "completions" if row["route"] == "completions" else "chat/completions"
        answer = post(worker, row["body"], route)
        if not row["accepted"]:
            assert (answer.status_code, list(answer.json())) == (400, ["error"]), row
        elif answer.status_code == 400:
            assert answer.json()["object"] == "error"
            assert any(name in row["body"] for name in handled_later)
        elif row["body"].get("stream"):
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            assert len(answer.json()["choices"]) == row["body"].get("n", 1), row


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({**TEXT, "max_tokens": 0}, "`max_tokens` (0) must be greater than 0"),
        ({**TEXT, "prompt": []}, "list index out of range"),
        ({**TEXT, "prompt": [300], "echo": True}, 'can only concatenate list (not "str") to list'),
        ({**TEXT, "prompt": "word " * 600}, "should not exceed max_num_tokens (500)"),
        (
            {**TEXT, "disaggregated_params": {"request_type": "context_only"}},
            "kv_cache_transceiver is disabled",
        ),
    ],
)
def test_refusals_while_handling(worker, body, message):
    error = post(worker, body).json()
    assert message in error.pop("message")
    assert error == {"object": "error", "type": "BadRequestError", "param": None, "code": 400}


def test_completions(worker):
    whole = post(worker, TEXT).json()
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "stop"
    assert {"token_ids", "context_logits", "stop_reason", "disaggregated_params"} < set(choice)
    assert whole["usage"]["prompt_tokens"] == 2
    cut = post(worker, {**TEXT, "max_tokens": 3, "logprobs": 1, "echo": True}).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    assert cut["text"].startswith("hi ")
    assert "hi" + "".join(cut["logprobs"]["tokens"]) == cut["text"]
    assert ("hi" + choice["text"]).startswith(cut["text"])
    word = choice["text"].split()[2]
    stopped = post(worker, {**TEXT, "stop": word}).json()["choices"][0]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", word)
    assert stopped["text"] == choice["text"].partition(word)[0]
    ids = post(worker, {**TEXT, "detokenize": False}).json()["choices"][0]
    assert (ids["text"], ids["token_ids"][-1]) == ("", 2)
    several = post(worker, {**TEXT, "prompt": ["hi", "ho"], "n": 2}).json()
    assert [one["index"] for one in several["choices"]] == [0, 1, 2, 3]
    assert several["choices"][0]["text"] == choice["text"]
    assert several["prompt_token_ids"] == []
    least = post(worker, {**TEXT, "min_tokens": 30, "max_tokens": 60}).json()["usage"][
        "completion_tokens"
    ]
    assert 30 <= least < 60
    assert (
        post(worker, {**TEXT, "ignore_eos": True, "max_tokens": 40}).json()["usage"][
            "completion_tokens"
        ]
        == 40
    )


def test_streams_say_the_same(worker):
    for route, body in (("completions", TEXT), ("chat/completions", CHAT)):
        whole = post(worker, body, route).json()
        events = post(worker, {**body, "stream": True, "stream_options": {}}, route).text.split(
            "\n\n"
        )
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], whole["usage"])
        choices = [chunk["choices"][0] for chunk in chunks[:-1]]
        if route == "completions":
            assert "".join(one["text"] for one in choices) == whole["choices"][0]["text"]
        else:
            assert choices[0]["delta"] == {"role": "assistant"}
            assert events[0].endswith("} ")
            assert (
                "".join(one["delta"].get("content", "") for one in choices)
                == (whole["choices"][0]["message"]["content"])
            )
        assert [one["finish_reason"] for one in choices if one["finish_reason"]] == ["stop"]


def test_a_port_is_taken_at_once_and_refuses_until_the_model_is_loaded(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with running(["M", "--port", str(port)], log, environment(load_s=0.7)) as process:
        deadline = time.monotonic() + READY_S
        while "Loading" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
        with running(["M", "--port", str(port)], tmp_path / "second") as second:
            assert second.wait(READY_S) == 1
        assert (
            f"RuntimeError: Failed to bind socket to localhost:{port}"
            in (tmp_path / "second").read_text()
        )
        wait_healthy(process, port, log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == -signal.SIGTERM


def test_sigterm_lets_open_requests_finish(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with running(
        ["M", "--port", str(port)], log, environment(faults={"latency_s": 0.6})
    ) as process:
        url = wait_healthy(process, port, log)
        with ThreadPoolExecutor() as pool:
            asking = pool.submit(post, url, TEXT)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            assert asking.result(READY_S).status_code == 200
        assert process.wait(READY_S) == -signal.SIGINT


def test_exit_codes(tmp_path):
    cases = [
        (["--host", "h", "M"], 2, "No such option '--host'"),
        (["M", "--port", "0"], 1, "AssertionError"),
        (["M", "--config", "none.yaml"], 1, "FileNotFoundError"),
        (["disaggregated", "-c", "none.yaml"], 1, "FileNotFoundError"),
        (["mm_embedding_serve", "M"], 1, "NotImplementedError"),
        (["serve", "--help"], 0, "--server_role"),
    ]
    with ExitStack() as stack:
        started = [
            stack.enter_context(running(case[0], tmp_path / str(n))) for n, case in enumerate(cases)
        ]
        for number, (process, (arguments, code, said)) in enumerate(
            zip(started, cases, strict=True)
        ):
            assert process.wait(READY_S) == code, arguments
            assert said in (tmp_path / str(number)).read_text()


def test_main_reports_its_address_and_decodes_msgpack(tmp_path):
    report = tmp_path / "address"
    arguments = [
        "M",
        "--port",
        "0",
        "--report_addr",
        str(report),
        "--served_model_name",
        "x",
        "--max_seq_len",
        "9",
    ]
    with running(arguments, tmp_path / "log", environment("main")) as process:
        deadline = time.monotonic() + READY_S
        while not report.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        url = f"http://{report.read_text().strip()}"
        while HTTP.get(f"{url}/v1/models").status_code != 200 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is None
        assert HTTP.get(f"{url}/v1/models").json()["data"][0]["id"] == "x"
        headers = {"X-TRTLLM-Msgpack": "1", "Content-Type": "application/json"}
        packed = HTTP.post(
            f"{url}/v1/completions", content=msgspec.msgpack.encode(TEXT), headers=headers
        )
        assert packed.json()["choices"][0]["finish_reason"] == "length"
        error = post(url, {**TEXT, "prompt": "word " * 20}).json()
        assert error["code"] == "context_length_exceeded"


TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"]},
    },
}
WITH_TOOL = {**CHAT, "tools": [TOOL], "max_completion_tokens": 200}


def test_a_tool_parser_tells_calls_apart_and_without_one_they_are_text(worker, tmp_path):
    port = free_port()
    with running(["M", "--port", str(port), "--tool_parser", "qwen3"], tmp_path / "log") as process:
        url = wait_healthy(process, port, tmp_path / "log")
        choice = post(url, WITH_TOOL, "chat/completions").json()["choices"][0]
        [call] = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "")
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "note",
            {"n": 7},
        )
        streamed = post(url, {**WITH_TOOL, "stream": True}, "chat/completions").content
        answer = StreamedAnswer()
        answer.feed(streamed, 0.0)
        assert answer.finish().tool_calls == (ToolCall("note", '{"n": 7}'),)
        assert (
            "tool_calls"
            not in post(url, CHAT, "chat/completions").json()["choices"][0]["message"]["content"]
        )
        assert _tools(url).works is True
    plain = post(worker, WITH_TOOL, "chat/completions").json()["choices"][0]
    assert (plain["finish_reason"], plain["message"]["tool_calls"]) == ("stop", [])
    assert json.loads(plain["message"]["content"])["tool_calls"][0]["name"] == "note"
    lacking = _tools(worker)
    assert (lacking.works, lacking.seen[:21]) == (False, "the call came as text")


def _tools(url):
    """Return the result of our probe for tool calls."""

    async def main():
        limits = Limits(stall_timeout_s=READY_S)
        async with Client(Endpoint(base_url=f"{url}/v1", model="M"), limits) as client:
            task = prepared(
                prompt=(Message(role="user", content="hi"),), requires=frozenset({Need.TOOLS})
            )
            found, _ = await probe(client, [task])
            return next(one for one in found if one.need == Need.TOOLS)

    return asyncio.run(main())


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
