"""Test the client and the audit of prompts with other projects' servers."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from serve_eval.client.client import Client
from serve_eval.errors import EndpointError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evidence.prompt_audit import PROMPTS, audit
from serve_eval.evidence.prompt_tokens import PromptCause
from serve_eval.launchers import llama_cpp
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext, Limits, Plan, Spec, VerdictOutcome
from tests.evidence.prompt_audit.test_read import local_side
from tests.peers.conftest import (
    BEGINNING,
    LIKELIHOOD,
    MANY,
    MODEL,
    QUANTISED,
    SAMPLES,
    TEXT,
    WAYS,
    WIDE,
    evaluated,
    seen,
)
from tests.peers.peers import PEERS_OF_OURS, PYTHON, ROOT, WEIGHTS
from tests.test_nights import spend_night, write_known

WEIGHED = ("likelihood", "perplexity")
pytestmark = [pytest.mark.slow, pytest.mark.peers]


@pytest.fixture(scope="module", params=PEERS_OF_OURS, ids=lambda peer: peer.name)
def peer(request):
    found = request.param
    if why := found.missing():
        pytest.skip(why)
    return found


@pytest.fixture(scope="module")
def server(peer, ours, weights, tmp_path_factory):
    return seen(peer, weights("BF16" if peer.gguf else "HF"), ours, tmp_path_factory.mktemp("peer"))


@pytest.mark.parametrize("way", [name for name in WAYS if name not in WEIGHED])
def test_it_scores_as_our_own_server_does(peer, server, way):
    report = server.reports[way]
    assert (report.result.scored, report.result.failed) == (peer.limit or SAMPLES, 0)
    assert report.result.truncated == 0
    assert report.verdict.outcome is VerdictOutcome.PASS, report.verdict


def test_prompts_are_weighed_where_the_server_can(
    peer,
    server,
    ours,
    weights,
    tmp_path,
):
    for way in WEIGHED:
        verdict = server.reports[way].verdict
        assert verdict.outcome is VerdictOutcome.UNSUPPORTED, verdict
        assert "log-prob" in verdict.reasons[0]
    if peer.beginning:
        launcher = peer.spec(weights(BEGINNING))
        report = evaluated(
            peer,
            f"{BEGINNING} | likelihood",
            launcher,
            ours(LIKELIHOOD),
            LIKELIHOOD,
            tmp_path / "run",
            limits=WIDE,
        )
        assert report.verdict.outcome is VerdictOutcome.PASS, report.verdict


def test_a_smoke_test_shows_what_the_server_lacks(peer, server):
    assert server.smoke == peer.smoke


LLAMA_SERVERS = [peer for peer in PEERS_OF_OURS if peer.name.startswith("llama-server")]


@pytest.mark.parametrize("llama", LLAMA_SERVERS, ids=[peer.name for peer in LLAMA_SERVERS])
def test_a_sound_llama_server_is_green_every_night(llama, weights, tmp_path):
    """Only the row that tests the model fails, since this model is not instructed."""
    if why := llama.missing():
        pytest.skip(why)
    known, nights = tmp_path / "known.json", list[tuple[int, dict[str, str]]]()
    launcher = load_launcher(llama.launcher)

    async def night(number, flag):
        context = LaunchContext(model=MODEL, log_dir=tmp_path / f"logs_{number}")
        options = llama.spec(weights("BF16")).options
        async with launcher.launch(context, **options) as endpoint:
            command = [sys.executable, "-m", "serve_eval", "smoke", endpoint.base_url]
            more = ["--level", "full", "--json", flag, str(known)]
            done = await asyncio.to_thread(
                subprocess.run, [*command, *more], capture_output=True, text=True, cwd=ROOT
            )
        rows = json.loads(done.stdout)["result"]["rows"]
        red = {one["name"]: one["outcome"] for one in rows if one["outcome"] in ("FAIL", "KNOWN")}
        nights.append((done.returncode, red))

    asyncio.run(night(1, "--write-known"))
    for number in (2, 3):
        asyncio.run(night(number, "--known"))
    assert nights == [(1, {"questions": "FAIL"}), *[(0, {"questions": "KNOWN"})] * 2]


def test_streams_that_newer_requests_cut_end_a_run_and_are_told_before(weights, tmp_path):
    """The server has llama-cpp-python's default, which its launcher normally changes."""
    [peer] = [one for one in PEERS_OF_OURS if one.name == "llama-cpp-python"]
    if why := peer.missing():
        pytest.skip(why)
    as_it_is = [
        "sh",
        "-c",
        f'exec "{PYTHON}" -m llama_cpp.server "$@" --interrupt_requests true',
        "sh",
    ]
    options = {**peer.spec(weights("BF16")).options, "command": as_it_is}
    said = []

    async def story():
        context = LaunchContext(model=MODEL, log_dir=tmp_path / "logs")
        async with llama_cpp.launch(context, llama_cpp.LlamaCppOptions(**options)) as endpoint:
            running = Spec(name="external", options={"base_url": endpoint.base_url})
            plan = Plan(model=MODEL, launcher=running, tasks=(TEXT,), no_reference=True)
            one, many = (replace(plan, limits=Limits(concurrency=n, stream=True)) for n in (1, 16))
            [task] = (
                await evaluate(
                    replace(one, limit=40), tmp_path / "one", environ={}, notify=said.append
                )
            ).tasks
            assert (task.result.scored, task.result.failed) == (40, 0)
            assert not any("--interrupt_requests" in line for line in said)
            with pytest.raises(EndpointError, match="the connection ended within the answer"):
                await evaluate(many, tmp_path / "many", environ={}, notify=said.append)
            assert any("--interrupt_requests" in line for line in said)

    asyncio.run(story())


def test_a_run_that_starts_the_server_judges_sound_and_rounded_weights(
    peer, weights, ours, tmp_path
):
    verdicts, differ = {}, {}
    for kind in (*QUANTISED, "int3") if peer.gguf else ("HF",):
        spec, folder = peer.spec(weights(kind)), tmp_path / kind
        report = evaluated(
            peer,
            f"{kind} | launched",
            spec,
            ours(MANY),
            MANY,
            folder,
            verdict="paired",
            limit=peer.limit,
        )
        assert (report.result.scored, report.result.failed) == (peer.limit or 1000, 0)
        paired = report.verdict.paired
        verdicts[kind], differ[kind] = report.verdict.outcome, (paired.down or 0) + (paired.up or 0)
    if not peer.gguf:
        assert verdicts["HF"] is VerdictOutcome.PASS
        return
    assert verdicts["BF16"] is verdicts["Q8_0"] is VerdictOutcome.PASS
    assert verdicts["int3"] is VerdictOutcome.FAIL
    # Whether four bits cost more than the test can detect depends on the weights; they do change
    # answers.
    assert differ["Q4_0"] > 5 * (differ["BF16"] + differ["Q8_0"] + 1) / 2


SERVERS = [one for one in PEERS_OF_OURS if one.name.startswith("llama-server")]
CAUSES = {"BF16": PromptCause.SAME, BEGINNING: PromptCause.BOS_ADDED}
"""The second file has a token before every text, which the folder lacks."""


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("peer", SERVERS, ids=lambda peer: peer.name)
def test_the_ids_of_llama_server_are_those_of_the_files(peer, kind, weights, tmp_path):
    if why := peer.missing():
        pytest.skip(why)
    options = llama_cpp.LlamaCppOptions(**peer.spec(weights(kind)).options)

    async def story():
        context = LaunchContext(model=MODEL, log_dir=tmp_path / "logs")
        async with (
            llama_cpp.launch(context, options) as endpoint,
            Client(endpoint, Limits()) as client,
        ):
            return await audit(client, local_side(WEIGHTS))

    findings = asyncio.run(story())
    assert [one.cause for one in findings] == [CAUSES[kind]] * len(PROMPTS), findings


LLAMA = [peer for peer in PEERS_OF_OURS if peer.name.startswith("llama-server")]
ASKED = {"TASKS": "word_problems", "LIMIT": "150", "FLOOR": "0.1"}
DIES = """
import os, signal, subprocess, sys, time
server = subprocess.Popen(sys.argv[2:])
signal.signal(signal.SIGTERM, lambda *_: (server.terminate(), sys.exit(0)))
while not os.path.exists(sys.argv[1]) and server.poll() is None:
    time.sleep(0.05)
server.kill()
os._exit(1)
"""
"""Runs a server that is killed once a file exists."""


@pytest.mark.parametrize("night", ["sound", "damaged", "dying"])
@pytest.mark.parametrize("peer", LLAMA, ids=lambda peer: peer.name)
def test_a_night_of_two_images(peer, night, weights, tmp_path):
    if why := peer.missing():
        pytest.skip(why)
    for name in ("old", night):
        spec = peer.spec(weights("int3" if name == "damaged" else "BF16"))
        options = dict(spec.options)
        if name == "dying":
            (tmp_path / "dies.py").write_text(DIES)
            asked = tmp_path / "night-dying/compare/b/plan.json"
            command = [sys.executable, str(tmp_path / "dies.py"), str(asked), *options["command"]]
            options["command"] = command
        plan = {"model": "embedded", "tasks": ["word_problems"], "no_reference": True}
        launcher = {"name": spec.name, **options}
        # Two servers with the same options are one deployment, so a word tells them apart.
        launcher["env"] = {**dict(options.get("env", {})), "IMAGE": name}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**plan, "launcher": launcher}))
    known = write_known(tmp_path, "old.yaml")
    ended = spend_night(tmp_path, "old.yaml", f"{night}.yaml", KNOWN=known, **ASKED)
    alerts = ended.alerts
    if night == "sound":
        assert (ended.code, alerts) == (0, {})
    elif night == "damaged":
        assert ended.code == 1
        assert "FAIL" in alerts["compare"]
    else:
        assert alerts["compare"].startswith("compare ended with 4")
    assert night == "dying" or "compare" in ended.pages
