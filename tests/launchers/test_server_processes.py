"""Test what processes of servers inherit from us, and that none outlives the tool.

The environment is read from the machine.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import container, simulated, trtllm, trtllm_disaggregated
from serve_eval.launchers._machine import local_gpus, lock_files
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import process_number
from tests.launchers.test_container import checked
from tests.root import ROOT
from tests.standin.deployments import environment as endings_environment

SECRETS = {
    "SECRET_XYZ": "secret-1",
    "OPENAI_API_KEY": "secret-2",
    "AWS_SECRET_ACCESS_KEY": "secret-3",
    "VLLM_API_KEY": "secret-4",
    "DOCKER_AUTH_CONFIG": "secret-5",
    "CI_JOB_TOKEN": "secret-6",
    "NVIDIA_APIKEY": "secret-7",
    "DOCKER_CREDENTIAL": "secret-8",
    "PODMAN_PASSPHRASE": "secret-9",
}
NEEDED = {
    "HF_TOKEN": "hf-1",
    "HF_HOME": "/models",
    "TRTLLM_X": "1",
    "NCCL_DEBUG": "INFO",
    "https_proxy": "http://p:1",
}
MEMORY_USED = local_gpus.memory_used


@pytest.fixture
def around(monkeypatch):
    """Return a function that sets secrets and the variables that servers need."""

    def put():
        for name, value in {**SECRETS, **NEEDED, "TEAM_KEY": "team"}.items():
            monkeypatch.setenv(name, value)

    return put


def _environment_of(pid):
    return dict(
        pair.partition("=")[::2]
        for pair in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        if "=" in pair
    )


def _below_us():
    """Return the processes of the launch: our descendants that have its mark."""
    found = {
        pid: _environment_of(pid)
        for pid in descendants(os.getpid())
        if Path(f"/proc/{pid}/exe").exists()
    }
    return {pid: env for pid, env in found.items() if environment.MARK in env}


def _check(env):
    assert not set(SECRETS) & set(env)
    assert not set(SECRETS.values()) & set(env.values())


async def test_a_server_gets_what_it_needs_and_what_is_named(context, standin, around):
    standin()
    around()
    async with trtllm.launch(
        context, trtllm.TrtllmOptions(ready_timeout_s=20.0, pass_env=["TEAM_KEY"])
    ):
        server, all_of_them = _environment_of(process_number(context)), _below_us()
    assert {name: server.get(name) for name in NEEDED} == NEEDED
    assert server["TEAM_KEY"] == "team"
    assert server["STANDIN_FLAVOUR"] == "v12", "named by SERVE_EVAL_PASS_ENV"
    assert len(all_of_them) >= 2, "the supervisor and the server"
    for env in (server, *all_of_them.values()):
        _check(env)


async def test_a_container_and_its_client_get_no_more(engine, context, around):
    around()
    async with container.launch(
        context,
        container.ContainerOptions(
            **checked(ready_timeout_s=30.0, trtllm={"pass_env": ["TEAM_KEY"]})
        ),
    ):
        inside, all_of_them = _environment_of(process_number(context)), _below_us()
    assert (inside["TEAM_KEY"], inside["HF_TOKEN"]) == ("team", "hf-1")
    assert all_of_them
    for env in (inside, *all_of_them.values()):
        _check(env)
    assert any("TEAM_KEY" in words for words in map(str, engine.asked()))
    assert "=team" not in str(engine.asked())


async def test_a_server_of_ours_gets_what_any_program_needs(tmp_path, around):
    around()
    context = LaunchContext(
        model="m",
        log_dir=tmp_path,
        write_answer_file=lambda path, chance: path.write_text("") and None,
    )
    async with simulated.launch(context, simulated.SimulatedOptions()) as endpoint:
        _check(env := _environment_of(str(endpoint.info.pid)))
        assert "HF_TOKEN" not in env
        assert env["PATH"] == os.environ["PATH"]


def test_a_command_that_tells_of_the_machine_gets_no_secret(tmp_path, around, monkeypatch):
    around()
    (smi := tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\nenv > {tmp_path}/seen\necho 0, GPU-1, 5\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert MEMORY_USED() == {local_gpus.Gpu("0", "GPU-1"): 5}
    _check(
        env := dict(
            line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines()
        )
    )
    assert env["SLURM_CONF"] == "/etc/slurm.conf"


@pytest.mark.parametrize("names", [["A=b"], ["CUDA_VISIBLE_DEVICES"], ["A B"], [""]])
def test_what_is_no_name_of_a_variable_is_refused(context, names):
    with pytest.raises(PlanError, match=r"launcher\.pass_env"):
        trtllm.commands(context, trtllm.TrtllmOptions(pass_env=names))


def test_a_secret_in_a_plan_is_refused_with_what_to_do(context):
    with pytest.raises(PlanError) as hub:
        trtllm.commands(context, trtllm.TrtllmOptions(env={"HF_TOKEN": "x"}))
    assert hub.value.hint == "Export HF_TOKEN: servers inherit it."
    with pytest.raises(PlanError) as other:
        trtllm.commands(context, trtllm.TrtllmOptions(env={"TEAM_KEY": "x"}))
    assert other.value.hint == "Export TEAM_KEY, and name it in pass_env."


def test_whose_names_are_given_are_passed_all_the_same():
    environ = {"UCX_TLS": "tcp", "SITE_A": "1", "SITE_B": "2", "SLURM_PROCID": "0"}
    assert environment.inherit(environ) == {"UCX_TLS": "tcp"}
    assert environment.inherit(environ, ["SITE_*"]) == {
        k: v for k, v in environ.items() if k != "SLURM_PROCID"
    }
    by_variable = {**environ, "SERVE_EVAL_PASS_ENV": "SITE_A, SITE_B"}
    assert {"SITE_A", "SITE_B"} <= environment.inherit(by_variable).keys()
    assert sys.platform != "linux" or "PATH" in environment.inherit(dict(os.environ))


MARK = "STANDIN_TEST_RUN"
"""A variable of the tool and all its children; the stand-in receives variables with its prefix."""
LEFT_S = 20.0
GENERATION = {"when": {"gpus": "1"}}

PHASES = {
    "probing": ({}, {}, "probing"),
    "starting": ({"STANDIN_LOAD_S": "60"}, {}, "context_0: started"),
    "loading": ({"STANDIN_LOAD_S": "60"}, {}, "orchestrator: started"),
    "first completion": ({}, {"hang_after": 0, **GENERATION}, "orchestrator: ready"),
    "evaluating": ({}, {}, "the first completion took"),
    "tearing down": ({}, {"ignore_sigterm": True}, "the first completion took"),
}
"""Variables and faults that prolong a phase of the stand-in, and the message when it begins."""
CASES = [
    pytest.param(phase, how, id=f"{phase}, {how.name}", marks=pytest.mark.slow)
    for phase in PHASES
    for how in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
]


def marked(mark):
    """Return the processes of a run by number and command line, without zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(
                        folder.name + " " + (folder / "cmdline").read_text().replace("\0", " ")
                    )
    return found


def ports(logs):
    """Return the ports of the servers from the orchestrator's file."""
    content = yaml.safe_load((logs / "orchestrator.yaml").read_text())
    urls = content["context_servers"]["urls"] + content["generation_servers"]["urls"]
    return [content["port"], *(int(url.rpartition(":")[2]) for url in urls)]


def check_nothing_left(mark, run, temporary, locks):
    deadline = time.monotonic() + LEFT_S
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    if (run / "logs/orchestrator.yaml").exists():
        for port in ports(run / "logs"):
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)), f"a process listens at {port}"
    assert [path.name for path in temporary.iterdir()] == []
    names = [file.stem for file in locks.glob("*")] if locks.exists() else []
    with lock_files.lock_names(names):
        pass


@pytest.mark.parametrize(("phase", "how"), CASES)
def test_nothing_is_left(
    phase,
    how,
    data_root,
    tmp_path,
    monkeypatch,
):
    variables, faults, begins = PHASES[phase]
    (temporary := tmp_path / "tmp").mkdir()
    mark, probed = uuid.uuid4().hex, tmp_path / "probed"
    (program := tmp_path / "serve").write_text(
        f"#!/bin/sh\ntouch {probed}\nsleep 60 &\ntrap '' TERM\nwait\nwait\n"
    )
    program.chmod(0o755)
    launcher = {
        "name": "trtllm_disaggregated",
        "stop_timeout_s": 5 if phase == "tearing down" else 1,
    }
    launcher |= {"command": str(program)} if phase == "probing" else {}
    (plan := tmp_path / "plan.yaml").write_text(
        yaml.safe_dump(
            {
                "model": "org/model",
                "tasks": ["gsm8k"],
                "dataset_root": str(data_root),
                "no_reference": True,
                "limits": {"rate_limit": 2},
                "launcher": launcher,
            }
        )
    )
    env = (
        endings_environment(faults=faults, STANDIN_POLL_S="0.1")
        | variables
        | {
            MARK: mark,
            "TMPDIR": str(temporary),
        }
    )
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), lock_files.VARIABLE: str(tmp_path / "locks")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    said = tmp_path / "said"
    with said.open("w") as stderr:
        run = subprocess.Popen(
            [sys.executable, "-m", "serve_eval", "run", str(plan), "-o", str(tmp_path / "run")],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        _wait(
            lambda: probed.exists() if phase == "probing" else begins in said.read_text(), run, said
        )
        if phase in ("evaluating", "tearing down"):
            _wait(
                lambda: any((tmp_path / "run/samples").glob("*")) and _answered(tmp_path / "run"),
                run,
                said,
            )
        if phase == "tearing down":
            run.send_signal(signal.SIGTERM)
            _wait(
                lambda: "Shutting down" in (tmp_path / "run/logs/generation_0.log").read_text(),
                run,
                said,
            )
    finally:
        run.send_signal(how)
    code = run.wait(timeout=LEFT_S)
    assert code == (-signal.SIGKILL if how is signal.SIGKILL else 130), said.read_text()
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    check_nothing_left(mark, tmp_path / "run", temporary, tmp_path / "locks")


def _answered(run):
    return (run / "samples/gsm8k.jsonl").stat().st_size > 0


def _wait(until, run, said):
    deadline = time.monotonic() + 60
    while not until():
        assert run.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)


@pytest.mark.slow
def test_twenty_starts_and_stops_leak_nothing(
    context,
    standin,
    tmp_path,
    monkeypatch,
):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    standin()

    async def once():
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions()
        ):
            assert len(marked(mark)) >= 6  # three servers, each with its supervisor

    def state():
        threads = [len(list(Path("/proc/self/task").iterdir()))]
        files = len(list(Path("/proc/self/fd").iterdir()))
        return files, threads, [path.name for path in temporary.iterdir()]

    asyncio.run(once())  # late imports open files of their own
    before = state()
    for _ in range(20):
        asyncio.run(once())
        assert not [line for line in marked(mark) if not line.startswith(f"{os.getpid()} ")]
    assert state() == before
    check_nothing_left(mark, context.log_dir.parent, temporary, tmp_path / "locks")
    with (
        pytest.raises(LaunchError, match="is used by another launch"),
        lock_files.lock_names(["GPU-0"]),
        lock_files.lock_names(["GPU-0"]),
    ):
        pass
