"""Compare sides whose servers are the same, or differ in policies, paths or counters.

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

import pytest

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.capabilities.sampling import (
    SideSampling,
    choose_sent,
    find_unlike_policies,
)
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app as policies_create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._vllm.orchestrator import VllmServer, create_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import (
    Limits,
    Plan,
    SamplingDefault,
    SamplingDefaults,
    Spec,
    VerdictOutcome,
)
from serve_eval.schema.base_url import list_servers
from serve_eval.tasks import word_problems
from serve_eval.workflows.attribute import attribute, prepare_asking, worker
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.verdict import compare_folders
from tests.cli.command import serve_eval
from tests.evidence.path_proof.deployments import Deployment, PathFault, run
from tests.scripted_server import (
    ScriptedServer,
    answer,
    external,
    json_reply,
    raw,
    version,
)

ASKED = "--tasks word_problems --limit 5"
SAME = [
    ("http://127.0.0.1:1", "127.0.0.1:1/v1"),
    ("localhost:1", "127.0.0.1:1"),
    ("http://LOCALHOST:1/v1/completions", "[::1]:1"),
    ("0.0.0.0:1", "localhost:1"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_equal_addresses_are_refused(a, b, tmp_path):
    out = tmp_path / "out"
    serve_eval(
        f"compare {a} {b} -m m -o {out} {ASKED}", exits=2, tells="A and B are the same server"
    )
    assert not out.exists()


def test_plans_that_name_one_address_are_refused(tmp_path):
    plan, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    text = "model: m\ntasks: [word_problems]\nbase_url: http://%s\n"
    plan.write_text(text % "127.0.0.1:1")
    other.write_text(text % "localhost:1/v1")
    for sides in (f"{plan} {other}", f"{plan} {plan}", f"{plan} 127.0.0.1:1/v1"):
        serve_eval(
            f"compare -o {tmp_path}/out {sides}", exits=2, tells="A and B are the same server"
        )


def test_two_models_of_one_server_are_compared(tmp_path):
    asked = f"-m m --set compare.model_b=n {ASKED}"
    done = serve_eval(f"compare 127.0.0.1:1 127.0.0.1:1 -o {tmp_path}/out {asked}", exits=4)
    assert "the same server" not in done.stderr


def test_verify_knows_a_server_by_any_of_its_addresses(tmp_path):
    serve_eval(
        f"verify 127.0.0.1:1 localhost:1 -m m -o {tmp_path}/out",
        exits=2,
        tells="a server is named twice",
    )


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("http://h", "http://H:80/v1", True),
        ("https://h", "https://h:443", True),
        ("http://h", "https://h", False),
        ("h:1/x/v1", "h:1/y/v1", False),
        ("h:1", "h:2", False),
        ("127.0.0.1:1", "[::1]:1", False),
    ],
)
def test_one_server_is_known_by_scheme_host_port_and_path(a, b, same):
    assert bool(list_servers(a) & list_servers(b)) is same


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

    def script(self):
        listed = {"id": "m", "object": "model", "owned_by": "vllm"}
        routes = {
            "/v1/models": json_reply({"object": "list", "data": [listed]}),
            "/version": version("0.32.0"),
            "/metrics": self._metrics,
            "/health": raw(b""),
        }
        return ScriptedServer(self._answer, routes=routes)

    async def _answer(self, request):
        body = request.body
        asked = body.get("kv_transfer_params") or {}
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
            [[number]] = asked["remote_block_ids"]
            del self.partner.kept[number]
            self.moved += TOKENS
        return answer(f"#### {len(str(body.get('prompt')))}", usage=(TOKENS, 3))

    def _metrics(self, request):
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


def _plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=8),
    )


def _collect_warnings(found):
    parts = [found.warnings, found.a.warnings, found.b.warnings]
    return [line for part in (*parts, *(task.warnings for task in found.tasks)) for line in part]


async def _ask_sound_pair(plan, out):
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
def test_nothing_that_our_commands_cause_is_told_of_sound_pairs(rounds, data_root, tmp_path):
    said = [
        line
        for number in range(rounds)
        for line in asyncio.run(_ask_sound_pair(_plan(data_root), tmp_path / str(number)))
    ]
    ours = ("failed in part", "other clients", "slower: ", "slow_")
    assert [line for line in said if any(word in line for word in ours)] == []


ADDS = {"repetition_penalty": 1.3}
RULES = CompareRules(rule=Spec(name="paired"), again=0)
ALLOWED = replace(RULES, allow_mismatch=("server_adds",))
REFUSED = r"server_adds is \['repetition_penalty'\] for A and \[\] for B, which sent a neutral"


def _plan_policies(url, policy):
    return Plan(
        model="m",
        launcher=external(url),
        tasks=(Spec(name="word_problems", options={"num_samples": 12}),),
        no_reference=True,
        limits=Limits(concurrency=16),
        server_defaults=policy,
    )


def _compare(
    folder,
    *sides,
    finished="",
    rules=RULES,
    **options,
):
    """Compare servers with these defaults, asked under these policies; some are finished runs."""

    async def story():
        async with AsyncExitStack() as stack:
            found = []
            for name, (defaults, policy) in zip("AB", sides, strict=True):
                app = policies_create_app(WEIGHTS, {"m": "none"}, defaults=defaults)
                plan = _plan_policies(await stack.enter_async_context(serve_app(app)), policy)
                run = folder.with_name(f"run_{name}") if name in finished else None
                if run is not None:
                    await evaluate(plan, run, environ={})
                found.append(CompareSide(plan=plan, folder=run))
            return await compare(*found, rules, folder, environ={}, **options)

    return asyncio.run(story())


@pytest.mark.parametrize("finished", ["AB", "A", "B", ""])
def test_policies_that_sample_otherwise_are_refused_before_the_answers(finished, tmp_path):
    sides = (ADDS, "keep"), ({}, "neutral")
    with pytest.raises(NotComparableError, match=REFUSED) as caught:
        _compare(tmp_path / "out", *sides, finished=finished)
    assert caught.value.exit_code == 3
    assert "Ask A again with --set server_defaults=neutral" in caught.value.hint
    assert "--allow-mismatch server_adds" in caught.value.hint
    assert not any(file.stat().st_size for file in (tmp_path / "out").rglob("samples/*.jsonl"))
    assert not (tmp_path / "out/comparison.json").exists()


def test_an_allowed_mismatch_is_compared_and_named(tmp_path):
    sides = (ADDS, "keep"), (ADDS, "neutral")
    found = _compare(tmp_path / "out", *sides, finished="A", rules=ALLOWED)
    assert found.tasks[0].agreement.different
    assert any(line.startswith("mismatch allowed: word_problems: ") for line in found.warnings)


@pytest.mark.parametrize(
    "sides",
    [
        (({}, "keep"), (ADDS, "neutral")),  # nothing is added on either side
        ((ADDS, "keep"), ({}, "keep")),  # unlike servers under one policy
    ],
)
def test_other_sides_are_compared(sides, tmp_path):
    found = _compare(tmp_path / "out", *sides, finished="A")
    assert not any("mismatch" in line for line in found.warnings)


def _sampling(adds, policy, obedience="heeded"):
    penalty = SamplingDefault(
        name="repetition_penalty",
        sent_as="repetition_penalty",
        obedience=obedience,
        adds=adds,
        neutral=1.0,
    )
    found = choose_sent(SamplingDefaults(fields=(penalty,)), policy)
    return SideSampling.of_tasks(found, [word_problems.task()])


NOTHING = SideSampling.of_tasks(None, [word_problems.task()])


@pytest.mark.parametrize(
    ("a", "b", "keeps"),
    [
        (_sampling(True, "keep"), _sampling(True, "neutral"), "A"),
        (_sampling(False, "neutral"), _sampling(True, "keep"), "B"),
        (_sampling(True, "keep"), _sampling(None, "neutral"), "A"),
        (_sampling(True, "keep"), _sampling(True, "keep"), None),
        (_sampling(True, "keep"), _sampling(False, "keep"), None),
        (_sampling(False, "keep"), _sampling(True, "neutral"), None),
        (_sampling(None, "keep"), _sampling(True, "neutral"), None),
        (_sampling(True, "keep"), _sampling(False, "neutral", "ignored"), None),
        (_sampling(True, "neutral", "ignored"), _sampling(False, "neutral"), None),
        (_sampling(True, "keep"), NOTHING, None),
        (NOTHING, _sampling(True, "neutral"), None),
    ],
)
def test_only_a_known_difference_of_policies_refuses(a, b, keeps):
    unlike = find_unlike_policies(a, b)
    assert (None if unlike is None else unlike.keeps) == keeps


def test_a_comparison_names_the_side_whose_path_is_not_proven(tmp_path):
    for side, fault in (("a", PathFault.NONE), ("b", PathFault.BYPASS)):
        run(Deployment(fault), tmp_path / side, expect=("kv_transfer",))
    rule = Spec(name="paired")
    sound = compare_folders(tmp_path / "a", tmp_path / "a", rule)
    assert sound.tasks[0].verdict.outcome is VerdictOutcome.PASS
    found = compare_folders(tmp_path / "a", tmp_path / "b", rule)
    verdict = found.tasks[0].verdict
    assert (verdict.outcome, found.exit_code) == (VerdictOutcome.INCONCLUSIVE, 3)
    assert verdict.reasons[-1].startswith(
        "path not proven: kv_transfer: B: context servers had 0 of 24 requests; "
    )
