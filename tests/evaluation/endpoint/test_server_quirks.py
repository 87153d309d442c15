"""Test what a run learns of the quirks of servers, and of SGLang.

Quirks that a server does not report are named; quirks that show in an answer are detected.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from serve_eval.client.client import Client
from serve_eval.client.questions import LLAMA_CPP_PYTHON, SGLANG
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities import probe
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import quirks
from serve_eval.report.run.document import describe_engines
from serve_eval.schema import (
    Endpoint,
    Failure,
    Limits,
    Message,
    Need,
    Plan,
    ProofState,
    Request,
    Response,
    SamplingParams,
    Spec,
)
from tests.client import faulty_server as act
from tests.client.faulty_server import FaultyServer
from tests.evaluation.test_capabilities import prepared
from tests.sglang_server import ANSWER, PROMPT, SECRET, VERSION, SglangServer

CHAT = (Message(role="user", content="Hi"),)
QUICK = Limits(stall_timeout_s=20.0, connect_timeout_s=10.0, sample_timeout_s=40.0, max_attempts=2)
EXTERNAL = Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"})


def _task(**more):
    return replace(prepared().task, **more)


def _said(task, *, server=LLAMA_CPP_PYTHON, **plan):
    endpoint = Endpoint(base_url="http://127.0.0.1:1/v1", info={"server": server} if server else {})
    return quirks(
        Plan(**{"model": "m", "launcher": EXTERNAL, "tasks": (), **plan}), endpoint, [task]
    )


STREAMING = Limits(stream=True)
WARM = {"sampling": SamplingParams(max_tokens=5, temperature=0.7)}


@pytest.mark.parametrize(
    ("task", "circumstances", "words"),
    [
        (_task(), {}, []),
        (_task(prompt_logprobs=True), {}, []),
        (_task(), {"limits": STREAMING}, ["--interrupt_requests false"]),
        (_task(), {"limits": Limits(stream=True, concurrency=1)}, []),
        (_task(), {"limits": STREAMING, "launcher": Spec(name="llama_cpp")}, []),
        (_task(), {"server": None, "limits": STREAMING}, []),
        (_task(), {"server": "llama-server", "limits": STREAMING}, []),
        (
            _task(**WARM),
            {"server": None, "launcher": Spec(name="transformers_serve")},
            ["do_sample"],
        ),
        (
            _task(),
            {"server": None, "launcher": Spec(name="transformers_serve"), "repeats": 3},
            ["do_sample"],
        ),
        (_task(), {"server": None, "launcher": Spec(name="transformers_serve")}, []),
    ],
)
def test_what_bears_on_a_run_is_said_and_nothing_else(task, circumstances, words):
    said = _said(task, **circumstances)
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("listed", "server"),
    [
        ([{"id": "m", "object": "model", "owned_by": "me", "permissions": []}], LLAMA_CPP_PYTHON),
        ([{"id": "m", "owned_by": "llamacpp"}], "llama-server"),
        ([{"id": "m", "owned_by": "vllm", "max_model_len": 512}], "vLLM"),
        ([{"id": "m", "owned_by": "tensorrt_llm"}], "trtllm-serve"),
        ([{"id": "m", "owned_by": "somebody"}], None),
        ([{"id": "m", "owned_by": ["me"]}], None),
        ([{"id": "m"}], None),
        ([], None),
        ("none", None),
    ],
)
async def test_a_server_is_known_by_the_owner_of_its_models(listed, server):
    body = json.dumps({"object": "list", "data": listed}).encode()
    async with (
        FaultyServer([act.replies(body)]) as fake,
        Client(Endpoint(base_url=fake.base_url), QUICK) as client,
    ):
        assert (await client.describe()).get("server") == server


def _long_answer(tokens):
    async def answers(turn):
        body = json.loads(act.answer(turn.request))
        body["usage"]["completion_tokens"] = tokens if _ignored(turn.request) else 2
        await turn.write(act.http(json.dumps(body).encode()))

    return answers


def _ignored(request):
    """Return True if a server ignores the limit and generates to the end of its context.

    llama-cpp-python knows only max_tokens.
    """
    return "max_tokens" not in request.body


@pytest.mark.parametrize(("tokens", "refused"), [(1000, True), (7, True), (6, False), (2, False)])
def test_a_length_that_is_ignored_is_told_before_anything_is_asked(tokens, refused):
    async def main():
        async with (
            FaultyServer([_long_answer(tokens)]) as fake,
            Client(
                Endpoint(base_url=fake.base_url, model="m"),
                QUICK,
                max_tokens_field="max_completion_tokens",
            ) as client,
        ):
            await probe(client, [prepared(prompt=CHAT)])

    if not refused:
        asyncio.run(main())
        return
    with pytest.raises(EndpointError) as told:
        asyncio.run(main())
    assert f"ignored max_completion_tokens: requested 2 tokens, received {tokens}" in str(
        told.value
    )
    assert "--set connection.max_tokens_field=max_tokens" in told.value.hint


WORDS = ["one", "two", "three", "four", "five", "six"]


def _weighs(shift):
    """Serve a model that always says WORDS and echoes prompts with wrong log-probabilities.

    They are those of the token `shift` places further on. llama-cpp-python is off by one if no
    token begins every text.
    """

    async def answers(turn):
        body = json.loads(act.answer(turn.request, "".join(f" {word}" for word in WORDS)))
        if turn.request.body.get("echo"):
            prompt = turn.request.question
            tokens = re.findall(r"\s*\S+", prompt)
            places = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
            likely = [*tokens[shift:], *[" end"] * shift]
            tops = [
                {best: -0.1, token: -0.1 if token == best else -9.0}
                for token, best in zip(tokens, likely, strict=True)
            ]
            values = [top[token] for token, top in zip(tokens, tops, strict=True)]
            body["choices"][0]["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": [None, *values[1:]],
                "top_logprobs": [None, *tops[1:]],
                "text_offset": places,
            }
            body["usage"]["prompt_tokens"] = len(tokens)
        await turn.write(act.http(json.dumps(body).encode()))

    return answers


@pytest.mark.parametrize(("shift", "works"), [(0, True), (1, False)])
async def test_log_probabilities_at_wrong_tokens_are_none(shift, works):
    async with (
        FaultyServer([_weighs(shift)]) as fake,
        Client(Endpoint(base_url=fake.base_url, model="m"), QUICK) as client,
    ):
        found, lacking = await probe(client, [prepared(prompt_logprobs=True)])
        [ability] = [one for one in found if one.need is Need.PROMPT_LOGPROBS]
        assert ability.works is works
        assert bool(lacking) is not works
        assert (
            works
            or "of 6 tokens generated by the model, only 0 are the likeliest at" in ability.seen
        )


N = 12


def run(front, folder, *expect, **behind):
    """Run at `front`, which passes each request on to the servers behind it."""

    async def main():
        async with AsyncExitStack() as stack:
            urls = {
                name: await stack.enter_async_context(one.server.serve())
                for name, one in behind.items()
            }
            url = await stack.enter_async_context(front.server.serve())
            more = {"servers": urls} if urls else {}
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url, **more}),
                tasks=(Spec(name="word_problems", options={"num_samples": N}),),
                limits=Limits(concurrency=1, max_attempts=1),
                no_reference=True,
                expect=dict.fromkeys(expect, True),
            )
            return await evaluate(plan, folder, environ={}, moved=True)

    return asyncio.run(main())


class Front(SglangServer):
    """A front door: what it answers, the servers behind it have computed."""

    behind: tuple[SglangServer, ...] = ()

    def reply(self, request):
        for one in self.behind:
            one.reply(request)
        return super().reply(request)


def _pair(**context):
    behind = {
        "context_0": SglangServer(engine_type="prefill", **context),
        "generation_0": SglangServer(engine_type="decode"),
    }
    front = Front()
    front.behind = tuple(behind.values())
    return front, behind


def _state(report, claim):
    [found] = [one for one in report.path if one.claim == claim]
    return found.state, found.evidence


@pytest.mark.parametrize("older", [False, True])
def test_its_kind_and_version_are_known(older, tmp_path):
    server = SglangServer(older=older)
    report = run(server, tmp_path)
    assert (report.endpoint.info.server, report.endpoint.info.version) == (SGLANG, VERSION)
    assert "/version" not in [one.path for one in server.server.requests]
    kept = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert not [one for one in kept if SECRET in one]


def test_a_run_reports_what_its_engine_counted(tmp_path):
    report = run(SglangServer(cached=20), tmp_path)
    [server] = report.engine.servers
    assert server.counts is not None
    found = server.counts
    assert found.requests >= N
    assert found.prompt_tokens == PROMPT * found.requests
    assert found.generated_tokens >= ANSWER * N
    assert found.prefix_cache_hits == 20 * found.requests
    assert found.preemptions == 0
    [line] = describe_engines(report)
    assert "0 preemptions" in line
    assert not [line for line in report.warnings if "engine" in line]


def test_without_enable_metrics_nothing_is_known_and_the_flag_is_named(tmp_path):
    report = run(SglangServer(metrics=False), tmp_path, "speculation")
    assert report.engine is None
    [found] = report.path
    assert found.state is ProofState.UNKNOWN
    assert "start SGLang with --enable-metrics" in found.hint


@pytest.mark.parametrize(
    ("sends", "state", "told"),
    [(True, ProofState.PROVEN, "KV caches for 12 answers"), (False, ProofState.REFUTED, "sent 0")],
)
def test_kv_caches_that_its_prefill_servers_sent_are_the_proof(sends, state, told, tmp_path):
    front, behind = _pair(sends=sends)
    found, said = _state(run(front, tmp_path, "kv_transfer", **behind), "kv_transfer")
    assert found is state
    assert said.startswith("context servers sent ")
    assert told in said


def test_transfers_of_all_ranks_are_counted_once(tmp_path):
    front, behind = _pair(sends=True)
    report = run(front, tmp_path, **behind)
    [context] = [one for one in report.engine.servers if one.role == "context"]
    assert context.counts.transfers == context.counts.requests


def test_failed_transfers_are_named(tmp_path):
    front, behind = _pair(sends=True, failed_transfers=1)
    report = run(front, tmp_path, **behind)
    [line] = [line for line in report.warnings if "KV transfer" in line]
    assert line.startswith("the KV transfer of context_0 (http://127.0.0.1:")
    assert "failed in part: failed transfers " in line


@pytest.mark.parametrize(
    ("verified", "state"),
    [
        (5, ProofState.PROVEN),
        (ANSWER - 1, ProofState.REFUTED),  # one token a verification, and the first with the prompt
        (0, ProofState.REFUTED),
        (None, ProofState.UNKNOWN),
    ],
)
def test_verifications_of_drafts_prove_speculation(verified, state, tmp_path):
    report = run(SglangServer(verified=verified), tmp_path, "speculation")
    assert _state(report, "speculation")[0] is state


@pytest.mark.parametrize("older", [False, True])
def test_random_weights_are_refused(older, tmp_path):
    with pytest.raises(EndpointError, match="the server: load_format dummy loads random weights"):
        run(SglangServer(load_format="dummy", older=older), tmp_path)


async def _ask(server, max_tokens):
    async with (
        server.server.serve() as url,
        Client(Endpoint(base_url=url, model="m"), Limits()) as client,
    ):
        return await client.send(
            Request(sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=max_tokens))
        )


@pytest.mark.parametrize(("told", "read"), [("\n\n", "\n\n"), (151645, None), (None, None)])
async def test_the_stop_string_that_ended_an_answer_is_read(told, read):
    found = await _ask(SglangServer(stop=told), 16)
    assert isinstance(found, Response)
    assert (found.finish_reason, found.stop_reason) == ("stop", read)


async def test_its_flat_errors_are_read():
    found = await _ask(SglangServer(), 0)
    assert isinstance(found, Failure)
    assert (found.status, "max_tokens must be positive" in found.message) == (400, True)
