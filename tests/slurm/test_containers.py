"""Test containers in steps of a real SLURM, with a fake engine: one daemon for both nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.launchers.conftest import FAKE_ENGINE, Engine
from tests.slurm.conftest import Site, until
from tests.slurm.test_ends import SLOW, answered, gone, result

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

DOCKER = {"container": {"image": "image:1", "engine": "docker"}}


@pytest.fixture
def engine(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Put `docker` on PATH of the site, with a daemon that belongs to no job."""
    place = site.folder / "docker.sock"
    (client := site.folder / "bin/docker").parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE_ENGINE} {place} "$@"\n')
    client.chmod(0o755)
    words = [sys.executable, "-I", str(FAKE_ENGINE), "daemon", str(place)]
    with subprocess.Popen(words, env=site.environ, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "ready\n"
        site.environ["PATH"] = f"{client.parent}{os.pathsep}{site.environ['PATH']}"
        monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
        try:
            yield Engine(place)
        finally:
            daemon.terminate()


def test_a_job_script_that_evaluates_servers_in_containers(site: Site, engine: Engine) -> None:
    plan = site.plan({"trtllm_disaggregated": {"generation_servers": {"tp": 4}}, **DOCKER})
    job = site.submit(site.script(site.command("run", str(plan))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    runs = {
        words[words.index("--name") + 1]: words for words in engine.asked() if "--name" in words
    }
    gpus = {
        name.rpartition("-")[2]: words[words.index("--gpus") + 1] for name, words in runs.items()
    }
    assert gpus == {
        "context_0": '"device=0"',
        "generation_0": '"device=0,1,2,3"',
        "orchestrator": "all",
    }
    commands = json.loads((site.out / "report.json").read_text())["endpoint"]["info"]["commands"]
    assert [
        f"--nodelist={node}" in words
        for words, node in zip(commands, [*NODES, NODES[0]], strict=True)
    ] == [True] * 3
    assert engine.names() == []
    gone(site, job)


@pytest.mark.parametrize("supervisors", [False, True])
def test_a_tool_that_is_killed_leaves_no_container(
    site: Site, engine: Engine, supervisors: bool
) -> None:
    """If the supervisors are killed as well, no process is left that could end the containers.

    The batch script continues, so the end of the job does not end them. One of them ignores
    SIGTERM.
    """
    deaf = {"env": {"STANDIN_FAULTS": '{"ignore_sigterm": true}'}}
    sides = {"env": {"STANDIN_FAULTS": SLOW}, "context_servers": deaf}
    plan = site.plan({"trtllm_disaggregated": sides, **DOCKER, "stop_timeout_s": 2})
    run = site.command("run", str(plan), "--concurrency", "1")
    job = site.submit(site.script(f"{run} & echo $! > {site.folder}/pid; sleep 100"))
    until(lambda: answered(site) >= 3)
    assert (len(site.steps(job)), len(engine.names())) == (3, 3)
    pid = int((site.folder / "pid").read_text())
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(below) == 3
    for one in [pid, *map(int, below if supervisors else [])]:
        os.kill(one, signal.SIGKILL)
    assert engine.empty()
    if not supervisors:  # their last step is rm
        until(lambda: [words[0] for words in engine.asked()].count("rm") == 3)
    until(lambda: not site.steps(job))
    gone(site, job)
    assert site.state(job) == "RUNNING"
    site.run("scancel", job)


def test_a_step_that_slurm_kills_leaves_no_container(site: Site, engine: Engine) -> None:
    """Scancel of a step immediately kills all its processes, including the engine's client."""
    plan = site.plan({"trtllm": {"env": {"STANDIN_FAULTS": SLOW}}, **DOCKER})
    job = site.submit(site.script(site.command("run", str(plan), "--concurrency", "1")))
    until(lambda: answered(site) >= 3)
    site.run("scancel", f"{job}.{step_id(site, job)}")
    assert site.ended(job) == ("FAILED", 4)
    assert engine.names() == []


def test_a_cancelled_job_leaves_no_container(site: Site, engine: Engine) -> None:
    """Its steps are killed immediately, and no new one can be started."""
    faults = json.dumps({"ignore_sigterm": True, "latency_s": 0.5})
    plan = site.plan({"trtllm": {"env": {"STANDIN_FAULTS": faults}}, **DOCKER, "stop_timeout_s": 2})
    job = site.submit(site.script(site.command("run", str(plan), "--concurrency", "1")))
    until(lambda: answered(site) >= 3)
    site.run("scancel", job)
    assert engine.empty()
    assert site.ended(job)[0] == "CANCELLED"
    gone(site, job)


def step_id(site: Site, job: str) -> str:
    """Return the number of the only step that is a server."""
    listed = site.run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j").stdout
    (line,) = [line for line in listed.splitlines() if "trtllm-" in line]
    return line.split()[0].partition(".")[2]
