"""Passes after other prompts have filled the cache, against sound and faulty caches."""

import asyncio
import io
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from rich.console import Console

from serve_eval.client.connection import connect
from serve_eval.client.engine_metrics import read_metrics
from serve_eval.report.document import print_document
from serve_eval.schema import Endpoint, PressureUse, Usage
from serve_eval.storage.story_results import PressureLevel, read_pressure
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.invariants.cache_use import are_fewer, why_not_pressed
from serve_eval.workflows.invariants.caching import fill, make_text
from serve_eval.workflows.invariants.document import make_document
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail
from tests.workflows.invariants.faulty_servers import (
    BlockCache,
    CacheServer,
    check_server,
    list_answers,
    make_plan,
)

N = 12
DEVICE, HOST = 80, 10_000
"""Blocks; the prompts fill some 28 of them."""
BUDGET = 6_000


@cache
def _plan():
    return make_plan(N)


def _server(**more):
    host = more.pop("host", 0)
    kept = {"cache": BlockCache(device=DEVICE, host=host)}
    return CacheServer(texts=list_answers(_plan()), **(kept | more))


def _check(server, out, budget=BUDGET):
    return asyncio.run(check_server(server, _plan(), budget, out))


def _pressed(found):
    return [(one, one.pressure) for one in found.results if one.pressure is not None]


def _said(found):
    console = Console(file=io.StringIO(), width=400)
    print_document(make_document(found, Path("out")), console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_fillings_double_until_a_sound_cache_evicts_the_old_prompts(tmp_path):
    found = _check(_server(), tmp_path)
    *earlier, (last, use) = _pressed(found)
    assert (found.exit_code, last.not_tested, use.fate) == (PASS, None, "evicted")
    assert (use.prompts, use.fewer, use.after) == (N, N, 0)
    assert use.before >= use.prompt_tokens / 2
    log = read_pressure(tmp_path)
    wanted = [level.wanted for level in log.levels]
    assert wanted == [wanted[0] * 2**i for i in range(len(wanted))]
    assert all(level.wanted <= level.filled for level in log.levels)
    assert [one.fate for _, one in earlier] == ["kept"] * len(earlier)
    assert (
        f"{last.arm}: 0 of {use.prompt_tokens:,} prompt tokens came from the cache,"
        f" {use.before:,} before the other prompts: evicted, and computed again"
    ) in _said(found)
    written = read_json(tmp_path / "invariants.json")
    assert written["results"][-1]["pressure"]["fate"] == "evicted"


def test_one_filling_finds_a_damaged_reload_if_the_size_of_the_cache_is_told(
    tmp_path,
):
    server = _server(host=HOST, room=True, fault="reload")
    found = _check(server, tmp_path)
    [(one, use)] = _pressed(found)
    assert (use.fate, use.capacity, use.before) == ("reloaded", DEVICE * 8, use.after)
    assert [other for other in found.results if other.broken] == [one]
    assert found.exit_code == FAIL
    assert use.from_cache == one.changed.other == server.struck == N
    said = _said(found)
    assert "reloaded, since the device cannot hold both (room for 640 tokens, " in said
    assert f"{N} changed answers had cached tokens" in said


def test_without_counts_one_filling_takes_all_tokens_and_a_fault_is_found(tmp_path):
    """The answers of evicted blocks are those to other prompts, which is named."""
    found = _check(_server(fault="stale", counts=False), tmp_path, 2000)
    [(one, use)] = _pressed(found)
    assert (one.broken, found.exit_code, use.foreign) == (True, FAIL, one.changed.other)
    assert f"word for word the answer to another prompt: {use.foreign}" in _said(found)
    assert (use.fate, use.before) == ("unknown", None)
    assert (why_not_pressed(use) or "").startswith(
        "it is not known whether old prompts left the cache"
    )
    assert [level.wanted for level in read_pressure(tmp_path).levels] == [2000]


def test_a_server_without_a_cache_is_not_filled(tmp_path):
    server = _server(cache=None)
    found = _check(server, tmp_path)
    assert _pressed(found) == []
    assert (
        found.skipped["pressure"] == "nothing is cached: a prompt asked again had 0 cached tokens"
    )
    assert not [prompt for prompt in server.asked if prompt not in server.texts][20:]


def test_too_small_a_budget_is_named(tmp_path):
    found = _check(_server(cache=BlockCache(device=5000)), tmp_path, 600)
    [(one, use)] = _pressed(found)
    assert (use.fate, one.broken, found.exit_code) == ("kept", False, PASS)
    why = f"the cache was not filled with {use.filled:,} tokens"
    assert (one.not_tested or "").startswith(f"{why}: {N} of {N} prompts are still cached, or came")
    assert f"{one.arm}: {why}" in _said(found)
    assert why_not_pressed(replace(use, capacity=40_000)) == f"{why}: it has room for 40,000"


def test_an_interrupted_pass_is_preceded_by_a_filling_of_new_prompts(tmp_path):
    server, levels = _server(room=True), list[PressureLevel]()

    def interrupt(found):
        levels.extend(read_pressure(tmp_path).levels)
        (tmp_path / levels[0].name / "report.json").unlink()
        file = tmp_path / "pressure.json"
        file.write_text(json.dumps({**read_json(file), "ended": False}))
        server.asked.clear()

    def look(found):
        filled = [prompt for prompt in server.asked if prompt not in server.texts]
        assert sum(len(prompt.split()) for prompt in filled) >= levels[0].wanted
        [again] = read_pressure(tmp_path).levels
        assert (again.wanted, again.seed == levels[0].seed) == (levels[0].wanted, False)
        assert _pressed(found)[0][1].fate == "evicted"
        server.asked.clear()

    asyncio.run(check_server(server, _plan(), BUDGET, tmp_path, (interrupt, look)))
    assert server.asked == [], "a finished check asks nothing"


def test_prompts_get_shorter_until_the_server_takes_them():
    lengths = []

    def script(request):
        words = len(request.prompt.split())
        if words > 100:
            return fail(400, "too long")
        lengths.append(words)
        return answer("x", usage=(2 * words, 1))

    async def run(most):
        served = ScriptedServer(
            script if most else [fail(400, "no")], paths=["/v1/completions"]
        ).serve()
        async with served as url:
            endpoint = Endpoint(base_url=url, model="m")
            async with connect(_plan(), endpoint, {}) as client:
                return await fill(client, 12_000, 4, 1, chat=False)

    assert 12_000 <= asyncio.run(run(1)) <= 12_500
    assert set(lengths) == {62}  # 125 words, halved once
    assert asyncio.run(run(0)) == 0


def test_no_filling_begins_like_another():
    first = {make_text(1, i, 16).split()[0] + make_text(1, i, 16).split()[1] for i in range(300)}
    assert len(first) == 300
    assert make_text(1, 0, 16) != make_text(2, 0, 16)


@pytest.mark.parametrize(
    ("labels", "room"),
    [
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('num_gpu_blocks="None",block_size="16"', None),
        ('block_size="16"', None),
        ('block_size="16",num_gpu_blocks="99999999999999"', None),
    ],
)
def test_the_size_of_a_cache_is_read_from_the_metrics(labels, room):
    counted = 'vllm:request_success_total{model_name="m"} 3.0\n'
    reading = read_metrics(f"vllm:cache_config_info{{{labels}}} 1.0\n{counted}".encode(), "m")
    assert (reading.cache_tokens, reading.counts.requests) == (room, 3)
    twice = f"vllm:cache_config_info{{{labels}}} 1.0\n" * 2 + counted
    both = read_metrics(twice.encode(), "m")
    assert both.cache_tokens == (None if room is None else 2 * room)


def test_half_of_the_prompts_must_have_left_and_half_of_the_tokens_been_there():
    before = {f"{i}": Usage(prompt_tokens=20, cached_tokens=16) for i in range(10)}
    fewer = {name: Usage(prompt_tokens=20, cached_tokens=0) for name in list(before)[:5]}
    assert are_fewer(before, before | fewer)
    assert not are_fewer(before, before | dict(list(fewer.items())[:4]))
    assert not are_fewer(before, {})
    use = PressureUse(
        filled=9,
        capacity=None,
        prompts=10,
        prompt_tokens=200,
        before=100,
        after=100,
        fewer=0,
        fate="reloaded",
        from_cache=0,
        foreign=0,
    )
    assert why_not_pressed(use) is None
    little = why_not_pressed(replace(use, before=99))
    assert little == "little was cached: 99 of 200 prompt tokens before"


def test_the_command_takes_a_number_of_tokens():
    for wrong in ("--set invariants.kv_pressure=-1", "--set invariants.kv_pressure=9 --canaries"):
        serve_eval(
            f"check invariants 127.0.0.1:1 --tasks word_problems {wrong}",
            exits=2,
            tells="invariants.kv_pressure",
        )
