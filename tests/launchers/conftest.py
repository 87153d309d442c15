"""Fixtures shared by the tests of launchers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from serve_eval.launchers._machine import local_gpus, lock_files
from serve_eval.schema import LaunchContext, Limits, Plan, Spec
from tests.standin.deployments import environment

FAKE_ENGINE = Path(__file__).with_name("fake_docker.py")


@pytest.fixture
def said():
    """Return the list that collects the messages of a launch."""
    return []


@pytest.fixture
def own_machine(tmp_path, monkeypatch):
    """Give the test its own locks and eight free GPUs.

    Other tests run at the same time, and this machine may have any number of GPUs.
    """
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path / "locks"))
    monkeypatch.setattr(
        local_gpus, "memory_used", lambda: {local_gpus.Gpu(str(number)): 0 for number in range(8)}
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def context(tmp_path, said, own_machine):
    """Return the context of a launch with its logs in the test's folder."""
    return LaunchContext(model="org/model", log_dir=tmp_path / "logs", notify=said.append)


@dataclass
class Engine:
    """A running fake engine, and a `docker` on PATH that asks it."""

    socket: Path

    def names(self):
        return subprocess.run(
            ["docker", "ps"], capture_output=True, text=True, check=True
        ).stdout.split()

    def asked(self):
        return [json.loads(text) for text in Path(f"{self.socket}.log").read_text().splitlines()]

    def empty(self):
        """Return True once no container is left, False after 20 s."""
        deadline = time.monotonic() + 20
        while self.names():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture
def engine(context, tmp_path, monkeypatch):
    place = tmp_path / "docker.sock"
    (client := tmp_path / "bin/docker").parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE_ENGINE} {place} "$@"\n')
    client.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_not_to_be_seen")
    inside = environment("v12", STANDIN_POLL_S="0.2")
    del inside["HF_TOKEN"]
    with subprocess.Popen(
        [sys.executable, "-I", str(FAKE_ENGINE), "daemon", str(place)],
        env=inside,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "ready\n"
        monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
        try:
            yield Engine(place)
        finally:
            process.terminate()


@pytest.fixture
def standin(own_machine, tmp_path, monkeypatch):
    """Return a function that makes `trtllm-serve` the stand-in, with a flavour and faults."""

    def use(flavour="v12", faults=None, **variables):
        monkeypatch.delenv("STANDIN_FAULTS", raising=False)
        env = environment(flavour, faults=faults, STANDIN_POLL_S="0.1", **variables)
        env["XDG_CACHE_HOME"] = str(tmp_path / flavour)
        for name, value in env.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.fixture
def plan_of(data_root):
    """Return a function that makes a small plan with a launcher, its options and limits.

    The stand-in may answer anything.
    """

    def plan(launcher, options={}, *, limit=20, **limits):  # noqa: B006
        return Plan(
            model="my-org/my-model",
            launcher=Spec(name=launcher, options=json.loads(json.dumps(options))),
            tasks=(Spec(name="gsm8k", options={"max_tokens": 16}),),
            dataset_roots=(str(data_root),),
            limit=limit,
            no_reference=True,
            limits=Limits(**limits),
        )

    return plan


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Yield a mock cluster, with its kubeconfig as that of the user."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    from tests.launchers.kubernetes.mock_cluster import MockCluster

    with MockCluster() as mock:
        monkeypatch.setenv("KUBECONFIG", str(mock.kubeconfig(tmp_path)))
        yield mock


def process_number(context, name="trtllm", what="server"):
    """Return a process number from the log of its server: the `server`, or a `rank` of it."""
    log = (context.log_dir / f"{name}.log").read_text()
    return int(log.partition(f"Started {what} process [")[2].partition("]")[0])


def gone(pid):
    """Return True if a process has ended, even if it is a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return Path("/proc/self").exists()


def wait_until_gone(pid, timeout_s=5.0):
    deadline = time.monotonic() + timeout_s
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


MEMORY_USED = local_gpus.memory_used
"""The function that runs nvidia-smi; tests of launchers replace it."""


class Smi:
    """The output of nvidia-smi.

    It has a line per GPU (`0, GPU-a, 17`) and a line per process (`GPU-a, PID, MIB, NAME`).
    """

    def __init__(self, folder):
        self.folder = folder
        self.program = folder / "nvidia-smi"
        folder.mkdir(parents=True, exist_ok=True)
        self.does(
            f"echo asked >> {folder}/asked\n"
            'case "$1" in\n'
            f"  --query-gpu=index,uuid,memory.used) cat {folder}/gpus ;;\n"
            f"  --query-compute-apps=*) cat {folder}/processes ;;\n"
            f"  -L) cat {folder}/listed ;;\n"
            "  *) exit 9 ;;\n"
            "esac"
        )
        self.tells()

    def does(self, script):
        self.program.write_text(f"#!/bin/sh\n{script}\n")
        self.program.chmod(0o755)

    def tells(self, *gpus, processes=(), listed=""):
        for name, lines in (("gpus", gpus), ("processes", processes), ("listed", (listed,))):
            (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def asked(self):
        return (self.folder / "asked").exists()


@pytest.fixture
def smi(own_machine, tmp_path, monkeypatch):
    """Return a fake nvidia-smi for a machine that has no GPU until a test names one."""
    fake = Smi(tmp_path / "smi")
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(local_gpus, "memory_used", MEMORY_USED)
    monkeypatch.setattr(local_gpus, "SIGNS", ())
    return fake
