"""Servers that outlive a run, held by processes of their own; the server is the stand-in."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from serve_eval.cli import serve
from serve_eval.cli._common_options import ScreenOptions
from serve_eval.errors import EndpointError, LaunchError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plan.resolve import resolve_launcher
from serve_eval.schema import Endpoint, HeldServers, Limits, Plan, Spec, Suite, SuiteRun
from serve_eval.workflows import servers as held_servers
from serve_eval.workflows.servers import TEXT_BYTES, Held, daemon
from serve_eval.workflows.servers.reuse import attach
from serve_eval.workflows.suite.execution import evaluate_suite
from tests.standin.deployments import environment

MODEL = "my-org/my-model"
SECRET = "hf_4f1b7c09"
PLAN = Plan(model=MODEL, launcher=Spec(name="trtllm"), tasks=())


def told(line): ...


# --------------------------------------------------------------------------------------------------
# the same servers


def identity(model=MODEL, launcher="trtllm", **options):
    """Return the identity of a launch; `loaded` sets the launcher's option `model`."""
    options = {name.replace("loaded", "model"): value for name, value in options.items()}
    return daemon.identity(
        Plan(model=model, launcher=Spec(name=launcher, options=options), tasks=())
    )


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, True),
        ({"tp": None}, True),
        ({"loaded": MODEL}, True),
        ({"ready_timeout_s": 5, "answer_timeout_s": 5, "stop_timeout_s": 5}, True),
        ({"tp": 1}, False),
        ({"config": {"max_num_tokens": 1}}, False),
        ({"env": {"A": "1"}}, False),
        ({"gpus": [1]}, False),
        ({"port": 8000}, False),
        ({"loaded": "other/model"}, False),
    ],
)
def test_what_is_served_decides_which_servers_are_the_same(options, same):
    assert (identity(**options) == identity()) is same


def test_a_nested_default_may_be_written_out():
    given = {"context_servers": {"num_instances": 1}, "generation_servers": {"tp": None, "env": {}}}
    assert identity(launcher="trtllm_disaggregated", **given) == identity(
        launcher="trtllm_disaggregated"
    )
    more = {"context_servers": {"num_instances": 2}}
    assert identity(launcher="trtllm_disaggregated", **more) != identity(
        launcher="trtllm_disaggregated"
    )


def test_the_model_is_what_is_loaded_and_what_is_asked_for(tmp_path, monkeypatch):
    assert identity(None, loaded=MODEL) == identity()
    assert identity("a/b") != identity() != identity("a/b", loaded=MODEL)
    assert identity(launcher="trtllm_disaggregated") != identity()
    limits = Limits(sample_timeout_s=5, concurrency=3)
    assert daemon.identity(replace(PLAN, limits=limits, tasks=(Spec(name="gsm8k"),))) == identity()
    found = set()
    for name in ("one", "two"):  # the same relative name, another folder
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name)
        found |= {identity("checkpoint"), identity("m", loaded="checkpoint")}
    assert len(found) == 4


def test_the_text_of_a_config_file_counts_and_not_its_name(tmp_path):
    (one := tmp_path / "one.yaml").write_text("max_num_tokens: 1\n")
    (two := tmp_path / "two.yaml").write_text("max_num_tokens: 1\n")
    before = identity(config=str(one))
    assert before == identity(config=str(two))
    sides = [identity(launcher="trtllm_disaggregated", context_servers={"config": str(one)})]
    sides.append(identity(launcher="container", image="i", trtllm={"config": str(one)}))
    one.write_text("max_num_tokens: 2\n")
    assert before != identity(config=str(one))
    assert (
        identity(launcher="trtllm_disaggregated", context_servers={"config": str(one)}) not in sides
    )
    assert identity(launcher="container", image="i", trtllm={"config": str(one)}) not in sides


def test_the_files_behind_words_count(tmp_path, monkeypatch):
    found = set()
    for name in ("one", "two"):  # the same relative names, another folder
        (folder := tmp_path / name / "tokenizer").mkdir(parents=True)
        (tmp_path / name / "template.jinja").write_text(name)
        (tmp_path / name / "serve").write_bytes(bytes(TEXT_BYTES + 1))
        monkeypatch.chdir(folder.parent)
        found |= {
            identity(extra_args=["--tokenizer", "tokenizer"]),
            identity(extra_args=["--tokenizer=tokenizer"]),
        }
        found |= {identity(extra_args=["--chat_template", "template.jinja"])}
        found |= {identity(command="env A=1 ./serve"), identity(command=["./serve"])}
        found |= {identity(launcher="container", image="i", trtllm={"model": "tokenizer"})}
    assert len(found) == 12
    Path("template.jinja").write_text("one")
    assert identity(extra_args=["--chat_template", "template.jinja"]) in found


def test_the_plan_of_a_holder_serves_the_same(tmp_path, monkeypatch):
    plan = tmp_path / "plan.yaml"
    options = {
        "tp": 2,
        "env": {"A": None},
        "config": {"x": 1e-05, "y": "1e-05", "z": [True, "no"]},
        "gpus": [3, "0"],
    }
    given = Plan(
        model=MODEL,
        launcher=Spec(name="trtllm", options=options),
        tasks=(),
        limits=Limits(order="random"),
    )
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: command)
    command, _ = daemon._holder(given, tmp_path)
    again = serve._resolve(str(plan), None, None)
    assert command[-3:] == [str(plan), "--output-dir", str(tmp_path)]
    assert again == replace(given, limits=Limits())
    assert daemon.identity(again) == daemon.identity(given)


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ({"launcher": "trtlm"}, [], "unknown launcher 'trtlm'. Did you mean 'trtllm'"),
        ({"launcher": "trtllm", "modle": "m"}, [], "unknown key. Did you mean 'model'"),
        ({"launcher": "trtllm"}, ["launcher.tpp=2"], "tpp: unknown option"),
        ({"launcher": "trtllm"}, ["gsm8k.num_fewshot=2"], "expected launcher.OPTION=VALUE"),
        ({"launcher": "trtllm", "limits": {"sample_timeout_s": -1}}, [], "must be above 0"),
    ],
)
def test_a_launcher_that_is_wrong_is_refused(file, settings, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        resolve_launcher(file, {"set": settings}, {})


@pytest.fixture
def ours(tmp_path):
    """Return servers that this process holds, in the test's own registry."""
    entry = Held(
        id=daemon.identity(PLAN),
        state="ready",
        launcher="trtllm",
        model=MODEL,
        pid=os.getpid(),
        began=held_servers.began(os.getpid()) or "",
        since="",
        log_dir="",
        patience_s=3600.0,
        endpoint=Endpoint(base_url="http://127.0.0.1:9/v1", model=MODEL),
    )
    assert held_servers.claim(tmp_path, entry) is None
    return entry


@pytest.mark.parametrize("first", ["the end", "its effect"])
def test_a_run_ends_with_the_holders_first_sign_and_tells_its_last_words(first, ours, tmp_path):
    async def story():
        last = replace(ours, state="ended", error="out of memory", hint="smaller")
        later = asyncio.get_running_loop().call_later
        async with attach(
            PLAN, (), tmp_path, reuse=True, keep=False, notify=told, registry=tmp_path
        ) as endpoint:
            assert endpoint.info.attached == HeldServers(id=ours.id, holder=ours.pid, since="")
            held_servers.update(tmp_path, replace(ours, state="ending"))
            try:
                if first == "its effect":
                    raise EndpointError("refused")
                await asyncio.sleep(60)
            finally:  # the other servers end in the meantime
                later(0.5, held_servers.update, tmp_path, last)

    with pytest.raises(LaunchError, match=r"^out of memory$") as caught:
        asyncio.run(story())
    assert caught.value.hint == "smaller"


def test_a_failure_of_the_run_itself_is_told_as_it_is(ours, tmp_path, monkeypatch):
    monkeypatch.setattr("serve_eval.workflows.servers.reuse.NOTICED_S", 0.0)

    async def story():
        async with attach(
            PLAN, (), tmp_path, reuse=True, keep=False, notify=told, registry=tmp_path
        ):
            raise EndpointError("refuses everything")

    with pytest.raises(EndpointError, match="refuses everything"):
        asyncio.run(story())


def test_only_what_starts_servers_can_be_held():
    for name in ("external", "simulated"):
        with pytest.raises(PlanError, match="nothing to hold"):
            daemon.check(resolve_launcher({"launcher": name}, {"model": "m"}, {}))
    with pytest.raises(PlanError, match="2 GPUs are needed"):
        daemon.check(
            resolve_launcher(
                {"launcher": {"name": "trtllm", "tp": 2, "gpus": [0]}}, {"model": "m"}, {}
            )
        )


# --------------------------------------------------------------------------------------------------
# real processes


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """Yield an empty registry, with the stand-in as trtllm-serve; end what the test leaves."""
    (tmp_path / "tmp").mkdir()
    own = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TMPDIR": str(tmp_path / "tmp"),
        "HF_TOKEN": SECRET,
    }
    own["SERVE_EVAL_LOCK_DIR"] = str(tmp_path / "locks")
    for name, value in environment(STANDIN_POLL_S="0.2", **own).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    folder = held_servers.registry()
    yield folder
    for entry in held_servers.entries(folder):
        asyncio.run(daemon.stop(entry, notify=told))


def start(plan=PLAN, *, attach=False):
    return asyncio.run(daemon.start(plan, notify=told, attach=attach))


def run(
    plan,
    out,
    *,
    reuse=True,
    keep=False,
    tell=told,
):
    return asyncio.run(
        evaluate(plan, out, launching=partial(attach, reuse=reuse, keep=keep, notify=tell))
    )


def of_launch(entry):
    """Return the processes below the holder."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int(
                    (folder / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found = {entry.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {entry.pid}


def wait_gone(pids):
    deadline = time.monotonic() + 20
    while left := {pid for pid in pids if held_servers.began(pid) is not None}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture
def plan(data_root):
    return replace(
        PLAN,
        tasks=(Spec(name="gsm8k", options={"num_samples": 20}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )


def test_held_servers_are_used_by_runs_and_ended_on_demand(registry, plan, tmp_path, capsys):
    entry, said = start(), []
    servers = of_launch(entry)
    assert servers
    assert os.getsid(entry.pid) == entry.pid
    opened = [str(file.readlink()) for file in Path(f"/proc/{entry.pid}/fd").iterdir()]
    assert opened.count("/dev/null") >= 2
    assert [path for path in opened if path.startswith(f"{tmp_path}/locks/port-")], (
        "its locks must be where ours are"
    )
    report = run(plan, tmp_path / "out", tell=said.append)
    assert said == [
        f"attached to the servers {entry.id}, held by process {entry.pid} since {entry.since}"
    ]
    assert report.endpoint.info.attached == HeldServers(
        id=entry.id, holder=entry.pid, since=entry.since
    )
    assert report.endpoint.info.commands == entry.endpoint.info.commands
    assert report.tasks[0].result.scored == 20
    simulated = replace(plan, model="simulated", launcher=Spec(name="simulated"))
    suite = Suite(
        name="s", runs=(SuiteRun(name="held", plan=plan), SuiteRun(name="own", plan=simulated))
    )
    launching = partial(attach, reuse=True, keep=False, notify=said.append)
    assert (
        asyncio.run(evaluate_suite(suite, tmp_path / "suite", launching=launching)).exit_code == 3
    )
    assert said[1:] == said[:1]
    assert start(attach=True) == entry
    with pytest.raises(
        LaunchError, match=f"process {entry.pid} already holds the same servers: {entry.id}"
    ):
        start()
    patient = replace(plan, limits=Limits(sample_timeout_s=9999))
    with pytest.raises(LaunchError, match="allow 3600 s per sample, but this run waits for 9999 s"):
        run(patient, tmp_path / "patient")
    capsys.readouterr()
    serve._show([entry], ScreenOptions(as_json=True))
    [listed] = json.loads(capsys.readouterr().out)["result"]["servers"]
    assert (listed["id"], listed["state"]) == (entry.id, "ready")
    files = [file for file in registry.rglob("*") if file.is_file()]
    assert {file.name for file in files} >= {
        f"{entry.id}.json",
        "plan.yaml",
        "holder.log",
        "trtllm.log",
        "commands.sh",
    }
    assert not [file for file in files if SECRET in file.read_text()]
    assert serve._stop(entry.id, ScreenOptions()) == 0
    wait_gone({entry.pid, *servers})
    assert held_servers.entries(registry) == []
    with pytest.raises(PlanError, match=f"no servers {entry.id} run on this machine"):
        serve._stop(entry.id, ScreenOptions())


def test_a_holder_that_fails_says_why(registry, monkeypatch):
    monkeypatch.setenv("STANDIN_FAULTS", json.dumps({"no_gpu": True}))
    with pytest.raises(
        LaunchError, match=r"trtllm ended with .*: it found too few GPUs\n"
    ) as caught:
        start()
    assert "nvidia-smi lists the GPUs" in caught.value.hint
    [entry] = held_servers.entries(registry)
    assert (entry.state, entry.error) == ("ended", str(caught.value))
    assert serve._stop("all", ScreenOptions()) == 0
    assert held_servers.entries(registry) == []


@pytest.mark.slow
def test_servers_that_end_end_the_run_that_uses_them(registry, plan, tmp_path, monkeypatch):
    monkeypatch.setenv("STANDIN_FAULTS", json.dumps({"crash_after": 30}))
    entry = start()
    servers = of_launch(entry)
    with pytest.raises(LaunchError, match="trtllm ended with") as caught:
        run(replace(plan, limits=Limits(concurrency=1)), tmp_path / "out")
    assert caught.value.exit_code == 4
    assert "trtllm.log" in caught.value.hint
    assert len((tmp_path / "out/samples/gsm8k.jsonl").read_text().splitlines()) >= 5
    wait_gone({entry.pid, *servers})
    monkeypatch.delenv("STANDIN_FAULTS")
    again = run(plan, tmp_path / "out", keep=True)
    assert again.tasks[0].result.scored == 20
    assert again.endpoint.info.attached.holder != entry.pid


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_holder_that_is_ended_ends_its_servers_and_the_run(how, registry, plan, tmp_path):
    disaggregated = replace(
        plan, launcher=Spec(name="trtllm_disaggregated"), limits=Limits(rate_limit=1)
    )
    entry = start(disaggregated)
    servers = of_launch(entry)
    assert len(servers) >= 6  # each server has a supervisor

    async def killed_meanwhile():
        launching = partial(attach, reuse=True, keep=False, notify=told)
        running = asyncio.create_task(
            evaluate(disaggregated, tmp_path / "out", launching=launching)
        )
        journal = tmp_path / "out/samples/gsm8k.jsonl"
        while not (journal.exists() and journal.stat().st_size):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        os.kill(entry.pid, how)
        with pytest.raises(
            LaunchError, match=f"process {entry.pid}, which held them, is gone"
        ) as caught:
            await running
        for name in ("context_0", "generation_0", "orchestrator"):
            assert f"{name}.log: " in str(caught.value)

    asyncio.run(killed_meanwhile())
    lines = (tmp_path / "out/samples/gsm8k.jsonl").read_text().splitlines()
    assert sum('"response":' in line for line in lines) < 20
    wait_gone({entry.pid, *servers})
    assert held_servers.entries(registry) == []


@pytest.mark.slow
def test_of_two_starts_at_once_one_wins_and_the_other_attaches(registry, tmp_path):
    said = []

    async def both():
        starts = (
            daemon.start(PLAN, folder=tmp_path / n, notify=said.append, attach=True)
            for n in ("1", "2")
        )
        return await asyncio.gather(*starts)

    one, other = asyncio.run(both())
    assert one == other
    assert not [line for line in said if "already" in line]
    assert held_servers.entries(registry) == [one]


@pytest.mark.slow
def test_who_comes_while_they_start_waits_and_who_may_not_attach_is_refused(
    registry, plan, tmp_path, monkeypatch
):
    monkeypatch.setenv("STANDIN_LOAD_S", "4")
    said = []

    async def story():
        starting = asyncio.create_task(daemon.start(PLAN, notify=told, attach=False))
        while not held_servers.entries(registry):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        [entry] = held_servers.entries(registry)
        with pytest.raises(
            LaunchError, match=f"process {entry.pid} already starts the same servers"
        ):
            await daemon.start(PLAN, notify=told, attach=False)
        launching = partial(attach, reuse=True, keep=False, notify=said.append)
        report = await evaluate(plan, tmp_path / "out", launching=launching)
        assert (await starting).pid == entry.pid
        return report

    assert asyncio.run(story()).tasks[0].result.scored == 20
    assert [line.partition(" ")[0] for line in said] == ["waiting", "attached"]


@pytest.mark.slow
def test_a_start_that_is_given_up_leaves_nothing(registry, monkeypatch):
    monkeypatch.setenv("STANDIN_LOAD_S", "60")

    async def story():
        starting = asyncio.create_task(daemon.start(PLAN, notify=told, attach=False))
        while not (found := held_servers.entries(registry)) or not (servers := of_launch(found[0])):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        return {found[0].pid, *servers}

    wait_gone(asyncio.run(story()))
    assert held_servers.entries(registry) == []


@pytest.mark.slow
def test_without_held_servers_a_run_starts_its_own(registry, plan, tmp_path):
    report = run(plan, tmp_path / "out")
    assert report.tasks[0].result.scored == 20
    assert report.endpoint.info.attached is None
    assert held_servers.entries(registry) == []


def command(*arguments):
    return [sys.executable, "-m", "serve_eval", *arguments]


@pytest.mark.slow
@pytest.mark.parametrize("how", [None, signal.SIGINT, signal.SIGKILL])
def test_kept_servers_stay_however_the_run_ends(how, registry, data_root, tmp_path):
    out = tmp_path / "out"
    words = [
        "run",
        "--launcher",
        "trtllm",
        "--model",
        MODEL,
        "--tasks",
        "gsm8k",
        "--dataset-root",
        str(data_root),
    ]
    words += ["--no-reference", "--limit", "8", "--keep-servers", "-o", str(out)]
    words += ["--set", "limits.rate_limit=1"] if how else []
    with subprocess.Popen(
        command(*words), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("attached"):
                break
        if how is not None:
            process.send_signal(how)
        rest = process.stderr.read()
    assert process.returncode == {None: 3, signal.SIGINT: 130}.get(how, -signal.SIGKILL)
    [entry] = held_servers.entries(registry)
    assert entry.endpoint is not None
    opened = [str(file.readlink()) for file in Path(f"/proc/{entry.pid}/fd").iterdir()]
    assert not [path for path in opened if path.startswith(str(out))]
    shutil.rmtree(out)
    assert httpx.get(f"{entry.endpoint.base_url}/models").status_code == 200
    if how != signal.SIGKILL:
        assert f"Stop them with: serve-eval serve --stop {entry.id}" in rest


@pytest.mark.slow
def test_the_command_holds_until_it_is_asked_to_end(registry, tmp_path):
    (plan := tmp_path / "plan.yaml").write_text(
        f"model: {MODEL}\ntasks: [gsm8k]\nlauncher: {{name: trtllm}}\n"
    )
    words = command("serve", str(plan), "-o", str(tmp_path / "here"))
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        shown = dict(
            re.split(r": +", process.stdout.readline().strip(), maxsplit=1) for _ in range(6)
        )
        assert shown["evaluate"] == f"serve-eval run {plan} --base-url {shown['base URL']}"
        assert shown["logs"] == str(tmp_path / "here/logs")
        [entry] = held_servers.entries(registry)
        assert (entry.pid, entry.id) == (process.pid, shown["id"])
        servers = of_launch(entry)
        refused = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert refused.returncode == 4
        assert f"process {process.pid} already holds the same servers" in refused.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    wait_gone(servers)
    assert held_servers.entries(registry) == []


@pytest.mark.slow
def test_the_command_ends_with_its_server(registry, monkeypatch):
    words = command("serve", "trtllm", "--model", MODEL)
    monkeypatch.setenv("STANDIN_LOAD_S", "60")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("trtllm: started" in line for line in process.stderr)
        process.terminate()
        assert process.wait(20) == 130
    monkeypatch.setenv("STANDIN_LOAD_S", "0")
    monkeypatch.setenv("STANDIN_FAULTS", json.dumps({"crash_after": 1}))
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().split()[-1]
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{url}/completions", json={"model": MODEL, "prompt": "p", "max_tokens": 1})
        assert process.wait(20) == 4
        assert "error: trtllm ended with" in process.stderr.read()
    [entry] = held_servers.entries(registry)
    assert entry.state == "ended"
