"""Test what a run learns of SGLang's servers, over real sockets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.client.questions import SGLANG
from serve_eval.errors import EndpointError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.report.run.details import describe_engines
from serve_eval.schema import (
    Endpoint,
    Failure,
    Limits,
    Plan,
    ProofState,
    Report,
    Request,
    Response,
    SamplingParams,
    Spec,
)
from tests.sglang_server import ANSWER, PROMPT, SECRET, VERSION, SglangServer

N = 12


def run(front: SglangServer, folder: Path, *expect: str, **behind: SglangServer) -> Report:
    """Run at `front`, which passes each request on to the servers behind it."""

    async def main() -> Report:
        async with AsyncExitStack() as stack:
            urls = {
                name: await stack.enter_async_context(one.server.serve())
                for name, one in behind.items()
            }
            url = await stack.enter_async_context(front.server.serve())
            more: dict[str, Any] = {"servers": urls} if urls else {}
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

    def reply(self, request: Any) -> Any:
        for one in self.behind:
            one.reply(request)
        return super().reply(request)


def _pair(**context: Any) -> tuple[Front, dict[str, SglangServer]]:
    behind = {
        "context_0": SglangServer(engine_type="prefill", **context),
        "generation_0": SglangServer(engine_type="decode"),
    }
    front = Front()
    front.behind = tuple(behind.values())
    return front, behind


def _state(report: Report, claim: str) -> tuple[ProofState, str]:
    [found] = [one for one in report.path if one.claim == claim]
    return found.state, found.evidence


@pytest.mark.parametrize("older", [False, True])
def test_its_kind_and_version_are_known(older: bool, tmp_path: Path) -> None:
    server = SglangServer(older=older)
    report = run(server, tmp_path)
    assert (report.endpoint.info.server, report.endpoint.info.version) == (SGLANG, VERSION)
    assert "/version" not in [one.path for one in server.server.requests]
    kept = [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert not [one for one in kept if SECRET in one]


def test_a_run_reports_what_its_engine_counted(tmp_path: Path) -> None:
    report = run(SglangServer(cached=20), tmp_path)
    assert report.engine is not None
    [server] = report.engine.servers
    assert server.counts is not None
    found = server.counts
    assert found.requests is not None
    assert found.requests >= N
    assert found.prompt_tokens == PROMPT * found.requests
    assert found.generated_tokens is not None
    assert found.generated_tokens >= ANSWER * N
    assert found.prefix_cache_hits == 20 * found.requests
    assert found.preemptions == 0
    [line] = describe_engines(report)
    assert "0 preemptions" in line
    assert not [line for line in report.warnings if "engine" in line]


def test_without_enable_metrics_nothing_is_known_and_the_flag_is_named(tmp_path: Path) -> None:
    report = run(SglangServer(metrics=False), tmp_path, "speculation")
    assert report.engine is None
    [found] = report.path
    assert found.state is ProofState.UNKNOWN
    assert "start SGLang with --enable-metrics" in found.hint


@pytest.mark.parametrize(
    ("sends", "state", "told"),
    [(True, ProofState.PROVEN, "KV caches for 12 answers"), (False, ProofState.REFUTED, "sent 0")],
)
def test_kv_caches_that_its_prefill_servers_sent_are_the_proof(
    sends: bool, state: ProofState, told: str, tmp_path: Path
) -> None:
    front, behind = _pair(sends=sends)
    found, said = _state(run(front, tmp_path, "kv_transfer", **behind), "kv_transfer")
    assert found is state
    assert said.startswith("context servers sent ")
    assert told in said


def test_transfers_of_all_ranks_are_counted_once(tmp_path: Path) -> None:
    front, behind = _pair(sends=True)
    report = run(front, tmp_path, **behind)
    assert report.engine is not None
    [context] = [one for one in report.engine.servers if one.role == "context"]
    assert context.counts is not None
    assert context.counts.transfers == context.counts.requests


def test_failed_transfers_are_named(tmp_path: Path) -> None:
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
def test_verifications_of_drafts_prove_speculation(
    verified: int | None, state: ProofState, tmp_path: Path
) -> None:
    report = run(SglangServer(verified=verified), tmp_path, "speculation")
    assert _state(report, "speculation")[0] is state


@pytest.mark.parametrize("older", [False, True])
def test_random_weights_are_refused(older: bool, tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="the server: load_format dummy loads random weights"):
        run(SglangServer(load_format="dummy", older=older), tmp_path)


async def _ask(server: SglangServer, max_tokens: int) -> Response | Failure:
    async with (
        server.server.serve() as url,
        Client(Endpoint(base_url=url, model="m"), Limits()) as client,
    ):
        return await client.send(
            Request(sample_id="1", prompt="Hi", sampling=SamplingParams(max_tokens=max_tokens))
        )


@pytest.mark.parametrize(("told", "read"), [("\n\n", "\n\n"), (151645, None), (None, None)])
def test_the_stop_string_that_ended_an_answer_is_read(
    told: int | str | None, read: str | None
) -> None:
    found = asyncio.run(_ask(SglangServer(stop=told), 16))
    assert isinstance(found, Response)
    assert (found.finish_reason, found.stop_reason) == ("stop", read)


def test_its_flat_errors_are_read() -> None:
    found = asyncio.run(_ask(SglangServer(), 0))
    assert isinstance(found, Failure)
    assert (found.status, "max_tokens must be positive" in found.message) == (400, True)
