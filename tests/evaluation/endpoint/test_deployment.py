"""Test the recorded facts about a deployment, and the configurations that answers name.

Only servers that identify themselves as trtllm-serve are asked, and a failed question never fails a
run.
"""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from serve_eval.client.client import Client
from serve_eval.evaluation import deployment
from serve_eval.evaluation.deployment import chunk_sizes, describe, first_tokens, remarks
from serve_eval.evaluation.evaluate import evaluate, merge_spans
from serve_eval.evaluation.evaluate import remarks as system_fingerprints_remarks
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    AnswerSpan,
    Endpoint,
    Limits,
    Plan,
    ServerInfo,
    Spec,
)
from tests.made_results import make_traffic
from tests.scripted_server import (
    EVERY_PATH,
    ScriptedServer,
    answer,
    fail,
    json_reply,
    models,
    raw,
    stall,
)


def _server(routes):
    """Serve these paths with JSON.

    Bytes are sent unchanged, a number is a status, a list gives its entries one after the other,
    and None never answers.
    """

    def reply(request):
        found = routes.get(request.path, 404)
        if isinstance(found, list):
            found = found.pop(0)
        if found is None:
            return stall()
        if isinstance(found, bytes):
            return raw(found)
        return fail(found) if isinstance(found, int) else json_reply(found)

    return ScriptedServer(reply, paths=EVERY_PATH)


def _seen(front, workers, info, key=None):
    """Return the facts about a front end before and after a run, and every requested path.

    `names` in `info` are launched servers. (i,) in an answer stands for the port of worker i.
    """

    async def run():
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(_server(one).serve()) for one in workers]
            places = [urlsplit(url) for url in urls]

            def filled(value):
                if isinstance(value, dict):
                    return {name: filled(one) for name, one in value.items()}
                if isinstance(value, list):
                    return [filled(one) for one in value]
                return places[value[0]].port if isinstance(value, tuple) else value

            door = _server(filled(front))
            url = await stack.enter_async_context(door.serve())
            servers = dict(zip(info.get("names", ()), [*urls, url], strict=False))
            endpoint = Endpoint(
                base_url=url, model="m", info={**info, "servers": servers} if servers else info
            )
            async with Client(endpoint, Limits(), api_key=key) as client:
                endpoint = await deployment.learn_deployment(endpoint, client)
                endpoint = await deployment.learn_again(endpoint, client)
            return endpoint.info, [request.path for request in door.asked]

    return asyncio.run(run())


def _listed(*ports, role="context_servers"):
    """List servers of this role and one generation server as an orchestrator does.

    (i,) stands for the port of worker i.
    """
    workers = {"context_servers": [], "generation_servers": []}
    for port in ports:
        place = {"worker_id": f"w{port}", "host": "127.0.0.1", "port": (port,)}
        workers[role].append(place)
    return {"is_ready": True, "current_workers": workers}


def _known(info):
    assert info.deployment is not None
    return info.deployment


def test_the_servers_that_a_front_door_lists_are_asked_what_they_are():
    workers = [
        {"/version": {"version": "1.2.1"}, "/server_info": {"disaggregated_params": {}}},
        {"/version": {"version": "1.3.0"}},
    ]
    info, asked = _seen(
        {"/cluster_info": [_listed(0, 1), _listed(1)]}, workers, {"version": "1.2.1"}
    )
    known = _known(info)
    assert [one.version for one in known.workers] == ["1.2.1", "1.3.0"]
    assert known.workers[0].server_info == {"disaggregated_params": {}}
    assert asked == ["/cluster_info", "/cluster_info"]
    assert known.disaggregated
    versions, left = remarks(info)
    assert versions == "several versions serve together: 1.2.1: orchestrator, w0; 1.3.0: w1"
    assert left.startswith(
        "1 servers left the deployment during the run: context server 127.0.0.1:"
    )
    assert describe(info) == {
        "orchestrator": "version 1.2.1",
        "context servers": "2: version 1.2.1; version 1.3.0",
    }


@pytest.mark.parametrize(
    ("front", "info", "asked"),
    [
        ({}, {}, []),  # reports no version
        ({"/cluster_info": 404}, {"version": "0.9"}, ["/cluster_info"]),
        ({"/cluster_info": {"anything": 1}}, {"version": "0.9"}, ["/cluster_info"]),
        ({"/cluster_info": 500}, {"version": "0.9", "launcher": "external"}, ["/cluster_info"]),
        ({"/cluster_info": b'{"is_ready": "\xff"}'}, {"version": "0.9"}, ["/cluster_info"]),
        ({"/cluster_info": b"[" * 100_000}, {"version": "0.9"}, ["/cluster_info"]),
    ],
)
def test_of_another_server_nothing_more_is_asked(front, info, asked):
    found, paths = _seen(front, [], info)
    assert found == ServerInfo.read(info)
    assert paths == asked
    assert (remarks(found), describe(found), found.deployment) == ([], {}, None)


def test_routes_that_never_answer_and_addresses_that_are_none_cost_seconds_and_no_run(
    monkeypatch,
):
    monkeypatch.setattr(deployment, "TIMEOUT_S", 0.2)
    listed = _listed(0)
    listed["current_workers"]["generation_servers"] = [
        {"host": "no such host", "port": "x"},
        "nonsense",
        {},
    ]
    info, _ = _seen(
        {"/cluster_info": [listed, None]},
        [{"/version": None, "/server_info": 500}],
        {"version": "1"},
    )
    known = _known(info)
    assert [one.version for one in known.workers] == [None, None]
    assert known.cluster_after is None
    assert remarks(info) == []


def test_what_a_launcher_wrote_is_read_and_secrets_are_masked(tmp_path):
    for name, text in {
        "context": "tensor_parallel_size: 2\nmax_num_tokens: 4096\nenable_chunked_prefill: true\n",
        "generation": "kv_cache_config: {dtype: fp8}\ntoken: secret-key-of-ours\n",
        "orchestrator": "port: 1\nmax_retries: 0\ncontext_servers: {num_instances: 1, urls: [x]}\n",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    commands = [
        ["trtllm-serve", "serve", "m", "--config", str(tmp_path / "context.yaml")],
        [
            "trtllm-serve",
            "serve",
            "m",
            "--tp_size",
            "1",
            "--config",
            str(tmp_path / "generation.yaml"),
        ],
        ["trtllm-serve", "disaggregated", "-c", str(tmp_path / "orchestrator.yaml")],
    ]
    names = ["context_0", "generation_0", "orchestrator"]
    given = {
        "version": "1.2.1",
        "launcher": "trtllm_disaggregated",
        "commands": commands,
        "servers": "urls",
        "names": names,
    }
    workers = [{"/version": {"version": "1.2.1"}}] * 2
    info, _ = _seen({"/cluster_info": {"is_ready": True}}, workers, given, key="secret-key-of-ours")
    assert "secret-key" not in str(_known(info))
    assert describe(info) == {
        "orchestrator": "version 1.2.1, max_retries 0, context_servers.num_instances 1",
        "context servers": (
            "1: version 1.2.1, tp 2, max_num_tokens 4096, enable_chunked_prefill true"
        ),
        "generation servers": "1: version 1.2.1, tp 1, kv_cache_config.dtype fp8, token ***",
    }
    [line] = remarks(info)
    assert line.startswith(
        "asymmetric parallelism: context servers have tp 2, generation servers tp 1;"
    )
    assert "6507" in line
    assert chunk_sizes(info) == [4096]


def test_one_launched_server_is_no_disaggregated_deployment():
    commands = [["trtllm-serve", "serve", "m", "--tp_size", "4"]]
    given = {"version": "1.2.1", "launcher": "trtllm", "commands": commands, "names": ["trtllm"]}
    info, asked = _seen({"/version": {"version": "1.2.1"}}, [], given)
    assert describe(info) == {"server": "version 1.2.1, tp 4"}
    assert asked[0] == "/cluster_info"
    assert sorted(asked[1:]) == ["/server_info", "/version"]
    assert not _known(info).disaggregated


def test_a_task_of_one_token_says_nothing_of_generation_servers():
    short, long = (build_task(Spec(name=name)) for name in ("mmlu", "gsm8k"))
    assert "generation servers" in (first_tokens([short]) or "")
    assert first_tokens([short, long]) is None


N = 12
A, B = "vllm-0.32.0-ce948131", "vllm-0.32.0-1d0fa0b7"


def _plan():
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="word_problems", options={"num_samples": N}),),
        limits=Limits(concurrency=1, max_attempts=1),
        no_reference=True,
    )


def _run(
    folder,
    names,
    *,
    refused=frozenset(),
    host="127.0.0.1",
):
    """Run one request at a time; `names` gives the fingerprint of the n-th, from 0."""
    count = iter(range(10 * N))

    def reply(request):
        if request.body.get("max_tokens", 0) < 10:
            return answer("probe", body={"system_fingerprint": "of a probe"})
        n = next(count)
        if n in refused:
            return fail(400)
        return answer(f"#### {n}", body={"system_fingerprint": names(n)})

    async def main():
        async with ScriptedServer(reply, routes={"/v1/models": models("m")}).serve() as url:
            options = {"base_url": url.replace("127.0.0.1", host)}
            plan = replace(_plan(), launcher=Spec(name="external", options=options))
            return await evaluate(plan, folder, environ={}, moved=True)

    return asyncio.run(main())


def _said(report):
    return [line for line in report.warnings if "fingerprint" in line]


@pytest.mark.parametrize("name", [A, None, "", 7])
def test_one_configuration_or_none_is_no_remark(name, tmp_path):
    report = _run(tmp_path, lambda n: name)
    assert _said(report) == []
    counted = {key: one.answers for key, one in _spans(report).items()}
    assert counted == ({A: N} if name == A else {})
    stored = (tmp_path / "samples" / "word_problems.jsonl").read_text()
    assert stored.count("system_fingerprint") == (N if name == A else 0)


def _spans(report):
    return dict(report.tasks[0].traffic.system_fingerprints)


def test_a_server_that_is_replaced_is_named_with_the_time(tmp_path):
    report = _run(tmp_path, lambda n: A if n < 5 else B)
    spans = _spans(report)
    assert [(name, one.answers) for name, one in spans.items()] == [(A, 5), (B, 7)]
    assert spans[A].last_s <= spans[B].first_s
    [line] = _said(report)
    assert f"one after the other: {A} (5 answers), from " in line
    assert f" UTC on {B} (7 answers): the server was replaced" in line


def test_unlike_servers_behind_one_address_are_named(tmp_path):
    [line] = _said(_run(tmp_path, lambda n: (A, B)[n % 2]))
    assert line.startswith("the answers carry 2 system_fingerprints, mixed from ")
    assert line.endswith(
        f" UTC on: {A} (6 answers), {B} (6 answers): servers of different configurations answer"
        " at one address"
    )


def test_a_run_that_goes_on_at_another_address_may_meet_another_server(tmp_path):
    report = _run(tmp_path, lambda n: A, refused=frozenset({2, 3}))
    assert report.tasks[0].result.failed == 2
    again = _run(tmp_path, lambda n: B, host="localhost")  # the port may be that of before
    assert {name: one.answers for name, one in _spans(again).items()} == {A: N - 2, B: 2}
    assert _said(again) == []
    assert any("come from 2 addresses" in line for line in again.warnings)
    saved = json.loads((tmp_path / "report.json").read_text())["tasks"][0]["traffic"]
    assert saved["system_fingerprints"][B]["answers"] == 2


def _span(first_s, last_s, answers=1):
    return AnswerSpan(answers=answers, first_s=first_s, last_s=last_s)


@pytest.mark.parametrize(
    ("spans", "addresses", "begins"),
    [
        ({A: (0, 9)}, 1, None),
        ({A: (0, 5), B: (5, 9)}, 1, "the answers carry 2 system_fingerprints, one after the other"),
        ({A: (0, 5), B: (5, 9)}, 2, None),
        (
            {A: (0, 5.1), B: (5, 9)},
            1,
            "the answers carry 2 system_fingerprints, mixed from 00:00:05",
        ),
        (
            {A: (0, 5.1), B: (5, 9)},
            2,
            "the answers carry 2 system_fingerprints, mixed from 00:00:05",
        ),
        ({A: (0, 2), B: (3, 5), "c": (4, 6)}, 1, "the answers carry 3 system_fingerprints, mixed"),
    ],
)
def test_spans_that_overlap_are_unlike_servers(spans, addresses, begins):
    found = system_fingerprints_remarks(
        {name: _span(*times) for name, times in spans.items()},
        [f"http://{i}/v1" for i in range(addresses)],
    )
    assert [line[: len(begins or "")] for line in found] == ([] if begins is None else [begins])


def _traffic(**spans):
    return make_traffic(0, system_fingerprints=spans)


def test_the_spans_of_tasks_are_joined():
    found = merge_spans(
        [
            _traffic(a=_span(5, 6, 2)),
            _traffic(b=_span(3, 4), a=_span(1, 2, 3)),
            _traffic(),
        ]
    )
    assert list(found.items()) == [("a", _span(1, 6, 5)), ("b", _span(3, 4))]
