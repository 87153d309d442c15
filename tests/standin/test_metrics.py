"""Test the metrics of requests in the 1.2 stand-in and in main."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_eval.launchers._standin.metrics import (
    DONE,
    EVENT,
    RETURN,
    STAMPS,
    TIMING,
    TRACE_VARIABLE,
    Stripped,
)
from tests.standin.deployments import Deployed, deployed

ASKED = {RETURN: "1"}
FIELDS = ("disagg", "ctx", "gen")


async def _told(
    tmp_path: Path, requests: list[dict[str, Any]], **more: Any
) -> tuple[Deployed, list[httpx.Response]]:
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


def _lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.rglob(pattern))
        for line in path.read_text().splitlines()
    ]


def _stamp(fields: Any, name: str) -> str:
    [found] = re.findall(rf"(?:^|, ){name};ts=(\d+\.\d{{9}})", fields[STAMPS])
    return str(found)


def test_the_file_has_a_line_a_request_that_the_answers_fields_name(tmp_path: Path) -> None:
    asked = [{"body": {}, "headers": ASKED}, {"body": {"stream": True}, "headers": ASKED}]
    there, (whole, stream) = asyncio.run(_told(tmp_path, asked))
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
def test_nobody_gets_fields_that_were_not_asked_for_on_both_sides(
    tmp_path: Path, headers: dict[str, str], front: dict[str, Any]
) -> None:
    asked = [{"body": {"stream": stream}, "headers": headers} for stream in (False, True)]
    _, (whole, stream) = asyncio.run(_told(tmp_path, asked, front=front))
    assert TIMING not in whole.headers
    assert stream.content.endswith(DONE)
    assert len(_lines(tmp_path / "metrics", "perf_metrics-disagg-*.jsonl")) == 2


def test_perf_metrics_is_gone_and_an_answer_of_one_token_has_a_generation_server(
    tmp_path: Path,
) -> None:
    async def story() -> tuple[int, int]:
        async with (
            deployed(1, 1, flavour="main", metrics_dir=tmp_path, greeted=False) as there,
            httpx.AsyncClient(trust_env=False, timeout=20.0) as http,
        ):
            body = {"model": "m", "prompt": "question", "max_tokens": 1}
            assert (await http.post(f"{there.url}/completions", json=body)).status_code == 200
            doors = (there.url, there.workers["context_0"])
            first, second = [
                (await http.get(f"{url.removesuffix('/v1')}/perf_metrics")).status_code
                for url in doors
            ]
            return first, second

    assert asyncio.run(story()) == (404, 404)
    [one] = _lines(tmp_path, "*.jsonl")
    assert (bool(one["ctx_server"]), bool(one["gen_server"])) == (True, True)


def test_traces_name_requests_by_their_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_VARIABLE, str(tmp_path / "traces"))
    asked = [{"body": {}}, {"body": {"stream": True}}, {"body": {"prompt": 7.5}}]
    asyncio.run(_told(tmp_path, asked))
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
            assert line is not None
            assert line["disagg_request_id"] == responses[trace]["disagg_request_id"]


@pytest.mark.parametrize("cut", range(40))
def test_the_event_of_a_worker_is_taken_out_wherever_its_stream_is_cut(cut: int) -> None:
    stream = b"data: {}\n\n" + DONE + b'event: trtllm.perf_metrics\ndata: {"a":"b"}\n\n'
    stripped = Stripped()
    kept = b"".join(stripped.feed(part) for part in (stream[:cut], stream[cut:]))
    assert kept == b"data: {}\n\n" + DONE
    assert stripped.read_fields() == {"a": "b"}


async def _story(*, perf_metrics: bool, requests: int = 6, **more: Any) -> Any:
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


def test_the_orchestrator_tells_once_which_servers_had_each_request() -> None:
    there, (told, again) = asyncio.run(_story(perf_metrics=True))
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


def test_without_the_configs_nothing_is_told() -> None:
    assert asyncio.run(_story(perf_metrics=False))[1] == [[], []]


def test_no_more_is_kept_than_was_asked_for() -> None:
    _, (told, _) = asyncio.run(_story(perf_metrics=True, front={"perf_metrics_max_requests": 2}))
    assert len(told) == 2
