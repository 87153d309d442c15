"""A real SLURM for the tests of its launcher, and evaluations submitted as a user does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from serve_eval.plan.resolve import resolve
from tests.slurm.cluster import cluster
from tests.standin.deployments import environment, write_answers

MODEL = "my-org/my-model"
BIN = Path(__file__).with_name("bin")
WRAPPERS = ("older", "newest")
"""The imitated versions of TensorRT-LLM's wrapper, each in a folder of BIN."""
SLOW = json.dumps({"latency_s": 0.5})
JOB_S = 240.0


@pytest.fixture(scope="session")
def slurm():
    """Start two nodes with four GPUs each, and yield the environment for SLURM's commands."""
    with cluster() as environ:
        yield environ


@dataclass(frozen=True)
class Site:
    """A folder with a plan and the environment of a user who submits it."""

    folder: Path
    environ: dict[str, str]

    @property
    def out(self):
        return self.folder / "out"

    def plan(self, launcher, **more):
        """Write a plan of 80 questions; the stand-in answers three of four right."""
        file = self.folder / "plan.yaml"
        plan = {
            "model": MODEL,
            "launcher": {"name": "slurm", "stop_timeout_s": 5, "ready_timeout_s": 60, **launcher},
            "tasks": [{"gsm8k": {"num_samples": 80}}],
            "references_dir": str(self.folder / "refs"),
            "dataset_root": self.environ["DATA_ROOT"],
            "output_dir": str(self.out),
            **more,
        }
        file.write_text(yaml.safe_dump(plan))
        write_answers(resolve(plan, {}, {}).plan, self.folder / "answers.jsonl")
        return file

    def command(self, *words):
        """Return a serve-eval command line for a script."""
        return shlex.join([sys.executable, "-m", "serve_eval", *words])

    def script(self, *lines, nodes=2, time_limit="10", name="job.sh"):
        file = self.folder / name
        options = [
            f"--nodes={nodes}",
            "--ntasks-per-node=4",
            "--gpus-per-node=4",
            f"--time={time_limit}",
        ]
        options += [f"--output={self.folder}/%j.out", f"--chdir={Path.cwd()}"]
        file.write_text(
            "\n".join(["#!/bin/bash", *(f"#SBATCH {o}" for o in options), *lines]) + "\n"
        )
        return file

    def run(self, *words, **more):
        return subprocess.run(
            words,
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=JOB_S,
            check=False,
        )

    def submit(self, script, **more):
        """Submit a script and return the job's number."""
        done = self.run("sbatch", "--parsable", str(script), **more)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def output(self, job):
        return (self.folder / f"{job}.out").read_text()

    def state(self, job):
        done = self.run("scontrol", "show", "job", job)
        return next(word for word in done.stdout.split() if word.startswith("JobState=")).partition(
            "="
        )[2]

    def ended(self, job):
        """Wait for the end of a job and return its state and exit code."""
        until(
            lambda: self.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"),
            JOB_S,
        )
        shown = self.run("scontrol", "show", "job", job).stdout.split()
        code = next(word for word in shown if word.startswith("ExitCode=")).partition("=")[2]
        return self.state(job), int(code.partition(":")[0])

    def ended_within(self, job, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.state(job) not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                return True
            time.sleep(0.2)
        return False

    def steps(self, job):
        """Return the names of the steps that SLURM lists, without the batch script's."""
        done = self.run("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%j")
        return [name for name in done.stdout.split() if name not in ("batch", "extern")]

    def servers(self):
        """Return the stand-in processes of this folder, identified by their environment."""
        wanted, found = f"SITE={self.folder}".encode(), []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                try:
                    words = (folder / "cmdline").read_bytes()
                    if b"serve_eval.launchers._standin" in words and wanted in (
                        folder / "environ"
                    ).read_bytes().split(b"\0"):
                        found.append(int(folder.name))
                except OSError:
                    continue
        return found


def until(true, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.1)


@pytest.fixture
def site(slurm, tmp_path, data_root):
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/gsm8k.yaml").write_text(f"{MODEL}: [{{accuracy: 75}}]\n")
    environ = {
        **slurm,
        **environment("v12", answers=tmp_path / "answers.jsonl", STANDIN_POLL_S="0.2"),
        "SLURM_CONF": slurm["SLURM_CONF"],
        "DATA_ROOT": str(data_root),
        "SITE": str(tmp_path),
        "SERVE_EVAL_PASS_ENV": "STANDIN_*, SITE",
    }
    environ["PATH"] = os.pathsep.join([str(BIN), str(BIN / WRAPPERS[-1]), environ["PATH"]])
    return Site(tmp_path, environ)


@pytest.fixture(params=WRAPPERS)
def wrapper(request, site):
    """Return the version of the wrapper in the image of the site."""
    site.environ["PATH"] = f"{BIN / request.param}{os.pathsep}{site.environ['PATH']}"
    return str(request.param)


def answered(site):
    file = site.out / "samples/gsm8k.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def result(site):
    (task,) = json.loads((site.out / "report.json").read_text())["tasks"]
    return task["result"]["scored"], task["result"]["value"], task["verdict"]["outcome"]


def gone(site, job):
    until(lambda: not site.servers(), 20)
    assert not site.steps(job)
