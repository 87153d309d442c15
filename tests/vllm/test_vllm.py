"""Test serve-eval with the real vLLM on a CPU: sound deployments pass, faulty ones are found.

The tests share servers and run in the order of this file. The last one ends the servers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.report.engine import describe_engines
from serve_eval.schema import Plan, Spec, VerdictOutcome
from tests.cli.command import serve_eval
from tests.peers.conftest import MODEL, SAMPLES, WAYS, Ours, evaluated, smoke_rows
from tests.peers.peers import LACKS, NOT_OF_THIS_MODEL, Peer
from tests.vllm.conftest import TABLE, address, has_avx512
from tests.vllm.deployments import PYTHON, Deployments, read_counter
from tests.vllm.faulty_transfer import foreign_blocks, orchestrated
from tests.vllm.measured import attribute, compare, verify

LONG = 42
"""Tokens of a prompt above which a fault strikes; the prompts have 25 to 70."""

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
VLLM = Peer("vLLM", "vllm", needs=PYTHON, gguf=False)
HERE = ("version", "tokenize", "returned_ids")
SMOKE = {name: row for name, row in NOT_OF_THIS_MODEL.items() if name not in HERE}
for name in ("json_schema", "json_portable", "special_tokens"):
    SMOKE[name] = LACKS
"""White space without end; trtllm-serve's own form; a tokenizer without special tokens."""
ASKED = "vllm:prompt_tokens_total"
MOVED = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'
ALONE, FEW, MANY = 30, 60, 150
ANOTHER = "ANOTHER MODEL, PRECISION OR CACHE"
ROUNDS = 10


@pytest.mark.parametrize("way", WAYS)
def test_it_scores_as_our_own_server_does(
    single: Deployments, ours: Callable[[Spec], Ours], way: str, tmp_path: Path
) -> None:
    spec, limits = WAYS[way]
    alone = limits.concurrency == 1
    samples = ALONE if alone else FEW if way in ("likelihood", "perplexity") else MANY
    spec = replace(spec, options={**spec.options, "num_samples": samples})
    running = Spec(name="external", options={"base_url": single["aggregated"].base_url})
    report = evaluated(
        VLLM,
        f"HF | {way}",
        running,
        ours(spec),
        spec,
        tmp_path,
        limits=limits,
        model=MODEL,
    )
    assert (report.result.failed, report.result.truncated) == (0, 0)
    if way == "perplexity":
        assert report.result.value == pytest.approx(ours(spec).report.result.value, rel=0.005)
        return
    paired = report.verdict.paired
    assert paired is not None
    # Too few are asked one at a time for the verdict to exclude its margin.
    assert alone or report.verdict.outcome is VerdictOutcome.PASS, report.verdict
    assert (paired.down or 0) + (paired.up or 0) <= 0.05 * report.result.scored


def test_a_smoke_test_shows_what_it_lacks(single: Deployments) -> None:
    assert smoke_rows(VLLM, single["aggregated"]) == SMOKE


@pytest.mark.parametrize(
    ("name", "outcome"), [("w8a8", "PASS"), ("w4a16", "FAIL"), ("kv_fp8", "PASS")]
)
def test_quantisation_is_judged_by_what_it_costs(
    single: Deployments, name: str, outcome: str, tmp_path: Path
) -> None:
    if name != "w8a8" and not has_avx512():
        pytest.skip(f"vLLM has no {name} on a CPU without AVX-512")
    a, b = single["aggregated"].base_url, single[name].base_url
    task, _ = compare(f"eager against {name}", a, b, tmp_path / "out", limit=MANY)
    assert task["verdict"]["outcome"] == outcome


def test_speculation_keeps_the_answers_and_its_acceptance_is_read(
    single: Deployments, tmp_path: Path
) -> None:
    root = single["ngram"].base_url.removesuffix("/v1")
    names = "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_drafts_total"
    before = [read_counter(root, name) for name in names]
    a, b = single["aggregated"].base_url, single["ngram"].base_url
    task, _ = compare("eager against n-gram", a, b, tmp_path / "out", limit=FEW)
    assert task["verdict"]["outcome"] != "FAIL"
    accepted, drafts = (
        read_counter(root, name) - old for name, old in zip(names, before, strict=True)
    )
    assert drafts > 0
    report = json.loads((tmp_path / "out/b/report.json").read_text())
    [told] = [one["counts"] for one in report["engine"]["servers"]]
    # Probes and the comparison's second answers are not in the run's own count.
    assert 0 < told["drafts"] <= drafts
    assert told["accepted_tokens"] <= accepted
    length = 1 + told["accepted_tokens"] / told["drafts"]
    TABLE.append(
        f"n-gram: acceptance length {length:.3f} = 1 + {told['accepted_tokens']} / {told['drafts']}"
    )


def test_a_run_of_launched_servers_reports_what_was_transferred(
    pairs: Deployments, tmp_path: Path
) -> None:
    endpoint = pairs["disaggregated"]
    plan = Plan(
        model=MODEL,
        launcher=Spec(name="vllm_disaggregated"),
        tasks=(Spec(name="word_problems"),),
        limit=FEW,
        no_reference=True,
    )
    launching = evaluate(
        plan, tmp_path / "run", environ={}, launching=lambda *_: nullcontext(endpoint)
    )
    report = asyncio.run(launching)
    assert report.engine is not None
    counts = {one.role: one.counts for one in report.engine.servers}
    [task] = report.tasks
    asked, moved = counts["context"].prompt_tokens, counts["generation"].moved_tokens
    assert moved == asked == counts["generation"].prompt_tokens > 0
    told = describe_engines(report)
    assert any("by KV transfer" in line for line in told)
    TABLE.extend(told)
    assert task.attribution.joined == FEW


def test_a_sound_transfer_passes_and_is_proven(
    pairs: Deployments, reference: Path, tmp_path: Path
) -> None:
    disaggregated = pairs["disaggregated"]
    decode = address(disaggregated, "generation_0")
    context = address(disaggregated, "context_0")
    before = read_counter(decode, MOVED), read_counter(context, ASKED)
    a, b = pairs["aggregated"].base_url, disaggregated.base_url
    task, _ = compare("1 + 1, sound", a, b, tmp_path / "out", limit=100)
    assert task["verdict"]["outcome"] == "PASS"
    moved, asked = read_counter(decode, MOVED) - before[0], read_counter(context, ASKED) - before[1]
    TABLE.append(f"1 + 1, sound: {moved:.0f} of {asked:.0f} prompt tokens moved")
    assert moved == asked > 0
    flags = ["--worker", f"context={context}", "--worker", f"generation={decode}"]
    found = verify("1 + 1, sound", disaggregated.base_url, reference, tmp_path / "verify", *flags)
    [side] = found["sides"]
    assert side["outcome"] == "IDENTICAL"
    counts = {one["role"]: one["counts"] for one in side["engines"]}
    by_source = counts["generation"]["prompt_tokens_by_source"]
    assert by_source["external_kv_transfer"] == counts["context"]["prompt_tokens"] > 0
    served = [
        json.loads(line) for line in (tmp_path / "out/b/served.jsonl").read_text().splitlines()
    ]
    assert {(one["context"], one["generation"]) for one in served} == {
        ("context_0", "generation_0")
    }
    assert len(served) == 100


def test_sound_servers_are_accused_of_nothing(pairs: Deployments, tmp_path: Path) -> None:
    a, b = pairs["aggregated"].base_url, pairs["disaggregated"].base_url
    workers = _workers(pairs, "generation_0")
    for number in range(ROUNDS):
        out = tmp_path / str(number)
        task, code = compare(f"sound, round {number}", a, b, out, limit=15, seed=number)
        assert (task["verdict"]["outcome"] != "FAIL", code in (0, 3)) == (True, True)
        bad = re.compile("unsteady|unlike|more_flips|more_failures|uneven")
        assert not [line for line in task["warnings"] if bad.search(line)]
        if number == 0:
            assert attribute(f"sound, round {number}", out / "b", *workers) == ([], 0)


def _workers(pairs: Deployments, *generation: str) -> list[str]:
    """Return the flags that name the context server and generation servers."""
    known = {"generation_0": address(pairs["disaggregated"], "generation_0")}
    known |= {
        name: pairs[name].base_url.removesuffix("/v1")
        for name in ("blocks_of_64", "int3", "aggregated")
    }
    urls = [f"context={address(pairs['disaggregated'], 'context_0')}"]
    urls += [f"generation={known[name]}" for name in generation]
    return [word for url in urls for word in ("--worker", url)]


def test_blocks_of_other_requests_are_found(
    pairs: Deployments, reference: Path, tmp_path: Path
) -> None:
    decode = address(pairs["disaggregated"], "generation_0")
    with (
        foreign_blocks(address(pairs["disaggregated"], "context_0")) as context,
        orchestrated(context, [decode]) as url,
    ):
        a = pairs["aggregated"].base_url
        task, code = compare(
            "foreign blocks for 10 %", a, url, tmp_path / "out", limit=70, sound=False
        )
        found = verify("foreign blocks for 10 %", url, reference, tmp_path / "verify")
    assert found["sides"][0]["outcome"] == ANOTHER
    assert (task["verdict"]["outcome"], code) == ("FAIL", 1)
    assert task["worse"] > 5 * task["better"]


def test_the_length_above_which_prompts_are_hit_is_named(
    pairs: Deployments, tmp_path: Path
) -> None:
    decode = address(pairs["disaggregated"], "generation_0")
    first = address(pairs["disaggregated"], "context_0")
    with (
        foreign_blocks(first, lambda body, tokens: tokens > LONG) as context,
        orchestrated(context, [decode]) as url,
    ):
        a = pairs["aggregated"].base_url
        compare(f"above {LONG} tokens", a, url, tmp_path / "out", limit=120, sound=False)
    found = json.loads(serve_eval("diagnose", tmp_path / "out", "--json").stdout)["between"]
    TABLE.extend(f"diagnose above {LONG} tokens | {one['rule']} | {one['told']}" for one in found)
    [told] = [one["told"] for one in found if one["rule"] == "slice"]
    named = re.search(r"prompts of more than (\d+) tokens", told)
    assert named is not None
    assert abs(int(named[1]) - LONG) <= 4


def test_unequal_block_sizes_are_found_and_the_transfer_is_named(
    pairs: Deployments, reference: Path, tmp_path: Path
) -> None:
    context = address(pairs["disaggregated"], "context_0")
    decode = pairs["blocks_of_64"].base_url.removesuffix("/v1")
    with orchestrated(context, [decode]) as url:
        a = pairs["aggregated"].base_url
        task, code = compare(
            "block sizes 32 and 64", a, url, tmp_path / "out", limit=30, sound=False
        )
        assert (task["verdict"]["outcome"], code) == ("FAIL", 1)
        workers = _workers(pairs, "blocks_of_64")
        accused, code = attribute("block sizes 32 and 64", tmp_path / "out/b", *workers)
        found = verify("block sizes 32 and 64", url, reference, tmp_path / "verify", *workers)
    assert found["sides"][0]["outcome"] == ANOTHER
    assert ["transfer of the KV cache" in one for one in found["named"]] == [True]
    assert (len(accused), code) == (1, 1)
    assert accused[0].startswith("transfer")


def test_one_of_two_generation_servers_with_three_bits_is_named(
    pairs: Deployments, reference: Path, tmp_path: Path
) -> None:
    context = address(pairs["disaggregated"], "context_0")
    bad = pairs["int3"].base_url.removesuffix("/v1")
    decodes = [address(pairs["disaggregated"], "generation_0"), bad]
    with orchestrated(context, decodes) as url:
        a = pairs["aggregated"].base_url
        task, code = compare("one of two int3", a, url, tmp_path / "out", limit=70, sound=False)
        assert (task["verdict"]["outcome"], code) == ("FAIL", 1)
        rows = [row for row in task["attributions"][1]["rows"] if row["accused"]]
        named = [f"{row['worker']}: {row['bad']} of {row['answers']}" for row in rows]
        TABLE.append(f"one of two int3, as the run names it: {named}")
        assert [row["worker"] for row in rows] == ["generation_1"]
        workers = _workers(pairs, "generation_0", "int3")
        accused, code = attribute("one of two int3", tmp_path / "out/b", *workers, samples=40)
        found = verify("one of two int3", url, reference, tmp_path / "verify", *workers)
    assert found["sides"][0]["outcome"] == ANOTHER
    assert [bad in one for one in found["named"]] == [True]
    assert code == 1
    assert any(one.startswith("generation") for one in accused)


def test_a_generation_server_that_takes_nothing_over_is_an_error(
    pairs: Deployments, tmp_path: Path
) -> None:
    context = address(pairs["disaggregated"], "context_0")
    alone = pairs["aggregated"].base_url.removesuffix("/v1")
    with orchestrated(context, [alone]) as url:
        ran = serve_eval(
            "run", "--base-url", url, "--model", MODEL, "--tasks", "word_problems", "--limit", 20,
            "--no-reference", "-o", tmp_path / "run",
        )  # fmt: skip
        assert ran.returncode == 3, ran.stderr  # NO REFERENCE
        workers = _workers(pairs, "aggregated")
        told, code = attribute("decode takes nothing over", tmp_path / "run", *workers)
    assert code == 4
    assert "KV" in told


def test_a_context_server_that_is_killed_is_not_a_wrong_answer(
    pairs: Deployments, tmp_path: Path
) -> None:
    out, context = tmp_path / "run", address(pairs["disaggregated"], "context_0")
    decode = address(pairs["disaggregated"], "generation_0")
    plan = tmp_path / "plan.yaml"
    plan.write_text("limits: {outage_timeout_s: 3}\n")
    killing = threading.Thread(target=_kill_after_first_answers, args=(context, out))
    with orchestrated(context, [decode]) as url:
        killing.start()
        ran = serve_eval(
            "run", plan, "--base-url", url, "--model", MODEL, "--tasks", "word_problems",
            "--limit", SAMPLES, "--concurrency", 4, "--no-reference", "-o", out,
        )  # fmt: skip
        killing.join()
    assert ran.returncode == 4, ran.stderr
    TABLE.append(f"prefill killed: exit {ran.returncode}: {ran.stderr.strip().splitlines()[-3:]}")
    answered = _count_answers(out)
    assert 0 < answered < SAMPLES
    scored = [line for file in out.glob("scores/*") for line in file.read_text().splitlines()]
    assert len(scored) <= answered
    with pytest.raises(LaunchError, match="context_0"):
        pairs.stop("disaggregated")


def _kill_after_first_answers(url: str, out: Path) -> None:
    port = url.rpartition(":")[2]
    [pid] = [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdecimal()
        and (words := (folder / "cmdline").read_bytes().split(b"\0"))[:1] == [bytes(PYTHON)]
        and port.encode() in words
    ]
    deadline = time.monotonic() + 60
    while _count_answers(out) < 10 and time.monotonic() < deadline:
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)


def _count_answers(out: Path) -> int:
    return sum(len(file.read_bytes().splitlines()) for file in out.glob("samples/*"))
