import asyncio
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import trtllm
from serve_eval.launchers._fleet import fleet
from serve_eval.launchers._machine import local_gpus, lock_files
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import gone, process_number, smi
from tests.root import ROOT

__all__ = ["smi"]

MEMORY_USED = local_gpus.memory_used
TOKEN = "hf_" + 4 * "0aB1cD2e"
KV_CACHE = {"free_gpu_memory_fraction": 0.8}
CONTEXT = LaunchContext(model="org/model", log_dir=Path("logs"))


def start(context, story, **options):
    async def tell():
        async with trtllm.launch(
            context, trtllm.TrtllmOptions(**{"ready_timeout_s": 20.0, **options})
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


async def nothing(endpoint):
    return endpoint


# Pure commands


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {},
            "env CUDA_VISIBLE_DEVICES=0 trtllm-serve serve org/model --host 127.0.0.1 --port 8000",
        ),
        (
            {"tp": 2, "pp": 2, "ep": 4, "backend": "pytorch", "port": 9000, "model": "/models/m"},
            (
                "env CUDA_VISIBLE_DEVICES=0,1,2,3 trtllm-serve serve /models/m --host 127.0.0.1"
                " --port 9000 --tp_size 2 --pp_size 2 --ep_size 4 --backend pytorch"
            ),
        ),
        (
            {
                "config": {"tensor_parallel_size": 2, "max_num_tokens": 16384},
                "gpus": [5, "GPU-ab"],
                "tp": 2,
            },
            (
                "env CUDA_VISIBLE_DEVICES=5,GPU-ab trtllm-serve serve org/model --host 127.0.0.1"
                " --port 8000 --config logs/trtllm.yaml"
            ),
        ),
        (
            {
                "command": "docker run --rm image python -m tensorrt_llm.commands.serve",
                "extra_args": ["--trust_remote_code"],
                "env": {"HF_HOME": "/a b", "NCCL_DEBUG": None},
                "host": "0.0.0.0",
            },
            (
                "env -u NCCL_DEBUG CUDA_VISIBLE_DEVICES=0 'HF_HOME=/a b' docker run --rm image"
                " python -m tensorrt_llm.commands.serve serve org/model --host 0.0.0.0 --port 8000"
                " --trust_remote_code"
            ),
        ),
    ],
)
def test_the_command_line(options, line, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert registry.check_options(trtllm.launch, options, "launcher") == options
    assert [
        shlex.join(command) for command in trtllm.commands(CONTEXT, trtllm.TrtllmOptions(**options))
    ] == [line]


def test_the_config_is_a_file_of_ours_or_the_users_own(tmp_path):
    content = {"kv_cache_config": {"free_gpu_memory_fraction": 0.5}}
    text = "kv_cache_config:\n  free_gpu_memory_fraction: 0.5\n"
    assert trtllm.files(CONTEXT, trtllm.TrtllmOptions(config=content)) == {
        Path("logs/trtllm.yaml"): text
    }
    (own := tmp_path / "own.yaml").write_text(text)
    assert trtllm.files(CONTEXT, trtllm.TrtllmOptions(config=str(own))) == {}
    assert trtllm.commands(CONTEXT, trtllm.TrtllmOptions(config=str(own)))[0][-2:] == [
        "--config",
        str(own),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 4, "gpus": [0, 1]}, r"4 GPUs are needed \(trtllm 4\), and gpus names 2: 0,1"),
        ({"gpus": [1, 1]}, "names 1 twice"),
        (
            {"tp": 2, "config": {"tensor_parallel_size": 4}},
            "tp is 2 and tensor_parallel_size in the config is 4",
        ),
        ({"extra_args": ["--port=1"]}, "--port is an option of the launcher"),
        ({"extra_args": ["--tp_size", "2"]}, "--tp_size is an option of the launcher"),
        ({"tp": 0}, "tp is 0"),
        ({"port": 0}, "port: 0 is out of range"),
        ({"port": 70000}, "port: 70000 is out of range"),
        ({"config": "/nowhere.yaml"}, "nowhere.yaml cannot be read"),
        ({"command": ""}, "name an executable"),
        ({"env": {"HF_TOKEN": "hf_x"}}, "env.HF_TOKEN: a plan must not contain a secret"),
        ({"env": {"NAME": TOKEN}}, "env.NAME: a plan must not contain a secret"),
        (
            {"env": {"CUDA_VISIBLE_DEVICES": "3"}},
            "env.CUDA_VISIBLE_DEVICES: the launcher sets this variable",
        ),
        (
            {"command": "docker run -e HF_TOKEN=x image trtllm-serve"},
            "command: HF_TOKEN: a plan must not contain a secret",
        ),
        (
            {"command": ["env", f"A={TOKEN}", "trtllm-serve"]},
            "command: A: a plan must not contain a secret",
        ),
        (
            {"extra_args": ["--internal-key=x"]},
            "extra_args: --internal-key: a plan must not contain a secret",
        ),
        ({"extra_args": [TOKEN]}, "extra_args: one of its words: a plan must not contain a secret"),
        (
            {"extra_args": ["--otlp_traces_endpoint", "http://me:pw@host:1"]},
            "extra_args: one of its words",
        ),
        ({"extra_args": ["--set", "tensor_parallel_size=2"]}, "--set: .* put it into config"),
        (
            {"extra_args": ["--max_batch_size=8"], "config": {"max_batch_size": 8}},
            "--max_batch_size is in extra",
        ),
        (
            {
                "extra_args": ["--free_gpu_memory_fraction", "0.5"],
                "config": {"kv_cache_config": KV_CACHE},
            },
            (
                "--free_gpu_memory_fraction is in extra_args, and"
                " kv_cache_config.free_gpu_memory_fraction is in the con"
            ),
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(PlanError, match=message) as caught:
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions(**options))
    assert TOKEN not in str(caught.value)


def test_words_that_only_look_like_secrets_are_taken():
    words = [
        "--hf_revision",
        "main",
        "--tokenizer=/models/hf_tokenizer-of-mine",
        "--chat_template",
        "http://h:1/@x",
    ]
    command = "env TOKENIZERS_PARALLELISM=false trtllm-serve"
    config = {"max_seq_len": 4096, "kv_cache_config": {"dtype": "fp8"}}
    [line] = trtllm.commands(
        CONTEXT, trtllm.TrtllmOptions(extra_args=words, command=command, config=config)
    )
    assert line[-5:] == words


def test_gpus_are_cut_from_those_that_are_visible(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert trtllm.commands(CONTEXT, trtllm.TrtllmOptions(tp=2))[0][1] == "CUDA_VISIBLE_DEVICES=2,3"
    with pytest.raises(PlanError, match=r"3 GPUs are needed .* CUDA_VISIBLE_DEVICES names 2: 2,3"):
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions(tp=3))


def _variables():
    """Return the variables of a server on GPU 3, started by a tool that is no MPI rank.

    Root gets more variables.
    """
    as_root = kv_transfer.AS_ROOT if os.geteuid() == 0 else {}
    return ["CUDA_VISIBLE_DEVICES=3", *(f"{name}={value}" for name, value in as_root.items())]


def test_a_dry_run_shows_the_command_and_the_file(tmp_path, data_root):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"model: org/model\ntasks: [gsm8k]\ndataset_root: {data_root}\nno_reference: true\nlimit:"
        " 2\nlauncher: {name: trtllm, gpus: [3], config: {max_num_tokens: 8192}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "serve_eval", "run", str(plan), "--dry-run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    command = "trtllm-serve serve org/model --host 127.0.0.1 --port 8000"
    assert shlex.join(["env", *_variables(), *shlex.split(command)]) in done.stdout
    pasted = done.stdout[done.stdout.index("mkdir -p logs") : done.stdout.index("commands:")]
    subprocess.run(["sh", "-ec", pasted], cwd=tmp_path, check=True)
    assert (tmp_path / "logs/trtllm.yaml").read_text() == "max_num_tokens: 8192\n"


# Lifecycle


async def test_a_run_starts_asks_and_stops(
    context,
    standin,
    plan_of,
    tmp_path,
    said,
):
    standin(faults={"rank": True, "refuse_first": 1}, STANDIN_LOAD_S="0.3")
    plan = plan_of("trtllm", {"env": {"NCCL_DEBUG": "INFO"}}, limit=5)
    report = await evaluate(plan, tmp_path, notify=said.append)
    assert report.tasks[0].result.scored == 5
    assert report.endpoint.info.launcher == "trtllm"
    assert gone(process_number(context))
    assert gone(process_number(context, what="rank"))
    assert [line.partition(":")[2].split()[0] for line in said] == ["started", "ready", "the"]
    assert "NCCL_DEBUG=INFO" in (tmp_path / "logs/commands.sh").read_text()
    assert report.endpoint.base_url.startswith("http://127.0.0.1:")


async def test_a_plan_that_cannot_be_launched_leaves_no_folder(tmp_path, data_root):
    options = {"name": "trtllm", "tp": 2, "gpus": [0]}
    plan = resolve(
        {
            "model": "org/model",
            "tasks": ["gsm8k"],
            "dataset_root": str(data_root),
            "launcher": options,
        },
        {"no_reference": True, "limit": 5},
        {},
    ).plan
    with pytest.raises(PlanError, match="2 GPUs are needed"):
        await evaluate(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_variables_of_mpi_and_slurm_are_not_inherited(context, standin, monkeypatch):
    standin()
    for name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "UCX_TLS"):
        monkeypatch.setenv(name, "1")

    async def names(endpoint):
        content = Path(f"/proc/{process_number(context)}/environ").read_text()
        return {line.partition("=")[0] for line in content.split("\0")}

    found = start(context, names, env={"UCX_TLS": "tcp"})
    assert {"UCX_TLS", "CUDA_VISIBLE_DEVICES", "PATH"} <= found
    assert not found & {"SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"}


def test_a_server_that_never_gets_ready_is_an_error_in_time(context, standin):
    standin(STANDIN_LOAD_S="60")
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"trtllm not ready after 0\.5 s"):
        start(context, nothing, ready_timeout_s=0.5)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("log", ["there", "gone"])
def test_an_end_while_it_is_used_ends_the_run_at_once(log, context, standin):
    standin(faults={"crash_after": 1})

    async def asking(endpoint):
        if log == "gone":
            (context.log_dir / "trtllm.log").unlink()
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.TransportError):
                await client.post(
                    endpoint.base_url + "/completions", json={"model": "m", "prompt": "p"}
                )
        await asyncio.sleep(30)
        raise AssertionError("it was not noticed")

    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"trtllm ended with exit code 1 after"):
        start(context, asking)
    assert time.monotonic() - began < 10


def test_what_a_killed_supervisor_leaves_is_killed_too(context, standin):
    standin(faults={"rank": True})

    async def killing(endpoint):
        status = Path(f"/proc/{process_number(context)}/status").read_text().split()
        os.kill(int(status[status.index("PPid:") + 1]), signal.SIGKILL)
        await asyncio.sleep(60)

    with pytest.raises(LaunchError, match=r"trtllm ended with signal 9"):
        start(context, killing)
    assert gone(process_number(context))
    assert gone(process_number(context, what="rank"))


def test_a_deaf_server_is_killed(context, standin):
    standin(faults={"ignore_sigterm": True})
    start(context, nothing, stop_timeout_s=0.3)
    assert gone(process_number(context))


def test_cancelling_stops_it(context, standin):
    standin(faults={"rank": True})

    async def cancelled(endpoint):
        task = asyncio.current_task()
        task.cancel()
        await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        start(context, cancelled)
    assert gone(process_number(context))
    assert gone(process_number(context, what="rank"))


async def test_cancelling_while_it_loads_stops_it(context, standin):
    standin(faults={"rank": True}, STANDIN_LOAD_S="60")

    async def story():
        task, log = asyncio.create_task(_loading(context)), context.log_dir / "trtllm.log"
        # Another process writes the log.
        while not (log.exists() and "Loading" in log.read_text()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await asyncio.wait_for(story(), 20)
    assert gone(process_number(context, what="rank"))


async def _loading(context):
    async with trtllm.launch(context, trtllm.TrtllmOptions()):
        raise AssertionError("it started")


def test_the_same_gpu_port_or_folder_twice_is_refused(context, standin, tmp_path):
    standin()

    async def again(endpoint):
        other = replace(context, log_dir=tmp_path / "other")
        with pytest.raises(
            LaunchError, match=rf"GPU 0 is used by another launch .*process {os.getpid()}"
        ):
            async with trtllm.launch(other, trtllm.TrtllmOptions()):
                raise AssertionError("it started")
        with pytest.raises(
            LaunchError, match=f"folder {context.log_dir} is used by another launch"
        ):
            async with trtllm.launch(
                context, trtllm.TrtllmOptions(gpus=[1], config={"max_num_tokens": 1})
            ):
                raise AssertionError("it started")
        assert not (context.log_dir / "trtllm.yaml").exists()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(LaunchError, match=f"127.0.0.1:{port} cannot be used"):
                async with trtllm.launch(other, trtllm.TrtllmOptions(port=port, gpus=[1])):
                    raise AssertionError("it started")

    start(context, again)


def test_an_executable_is_looked_for_where_the_server_looks(context, standin, monkeypatch):
    standin()
    env = {"PATH": os.environ["PATH"]}
    monkeypatch.setenv("PATH", os.defpath)
    assert start(context, nothing, env=env).model == "org/model"


def test_no_two_servers_get_the_same_port(monkeypatch):
    given = iter([[7001], [7002, 7001, 7003]])
    monkeypatch.setattr(fleet, "_find_unused", lambda host, count: next(given))
    assert fleet.free_ports("127.0.0.1", None, 2) == [7001, 7002, 7003]


def test_a_port_that_is_taken_is_none_that_a_connection_gets():
    """A connection of another process may take such a port before the server binds it."""
    given = int(fleet.GIVEN_PORTS.read_text().split()[0])
    ports = fleet.free_ports("127.0.0.1", None, 20)
    assert len(set(ports)) == 21
    assert all(fleet.FIRST_PORT <= port < given for port in ports)


@pytest.mark.parametrize("given", ["1024 65535", "", None])
def test_where_connections_may_get_every_port_one_of_them_is_taken(given, monkeypatch, tmp_path):
    if given is not None:
        (tmp_path / "range").write_text(given)
    monkeypatch.setattr(fleet, "GIVEN_PORTS", tmp_path / "range")
    assert len(set(fleet.free_ports("127.0.0.1", None, 3))) == 4


def test_ports_that_others_listen_on_are_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(fleet, "FIRST_PORT", port)
        monkeypatch.setattr(fleet, "_first_given", lambda: port + 1)
        assert port not in fleet.free_ports("127.0.0.1", None, 2)


def test_an_executable_that_is_not_there_is_an_error(context):
    with pytest.raises(LaunchError, match="no-such-serve is not on PATH"):
        start(context, nothing, command="no-such-serve")


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(pytest.param(how, marks=pytest.mark.slow) for how in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_nothing_is_left_however_the_run_ends(
    how,
    context,
    standin,
    tmp_path,
    data_root,
    smi,
):
    standin(faults={"rank": True})
    smi.tells("0, GPU-a1, 0")
    plan, context = tmp_path / "plan.yaml", replace(context, log_dir=tmp_path / "run/logs")
    plan.write_text(
        f"model: org/model\ntasks: [gsm8k]\ndataset_root: {data_root}\nno_reference: true\nlimits:"
        " {rate_limit: 1}\nlauncher: {name: trtllm, stop_timeout_s: 1}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "run", str(plan), "-o", str(tmp_path / "run")],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            assert run.stderr is not None
            assert any("first completion" in line for line in run.stderr)
            with pytest.raises(LaunchError), lock_files.lock_names(["GPU-a1"]):
                pass
        finally:
            run.send_signal(how)
        code = run.wait(timeout=20)
    assert code == (-signal.SIGKILL if how == signal.SIGKILL else 130)
    deadline = time.monotonic() + 10
    pids = [process_number(context), process_number(context, what="rank")]
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if how != signal.SIGKILL:
        return
    # The supervisor holds the lock of the GPU until nothing is left.
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with lock_files.lock_names(["GPU-a1"]):
                return
        except LaunchError:
            time.sleep(0.05)
    raise AssertionError("the GPU stays locked")


def test_gpus_are_checked_before_and_after(
    context,
    standin,
    tmp_path,
    said,
    monkeypatch,
):
    standin()
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(
        f"#!/bin/sh\necho WARNING: infoROM is corrupted\necho 0, GPU-a1, $(cat {tmp_path}/used)\n"
    )
    smi.chmod(0o755)
    (tmp_path / "used").write_text("10")
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(local_gpus, "memory_used", MEMORY_USED)
    monkeypatch.setattr(fleet, "BACK_S", 0.3)
    with pytest.raises(
        LaunchError, match="this machine has 1 GPU, numbered 0, and the plan needs number 1"
    ):
        start(context, nothing, tp=2)
    with pytest.raises(LaunchError, match="needs number GPU-b"):
        start(context, nothing, gpus=["GPU-b"])
    with pytest.raises(LaunchError, match="0 and GPU-a name the same GPU"):
        start(context, nothing, tp=2, gpus=[0, "GPU-a"])
    with (
        lock_files.lock_names(["GPU-a1"]),
        pytest.raises(LaunchError, match="GPU 0 is used by another launch"),
    ):
        start(context, nothing, gpus=["GPU-a1"])

    async def leak(endpoint):
        (tmp_path / "used").write_text("70000")

    start(context, leak)
    assert said[-1] == "warning: memory was not released within 0.3 s: GPU 0 70000 MiB (before 10)"
