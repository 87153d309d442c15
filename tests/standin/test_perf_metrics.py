"""Test GET /perf_metrics of the 1.2 stand-in: the servers of each request, readable once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx

from tests.standin.in_process import deployed


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
