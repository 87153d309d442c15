"""Sound pairs of servers that count as vLLM does are compared and asked without a warning.

Each round compares one server with a pair, asks the pair's servers by `attribute`, lets hand-overs
that nobody fetched expire, and compares again. Whatever the commands themselves cause at the
servers must not come back as a warning about them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._vllm.orchestrator import VllmServer, create_app
from serve_eval.schema import Comparison, Limits, Plan, Spec
from serve_eval.workflows.attribute.attribute import attribute, prepare_asking, worker
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from tests.scripted_server import (
    HttpRequest,
    Reply,
    ScriptedServer,
    answer,
    json_reply,
    raw,
    version,
)

N = 16
EXPIRES_S = 1.0
"""Seconds after which a server gives up a hand-over; vLLM's are 30 or more."""
TOKENS = 60


@dataclass
class Served:
    """A server that hands over, takes over and counts as vLLM 0.32 does."""

    kept: dict[int, float] = field(default_factory=dict)
    """Hand-overs that nobody has fetched, with the time at which they expire."""
    finished: int = 0
    moved: int = 0
    expired: int = 0
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 10**6)))
    partner: Served | None = None

    def script(self) -> ScriptedServer:
        listed = {"id": "m", "object": "model", "owned_by": "vllm"}
        routes = {
            "/v1/models": json_reply({"object": "list", "data": [listed]}),
            "/version": version("0.32.0"),
            "/metrics": self._metrics,
            "/health": raw(b""),
        }
        return ScriptedServer(self._answer, routes=routes)

    async def _answer(self, request: HttpRequest) -> Reply:
        body = request.body
        asked: dict[str, Any] = body.get("kv_transfer_params") or {}
        # Like a real server, it decodes for longer than our orchestrator needs for two requests.
        await asyncio.sleep(0.002 if asked.get("do_remote_decode") else 0.04)
        self.finished += 1
        if asked.get("do_remote_decode"):
            number = next(self.numbers)
            self.kept[number] = time.monotonic() + EXPIRES_S
            handed = {"do_remote_prefill": True, "remote_block_ids": [[number]]}
            more = {"kv_transfer_params": handed}
            return answer(" ", finish="length", body=more, usage=(TOKENS, 1))
        if asked.get("do_remote_prefill"):
            assert self.partner is not None
            [[number]] = asked["remote_block_ids"]
            del self.partner.kept[number]
            self.moved += TOKENS
        return answer(f"#### {len(str(body.get('prompt')))}", usage=(TOKENS, 3))

    def _metrics(self, request: HttpRequest) -> Reply:
        now = time.monotonic()
        for number in [number for number, until in self.kept.items() if until < now]:
            del self.kept[number]
            self.expired += 1
        label, source = 'engine="0",model_name="m"', "vllm:prompt_tokens_by_source_total"
        own = TOKENS * self.finished - self.moved
        lines = [
            "process_start_time_seconds 1795703409.65",
            f'vllm:request_success_total{{{label},finished_reason="stop"}} {self.finished}.0',
            f"vllm:prompt_tokens_total{{{label}}} {TOKENS * self.finished}.0",
            f'{source}{{{label},source="local_compute"}} {own}.0',
            f'{source}{{{label},source="external_kv_transfer"}} {self.moved}.0',
            f"vllm:nixl_num_kv_expired_reqs_total{{{label}}} {self.expired}.0",
        ]
        return raw("\n".join(lines).encode() + b"\n")


def _plan(data_root: Path) -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=8),
    )


def _collect_warnings(found: Comparison) -> list[str]:
    parts = [found.warnings, found.a.warnings, found.b.warnings]
    return [line for part in (*parts, *(task.warnings for task in found.tasks)) for line in part]


async def _ask_sound_pair(plan: Plan, out: Path) -> list[str]:
    """Return all warnings of a round."""
    single, prefill = Served(), Served()
    decode = Served(partner=prefill)
    async with AsyncExitStack() as stack:
        urls = [
            await stack.enter_async_context(one.script().serve())
            for one in (single, prefill, decode)
        ]
        names = ("context_0", "generation_0")
        servers = dict(zip(names, urls[1:], strict=True))
        told = [[VllmServer(name, url.removesuffix("/v1"))] for name, url in servers.items()]
        door = await stack.enter_async_context(serve_app(create_app(*told, by_params=True)))
        options = [{"base_url": urls[0]}, {"base_url": door, "servers": servers}]
        sides = [
            CompareSide(plan=replace(plan, launcher=Spec(name="external", options=one)))
            for one in options
        ]
        rules, said = CompareRules(rule=Spec(name="paired"), again=N), []
        for number in range(2):
            folder = out / str(number)
            found = await compare(*sides, rules, folder, environ={}, show_flips=0)
            said += _collect_warnings(found)
            if number == 0:
                run = folder / "b"
                given = [
                    worker(f"{name.rpartition('_')[0]}={url}") for name, url in servers.items()
                ]
                asking = await prepare_asking(
                    run, sides[1].plan, given=given, samples=8, environ={}
                )
                done = await attribute(run, asking, environ={})
                assert done.exit_code == 0, done.warnings
                said += done.warnings
                await asyncio.sleep(EXPIRES_S + 0.2)
        assert prefill.expired == 0
        assert decode.moved > 0
    return said


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_that_our_commands_cause_is_told_of_sound_pairs(
    rounds: int, data_root: Path, tmp_path: Path
) -> None:
    said = [
        line
        for number in range(rounds)
        for line in asyncio.run(_ask_sound_pair(_plan(data_root), tmp_path / str(number)))
    ]
    ours = ("failed in part", "other clients", "slower: ", "slow_")
    assert [line for line in said if any(word in line for word in ours)] == []
