"""Test the stand-in's faults on demand, and its metrics of requests."""

import asyncio
import json
import re
import signal
import subprocess
from collections import Counter

import httpx
import msgspec
import pytest

from serve_eval.launchers._standin.faults import Faults, faults, flatten
from serve_eval.launchers._standin.metrics import (
    DONE,
    EVENT,
    RETURN,
    STAMPS,
    TIMING,
    TRACE_VARIABLE,
    Stripped,
)
from serve_eval.launchers._standin.model import BOS, MadeUpModel, decode, encode
from serve_eval.schema.media import prompt_sha256
from tests.standin.deployments import (
    HTTP,
    READY_S,
    aggregated,
    deployed,
    environment,
    free_port,
    running,
    wait_healthy,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}


def post(url, body, route="completions"):
    return HTTP.post(f"{url}/v1/{route}", json=body)


@pytest.mark.slow
def test_an_engine_that_dies_leaves_a_server_without_one(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with running(
        ["M", "--port", str(port)], log, environment(faults={"unhealthy_after": 1})
    ) as process:
        url = wait_healthy(process, port, log)
        assert post(url, TEXT).status_code == 200
        assert post(url, TEXT).json()["object"] == "error"
        assert HTTP.get(f"{url}/health").status_code == 503
        assert process.poll() is None


@pytest.mark.slow
def test_or_ends_it(tmp_path):
    port, log = free_port(), tmp_path / "log"
    with running(
        ["M", "--port", str(port)], log, environment(faults={"executor_crash_after": 0})
    ) as process:
        assert post(wait_healthy(process, port, log), TEXT).text == "null"
        assert process.wait(READY_S) == -signal.SIGINT


def test_faults_of_one_process_and_a_crash(tmp_path):
    faults = [
        {"crash_after": 1, "corrupt_after": 0, "when": {"gpus": "1"}},
        {"error_after": 0, "when": {"gpus": "0"}},
    ]
    port, log = free_port(), tmp_path / "log"
    env = environment(faults=faults, CUDA_VISIBLE_DEVICES="1")
    with running(["M", "--port", str(port)], log, env) as process:
        answer = post(wait_healthy(process, port, log), TEXT)
        assert answer.json()["choices"][0]["text"] != decode(
            MadeUpModel().answer([BOS, *encode("hi")])
        )
        with pytest.raises(httpx.TransportError):
            post(f"http://localhost:{port}", TEXT)
        assert process.wait(READY_S) == 1


def test_faults_of_servers_with_some_arguments():
    wanted = {"kv_cache_config.dtype": "fp8", "enable_chunked_prefill": True, "command": "serve"}
    text = json.dumps({"corrupt_after": 0, "when": wanted})

    def struck(dtype, *, chunked):
        args = {"kv_cache_config": {"dtype": dtype}, "enable_chunked_prefill": chunked}
        return faults(text, {**flatten(args), "command": "serve"}).corrupt_after == 0

    assert struck("fp8", chunked=True)
    assert not struck("auto", chunked=True)
    assert not struck("fp8", chunked=False)


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_streams_that_fail(flavour, tmp_path):
    port, log = free_port(), tmp_path / "log"
    with running(
        ["M", "--port", str(port)], log, environment(flavour, faults={"fail_stream": 2})
    ) as process:
        url = wait_healthy(process, port, log)
        if flavour == "v12":
            with pytest.raises(httpx.TransportError):
                post(url, {**TEXT, "stream": True})
        else:
            error, done = post(url, {**TEXT, "stream": True}).text.split("\n\n")[2:4]
            assert (set(json.loads(error[6:])), done) == ({"error"}, "data: [DONE]")
        with pytest.raises(httpx.TransportError):
            post(url, {**CHAT, "stream": True}, "chat/completions")


@pytest.mark.slow
def test_hangs(tmp_path):
    port, log = free_port(), tmp_path / "log"
    faults = {"hang_after": 0, "ignore_sigterm": True}
    with running(["M", "--port", str(port)], log, environment(faults=faults)) as process:
        url = wait_healthy(process, port, log)
        with pytest.raises(httpx.ReadTimeout):
            HTTP.post(f"{url}/v1/completions", json=TEXT, timeout=1)
        assert HTTP.get(f"{url}/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        process.send_signal(signal.SIGKILL)
        assert process.wait(READY_S) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize(("faults", "code"), [({"crash_at_start": 9}, 9), ({"no_gpu": True}, 1)])
def test_a_start_that_fails(faults, code, tmp_path):
    with running(
        ["M", "--port", str(free_port())], tmp_path / "log", environment(faults=faults)
    ) as process:
        assert process.wait(READY_S) == code


# Of deployments in this process


@pytest.fixture
def known(tmp_path):
    """Write a prompt that is always answered right, and one that is right half the time."""
    prompts = [
        ("sure", "the one answer", "another answer", 1.0),
        ("unsure", "the one answer", "another answer", 0.5),
    ]
    lines = [
        {"sha256": prompt_sha256(prompt), "right": right, "wrong": wrong, "probability": chance}
        for prompt, right, wrong, chance in prompts
    ]
    (tmp_path / "answers").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
    return tmp_path / "answers"


def ask(
    deployment,
    times,
    prompt="sure",
    **more,
):
    """Ask one request after the other and return the results.

    A result is a text, a status, or None if the connection ends.
    """

    async def each():
        said = []
        async with deployment as there, httpx.AsyncClient(trust_env=False) as client:
            url = there if isinstance(there, str) else there.url
            for _ in range(times):
                body = {"model": "m", "prompt": prompt, "max_tokens": 50, **more}
                try:
                    answer = await client.post(f"{url}/completions", json=body)
                except httpx.TransportError:
                    said.append(None)
                    continue
                if answer.status_code != 200:
                    said.append(answer.status_code)
                elif more.get("stream"):
                    events = [
                        line[6:] for line in answer.text.splitlines() if line.startswith("data: {")
                    ]
                    said.append(
                        "".join(c["text"] for event in events for c in json.loads(event)["choices"])
                    )
                else:
                    said.append(answer.json()["choices"][0]["text"])
        return said

    return asyncio.run(each())


RIGHT, WRONG = "the one answer", "another answer"


def test_corruption_from_a_request_on_and_of_a_share(known):
    def asked(seed):
        return ask(
            aggregated(MadeUpModel(known), {"corrupt_after": 20, "share": 0.5, "seed": seed}), 60
        )

    said = asked(0)
    assert said[:20] == [RIGHT] * 20
    assert 10 <= said[20:].count(WRONG) <= 30
    assert said == asked(0)
    assert said != asked(1)


def test_corruption_of_prompts_by_their_length():
    async def each(**faults):
        said = {}
        async with (
            aggregated(MadeUpModel(), {"corrupt_after": 0, **faults}) as url,
            httpx.AsyncClient(trust_env=False, timeout=20.0) as http,
        ):
            for words in range(1, 13):
                body = {"model": "m", "prompt": " ".join(["hi"] * words), "max_tokens": 6}
                told = (await http.post(f"{url}/completions", json=body)).json()
                said[told["usage"]["prompt_tokens"]] = told["choices"][0]["text"]
        return said

    sound = asyncio.run(each(longer_than=10**6))
    lengths = list(sound)
    for fault, hit in (
        ({"residue": (3, 1)}, [n for n in lengths if n % 3 == 1]),
        ({"longer_than": 8}, [n for n in lengths if n > 8]),
    ):
        said = asyncio.run(each(**fault))
        assert [n for n in lengths if said[n] != sound[n]] == hit
        assert 0 < len(hit) < len(lengths)


def test_one_generation_server_and_one_pair_are_wrong(known):
    """Servers take turns, so the first context server always serves the first and third."""

    def asked(**more):
        said = ask(deployed(2, 4, answers=known, greeted=False, **more), 8)
        assert set(said) <= {RIGHT, f"the{WRONG.removeprefix('another')}"}
        return {i for i, text in enumerate(said) if text != RIGHT}

    assert asked(faults={"generation_0": {"corrupt_after": 0}}) == {0, 4}
    assert asked(wrong_pair=("context_0", "generation_0")) == {0, 4}
    assert asked(wrong_pair=("context_1", "generation_0")) == set()
    assert asked(wrong_pair=("context_1", "generation_3")) == {3, 7}


def one_pair(known, **generation):
    return deployed(1, 1, answers=known, greeted=False, faults={"generation_0": generation})


def test_a_lost_cache_gives_empty_answers(known):
    assert ask(one_pair(known, kv_loss_after=2), 5) == [RIGHT, RIGHT, "", "", ""]
    # No cache was transferred.
    assert ask(aggregated(MadeUpModel(known), {"kv_loss_after": 0}), 2) == [RIGHT, RIGHT]


def test_streams_and_refusals_of_a_share(known):
    dropped = ask(one_pair(known, drop_stream=1, share=0.4), 30, stream=True)
    assert set(dropped) == {None, RIGHT}
    assert 5 <= dropped.count(None) <= 20
    assert ask(one_pair(known, drop_stream=1), 3) == [RIGHT] * 3
    refused = ask(aggregated(MadeUpModel(known), {"error_after": 0, "share": 0.4}), 30)
    assert set(refused) == {400, RIGHT}
    assert 5 <= refused.count(400) <= 20


def test_a_slow_leg_is_slow_by_as_much_as_was_drawn():
    pauses = [Faults(latency_s=2.0, latency_jitter_s=1.0).pause_s(number) for number in range(50)]
    assert min(pauses) >= 2.0
    assert max(pauses) <= 3.0
    assert len(set(pauses)) == 50


def test_a_server_flips_where_it_is_not_sure(known):
    def asked(times, prompt="unsure"):
        return ask(aggregated(MadeUpModel(known, varied=True)), times, prompt)

    said = Counter(asked(40))
    assert set(said) == {RIGHT, WRONG}
    assert 8 <= said[RIGHT] <= 32
    assert asked(9) == asked(9)
    assert asked(9, "sure") == [RIGHT] * 9


ASKED = {RETURN: "1"}
FIELDS = ("disagg", "ctx", "gen")


async def _told(tmp_path, requests, **more):
    async with (
        deployed(
            2, 2, flavour="main", metrics_dir=tmp_path / "metrics", greeted=False, **more
        ) as there,
        httpx.AsyncClient(trust_env=False, timeout=20.0) as http,
    ):
        found = []
        for number, one in enumerate(requests):
            body = {"model": "m", "prompt": f"question {number}", "max_tokens": 6, **one["body"]}
            headers = {**one.get("headers", {}), "X-Request-ID": f"request-{number}"}
            found.append(await http.post(f"{there.url}/completions", json=body, headers=headers))
        return there, found


def _lines(folder, pattern):
    return [
        json.loads(line)
        for path in sorted(folder.rglob(pattern))
        for line in path.read_text().splitlines()
    ]


def _stamp(fields, name):
    [found] = re.findall(rf"(?:^|, ){name};ts=(\d+\.\d{{9}})", fields[STAMPS])
    return str(found)


async def test_the_file_has_a_line_a_request_that_the_answers_fields_name(tmp_path):
    asked = [{"body": {}, "headers": ASKED}, {"body": {"stream": True}, "headers": ASKED}]
    there, (whole, stream) = await _told(tmp_path, asked)
    _, _, behind = stream.content.partition(DONE)
    name, data = behind.decode().splitlines()[:2]
    assert name == f"event: {EVENT}"
    lines = {
        f"{one['disagg_server_arrival_time']:.9f}": one
        for one in _lines(tmp_path / "metrics", "*.jsonl")
    }
    assert len(lines) == 2
    for fields in (whole.headers, json.loads(data.removeprefix("data: "))):
        one = lines.pop(_stamp(fields, "disagg-start"))
        assert one["ctx_server"] in {there.host("context_0"), there.host("context_1")}
        assert one["gen_server"] in {there.host("generation_0"), there.host("generation_1")}
        assert one["disagg_request_id"] > 2**40
        timing = one["gen_perf_metrics"]["perf_metrics"]["timing_metrics"]
        assert f"{timing['arrival_time']:.9f}" == _stamp(fields, "gen-start")
        assert timing["kv_cache_transfer_end"] > timing["kv_cache_transfer_start"]
        assert {f"{leg}_{span};dur" for leg in FIELDS for span in ("queue", "ttft")} <= set(
            re.findall(r"\w+;dur", fields[TIMING])
        )
        assert "gen_kv_transfer;dur=" in fields[TIMING]
        assert "server" not in fields[TIMING] + fields[STAMPS]


@pytest.mark.parametrize(
    ("headers", "front"), [({}, {}), ({RETURN: "0"}, {}), (ASKED, {"return_perf_metrics": False})]
)
async def test_nobody_gets_fields_that_were_not_asked_for_on_both_sides(tmp_path, headers, front):
    asked = [{"body": {"stream": stream}, "headers": headers} for stream in (False, True)]
    _, (whole, stream) = await _told(tmp_path, asked, front=front)
    assert TIMING not in whole.headers
    assert stream.content.endswith(DONE)
    assert len(_lines(tmp_path / "metrics", "perf_metrics-disagg-*.jsonl")) == 2


async def test_perf_metrics_is_gone_and_an_answer_of_one_token_has_a_generation_server(
    tmp_path,
):
    async with (
        deployed(1, 1, flavour="main", metrics_dir=tmp_path, greeted=False) as there,
        httpx.AsyncClient(trust_env=False, timeout=20.0) as http,
    ):
        body = {"model": "m", "prompt": "question", "max_tokens": 1}
        assert (await http.post(f"{there.url}/completions", json=body)).status_code == 200
        doors = (there.url, there.workers["context_0"])
        first, second = [
            (await http.get(f"{url.removesuffix('/v1')}/perf_metrics")).status_code for url in doors
        ]
        assert (first, second) == (404, 404)
    [one] = _lines(tmp_path, "*.jsonl")
    assert (bool(one["ctx_server"]), bool(one["gen_server"])) == (True, True)


async def test_traces_name_requests_by_their_header(tmp_path, monkeypatch):
    monkeypatch.setenv(TRACE_VARIABLE, str(tmp_path / "traces"))
    asked = [{"body": {}}, {"body": {"stream": True}}, {"body": {"prompt": 7.5}}]
    await _told(tmp_path, asked)
    requests = {one["trace_id"]: one for one in _lines(tmp_path / "traces", "requests-*.jsonl")}
    responses = {one["trace_id"]: one for one in _lines(tmp_path / "traces", "responses-*.jsonl")}
    assert Counter(one["status"] for one in responses.values()) == {
        "completed": 2,
        "rejected_400": 1,
    }
    lines = {
        one["disagg_server_arrival_time"]: one for one in _lines(tmp_path / "metrics", "*.jsonl")
    }
    for trace, one in requests.items():
        name = dict(one["headers"])["x-request-id"]
        line = lines.get(one["server_arrival_time"])
        if name == "request-2":
            assert line is None
        else:
            assert line["disagg_request_id"] == responses[trace]["disagg_request_id"]


@pytest.mark.parametrize("cut", range(40))
def test_the_event_of_a_worker_is_taken_out_wherever_its_stream_is_cut(cut):
    stream = b"data: {}\n\n" + DONE + b'event: trtllm.perf_metrics\ndata: {"a":"b"}\n\n'
    stripped = Stripped()
    kept = b"".join(stripped.feed(part) for part in (stream[:cut], stream[cut:]))
    assert kept == b"data: {}\n\n" + DONE
    assert stripped.read_fields() == {"a": "b"}


async def _story(*, perf_metrics, requests=6, **more):
    async with deployed(2, 3, perf_metrics=perf_metrics, **more) as there:
        async with httpx.AsyncClient(trust_env=False, timeout=20.0) as http:
            for number in range(requests):
                body = {
                    "model": "m",
                    "prompt": f"question {number}",
                    "max_tokens": 6,
                    "stream": number == 1,
                }
                assert (await http.post(f"{there.url}/completions", json=body)).status_code == 200
            door = there.url.removesuffix("/v1")
            told = [(await http.get(f"{door}/perf_metrics")).json() for _ in range(2)]
        return there, told


async def test_the_orchestrator_tells_once_which_servers_had_each_request():
    there, (told, again) = await _story(perf_metrics=True)
    assert again == []
    assert Counter(one["ctx_server"] for one in told) == {
        there.host(f"context_{i}"): 3 for i in (0, 1)
    }
    assert Counter(one["gen_server"] for one in told) == {
        there.host(f"generation_{i}"): 2 for i in (0, 1, 2)
    }
    for one in told:
        context, generation = (
            one[f"{leg}_perf_metrics"]["perf_metrics"]["timing_metrics"] for leg in ("ctx", "gen")
        )
        assert one["disagg_server_arrival_time"] <= one["disagg_server_first_token_time"]
        assert context["arrival_time"] <= context["last_token_time"]
        order = ("arrival_time", "kv_cache_transfer_start", "kv_cache_transfer_end")
        assert sorted(order, key=generation.__getitem__) == list(order)
        assert generation["kv_cache_size"] > 0
        assert generation["arrival_time"] <= generation["last_token_time"]
        assert (
            one["ctx_perf_metrics"]["ctx_request_id"] == one["gen_perf_metrics"]["ctx_request_id"]
        )


async def test_without_the_configs_nothing_is_told():
    assert (await _story(perf_metrics=False))[1] == [[], []]


async def test_no_more_is_kept_than_was_asked_for():
    _, (told, _) = await _story(perf_metrics=True, front={"perf_metrics_max_requests": 2})
    assert len(told) == 2
