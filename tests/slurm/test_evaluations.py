"""Test evaluations on two nodes of a real SLURM, from their submission to every end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.conftest import FAKE_ENGINE, Engine
from tests.slurm.cluster import NODES, missing
from tests.slurm.conftest import SLOW, answered, gone, result, until

if reason := missing():
    pytest.skip(reason, allow_module_level=True)


pytestmark = [pytest.mark.slow, pytest.mark.slurm]

BARE = {"wrapper": ""}
WRAPPED = {"wrapper": "trtllm-llmapi-launch"}
SHOWN = {"command": "shown-trtllm-serve"}
SIDES = {
    "context_servers": {"num_instances": 2, "tp": 2},
    "generation_servers": {"num_instances": 2, "tp": 2},
    **SHOWN,
}
FIRST, SECOND = NODES
SPREAD = {
    "context_0": (FIRST, "0,1"),
    "context_1": (FIRST, "2,3"),
    "generation_0": (SECOND, "0,1"),
    "generation_1": (SECOND, "2,3"),
    "orchestrator": (FIRST, None),
}
CASES = [
    pytest.param({"trtllm": SHOWN, **BARE}, {"trtllm": (FIRST, "0")}, id="one server"),
    pytest.param(
        {"trtllm": {"tp": 2, **SHOWN}, **WRAPPED},
        {"trtllm": (FIRST, "0,1")},
        id="two ranks, wrapped",
    ),
    pytest.param(
        {"trtllm": {"tp": 4, "pp": 2, **SHOWN}}, {"trtllm": (FIRST, "0,1,2,3")}, id="two nodes"
    ),
    pytest.param(
        {"trtllm_disaggregated": SHOWN, **BARE},
        {"context_0": (FIRST, "0"), "generation_0": (FIRST, "1"), "orchestrator": (FIRST, None)},
        id="1+1, no wrapper",
    ),
    pytest.param(
        {"trtllm_disaggregated": {"discovery": True, "generation_servers": {"tp": 4}, **SHOWN}},
        {
            "context_0": (FIRST, "0"),
            "generation_0": (SECOND, "0,1,2,3"),
            "orchestrator": (FIRST, None),
        },
        id="1+1 on two nodes, discovery",
    ),
    pytest.param({"trtllm_disaggregated": SIDES, **WRAPPED}, SPREAD, id="2+2, wrapped"),
    pytest.param(
        {"trtllm_disaggregated": {**SIDES, "discovery": True}}, SPREAD, id="2+2, discovery"
    ),
]


def report(site):
    return json.loads((site.out / "report.json").read_text())


@pytest.mark.parametrize(("launcher", "where"), CASES)
def test_a_job_script_that_evaluates(site, launcher, where):
    job = site.submit(site.script(site.command("run", str(site.plan(launcher)))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    (task,) = report(site)["tasks"]
    assert (task["result"]["scored"], task["result"]["value"], task["verdict"]["outcome"]) == (
        80,
        75.0,
        "PASS",
    )
    servers = report(site)["endpoint"]["info"]["servers"]
    assert {name: url.split(":")[1].strip("/") for name, url in servers.items()} == {
        n: w[0] for n, w in where.items()
    }
    for name, (_, gpus) in where.items():
        log = (site.out / f"logs/{name}.log").read_text()
        assert f"given: GPU {gpus or '0,1,2,3'}, 0 variables of SLURM or MPI" in log
    assert "are left" not in site.output(job)
    assert not site.servers()


def test_ranks_are_tasks_of_pmix_on_both_nodes(site):
    job = site.submit(site.script(site.command("run", str(site.plan({"trtllm": {"tp": 8}})))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    log = (site.out / "logs/trtllm.log").read_text()
    for rank in range(8):
        node = NODES[rank // 4]
        assert f"{rank}: rank {rank} of 8 on {node}, GPUs 0,1,2,3, PMIx rank {rank}" in log


DOCKER = {"container": {"image": "image:1", "engine": "docker"}}


@pytest.fixture
def engine(site, monkeypatch):
    """Put `docker` on PATH of the site, with a daemon that belongs to no job."""
    place = site.folder / "docker.sock"
    (client := site.folder / "bin/docker").parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE_ENGINE} {place} "$@"\n')
    client.chmod(0o755)
    words = [sys.executable, "-I", str(FAKE_ENGINE), "daemon", str(place)]
    with subprocess.Popen(words, env=site.environ, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout.readline() == "ready\n"
        site.environ["PATH"] = f"{client.parent}{os.pathsep}{site.environ['PATH']}"
        monkeypatch.setenv("PATH", f"{client.parent}{os.pathsep}{os.environ['PATH']}")
        try:
            yield Engine(place)
        finally:
            daemon.terminate()


def test_a_job_script_that_evaluates_servers_in_containers(site, engine):
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
def test_a_tool_that_is_killed_leaves_no_container(site, engine, supervisors):
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


def test_a_step_that_slurm_kills_leaves_no_container(site, engine):
    """Scancel of a step immediately kills all its processes, including the engine's client."""
    plan = site.plan({"trtllm": {"env": {"STANDIN_FAULTS": SLOW}}, **DOCKER})
    job = site.submit(site.script(site.command("run", str(plan), "--concurrency", "1")))
    until(lambda: answered(site) >= 3)
    site.run("scancel", f"{job}.{step_id(site, job)}")
    assert site.ended(job) == ("FAILED", 4)
    assert engine.names() == []


def test_a_cancelled_job_leaves_no_container(site, engine):
    """Its steps are killed immediately, and no new one can be started."""
    faults = json.dumps({"ignore_sigterm": True, "latency_s": 0.5})
    plan = site.plan({"trtllm": {"env": {"STANDIN_FAULTS": faults}}, **DOCKER, "stop_timeout_s": 2})
    job = site.submit(site.script(site.command("run", str(plan), "--concurrency", "1")))
    until(lambda: answered(site) >= 3)
    site.run("scancel", job)
    assert engine.empty()
    assert site.ended(job)[0] == "CANCELLED"
    gone(site, job)


def step_id(site, job):
    """Return the number of the only step that is a server."""
    listed = site.run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j").stdout
    (line,) = [line for line in listed.splitlines() if "trtllm-" in line]
    return line.split()[0].partition(".")[2]


ONE_AND_ONE = {"trtllm_disaggregated": {}, "mpi": "none", "wrapper": ""}


def slow_job(site, time_limit="10"):
    """Submit a job that soon has answers and needs much longer for all of them."""
    plan = site.plan(ONE_AND_ONE)
    script = site.script(
        site.command("run", str(plan), "--concurrency", "1"), time_limit=time_limit
    )
    job = site.submit(script, STANDIN_FAULTS=SLOW)
    until(lambda: answered(site) >= 3)
    return job, script


def test_a_cancelled_job_is_resumed_in_another_allocation(site):
    job, script = slow_job(site)
    site.run("scancel", job)
    assert site.ended(job)[0] == "CANCELLED"
    gone(site, job)
    had = answered(site)
    assert 3 <= had < 80
    again = site.submit(script)
    assert site.ended(again) == ("COMPLETED", 0), site.output(again)
    assert result(site) == (80, 75.0, "PASS")
    assert answered(site) == 80


def test_a_time_limit_leaves_a_run_that_can_be_resumed(site):
    job, script = slow_job(site, time_limit="1")
    assert site.ended(job)[0] == "TIMEOUT"
    gone(site, job)
    again = site.submit(script)
    assert site.ended(again) == ("COMPLETED", 0), site.output(again)
    assert result(site) == (80, 75.0, "PASS")


def test_a_server_that_dies_ends_the_run_by_its_name(site):
    plan = site.plan({"trtllm_disaggregated": {}})
    faults = json.dumps({"crash_after": 30, "when": {"config": "generation_servers.yaml"}})
    job = site.submit(site.script(site.command("run", str(plan))), STANDIN_FAULTS=faults)
    assert site.ended(job) == ("FAILED", 4)
    assert "generation_0 ended with exit code" in site.output(job)
    gone(site, job)
    assert answered(site) < 80


def test_a_server_that_does_not_end_by_sigterm_is_cancelled(site):
    plan = site.plan({"trtllm": {}, "mpi": "none", "wrapper": "", "stop_timeout_s": 2})
    job = site.submit(
        site.script(site.command("run", str(plan)), "sleep 60"),
        STANDIN_FAULTS=json.dumps({"ignore_sigterm": True}),
    )
    until(lambda: (site.out / "report.json").exists())
    until(lambda: not site.servers(), 20)
    until(lambda: not site.steps(job), 5)
    assert "are left" not in site.output(job)
    site.run("scancel", job)


def test_a_tool_that_is_killed_leaves_no_step(site):
    """The batch script continues, so the end of the job does not end the steps."""
    plan = site.plan(ONE_AND_ONE)
    script = site.script(
        f"{site.command('run', str(plan), '--concurrency', '1')} & echo $! > {site.folder}/pid;"
        " sleep 100"
    )
    job = site.submit(script, STANDIN_FAULTS=SLOW)
    until(lambda: answered(site) >= 3)
    assert len(site.steps(job)) == 3
    os.kill(int((site.folder / "pid").read_text()), signal.SIGKILL)
    until(lambda: not site.servers(), 20)
    until(lambda: not site.steps(job), 20)
    assert site.state(job) == "RUNNING"
    site.run("scancel", job)


def test_ctrl_c_ends_a_run_from_outside_of_the_allocation(site):
    """The client runs outside the allocation and names it."""
    job = site.submit(site.script("sleep 100"))
    until(lambda: site.state(job) == "RUNNING")
    plan = site.plan(ONE_AND_ONE)
    with subprocess.Popen(
        [*site.command("run", str(plan), "--concurrency", "1").split()],
        env={**site.environ, "STANDIN_FAULTS": SLOW, "SLURM_JOB_ID": job},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as tool:
        until(lambda: answered(site) >= 3)
        tool.send_signal(signal.SIGINT)
        out, _ = tool.communicate(timeout=60)
    assert tool.returncode == 130, out
    until(lambda: not site.servers(), 5)
    until(lambda: not site.steps(job), 5)
    site.run("scancel", job)


def test_the_client_runs_as_a_step(site):
    plan = site.plan(ONE_AND_ONE)
    words = site.command("run", str(plan))
    job = site.submit(site.script(f"srun --overlap --nodes=1 --ntasks=1 {words}"))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    gone(site, job)


def test_outside_of_an_allocation_a_script_is_shown_that_works(site):
    plan = site.plan({**ONE_AND_ONE, "gpus_per_node": 4, "sbatch_args": ["--time=5"]})
    words = site.command("run", str(plan)).split()
    done = site.run(*words)
    assert done.returncode == 4
    assert "not inside a SLURM allocation, and this plan needs 1 node;" in done.stderr
    text = done.stderr[done.stderr.index("#!/bin/bash") :].partition("\n\n")[0]
    lines = [line.removeprefix("  ") for line in text.splitlines()]
    script = site.folder / "shown.sh"
    end = next(i for i, line in enumerate(lines) if line.startswith("exec serve-eval"))
    script.write_text("\n".join([*lines[:end], " ".join(["exec", *words])]) + "\n")
    job = site.run(
        "sbatch", "--parsable", f"--output={site.folder}/%j.out", str(script)
    ).stdout.strip()
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"container": {"image": "image.sqsh"}}, "this SLURM does not support container images"),
        ({"mpi": "pmix_v99"}, "this SLURM has no such MPI plug-in"),
        ({"nodes": ["elsewhere"]}, "elsewhere: not in the allocation, which has 127.0.0.1"),
        ({"trtllm": {"tp": 16}}, "4 nodes are needed, and there are 2"),
    ],
)
def test_what_this_slurm_cannot_do_is_told(site, options, told):
    plan = site.plan({"wrapper": "trtllm-llmapi-launch", **options})
    job = site.submit(site.script(site.command("run", str(plan))))
    state, code = site.ended(job)
    assert (state, code in (2, 4)) == ("FAILED", True)
    assert told in site.output(job)


def test_servers_of_a_job_are_held_and_used_by_its_runs(site):
    plan = str(site.plan({"trtllm_disaggregated": {}, "mpi": "none", "wrapper": ""}))
    job = site.submit(
        site.script(
            site.command("serve", plan, "--detach"),
            f"{site.command('run', plan, '--reuse')} || exit 9",
            site.command("serve", "--list"),
            site.command("serve", "--stop", "all"),
        ),
        XDG_STATE_HOME=str(site.folder / "state"),
    )
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    assert "attached" in json.loads((site.out / "report.json").read_text())["endpoint"]["info"]
    gone(site, job)
