"""Test every end of a run on a real SLURM: no step is left, and finished answers are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.slurm.conftest import Site, until

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

ONE_AND_ONE = {"trtllm_disaggregated": {}, "mpi": "none", "wrapper": ""}
SLOW = json.dumps({"latency_s": 0.5})


def answered(site: Site) -> int:
    file = site.out / "samples/gsm8k.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def result(site: Site) -> tuple[Any, Any, Any]:
    (task,) = json.loads((site.out / "report.json").read_text())["tasks"]
    return task["result"]["scored"], task["result"]["value"], task["verdict"]["outcome"]


def slow_job(site: Site, time_limit: str = "10") -> tuple[str, Path]:
    """Submit a job that soon has answers and needs much longer for all of them."""
    plan = site.plan(ONE_AND_ONE)
    script = site.script(
        site.command("run", str(plan), "--concurrency", "1"), time_limit=time_limit
    )
    job = site.submit(script, STANDIN_FAULTS=SLOW)
    until(lambda: answered(site) >= 3)
    return job, script


def gone(site: Site, job: str) -> None:
    until(lambda: not site.servers(), 20)
    assert not site.steps(job)


def test_a_cancelled_job_is_resumed_in_another_allocation(site: Site) -> None:
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


def test_a_time_limit_leaves_a_run_that_can_be_resumed(site: Site) -> None:
    job, script = slow_job(site, time_limit="1")
    assert site.ended(job)[0] == "TIMEOUT"
    gone(site, job)
    again = site.submit(script)
    assert site.ended(again) == ("COMPLETED", 0), site.output(again)
    assert result(site) == (80, 75.0, "PASS")


def test_a_server_that_dies_ends_the_run_by_its_name(site: Site) -> None:
    plan = site.plan({"trtllm_disaggregated": {}})
    faults = json.dumps({"crash_after": 30, "when": {"config": "generation_servers.yaml"}})
    job = site.submit(site.script(site.command("run", str(plan))), STANDIN_FAULTS=faults)
    assert site.ended(job) == ("FAILED", 4)
    assert "generation_0 ended with exit code" in site.output(job)
    gone(site, job)
    assert answered(site) < 80


def test_a_server_that_does_not_end_by_sigterm_is_cancelled(site: Site) -> None:
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


def test_a_tool_that_is_killed_leaves_no_step(site: Site) -> None:
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


def test_ctrl_c_ends_a_run_from_outside_of_the_allocation(site: Site) -> None:
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


def test_the_client_runs_as_a_step(site: Site) -> None:
    plan = site.plan(ONE_AND_ONE)
    words = site.command("run", str(plan))
    job = site.submit(site.script(f"srun --overlap --nodes=1 --ntasks=1 {words}"))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    gone(site, job)


def test_outside_of_an_allocation_a_script_is_shown_that_works(site: Site) -> None:
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
def test_what_this_slurm_cannot_do_is_told(site: Site, options: dict[str, Any], told: str) -> None:
    plan = site.plan({"wrapper": "trtllm-llmapi-launch", **options})
    job = site.submit(site.script(site.command("run", str(plan))))
    state, code = site.ended(job)
    assert (state, code in (2, 4)) == ("FAILED", True)
    assert told in site.output(job)
