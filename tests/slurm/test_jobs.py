"""Submit the jobs that `--write-job` writes to a real SLURM of two nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.cluster import missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.slurm.conftest import Site, until

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

LAUNCHER = {"wrapper": "", "gpus_per_node": 4}
TIMES = ("started_at", "wall_s", "loads", "endpoint")
"""Fields of a report that are times, or that describe each session and its servers."""


def _write(site: Site, *words: str, plan: Path) -> str:
    """Write a job and return what was printed."""
    done = site.run(*site.command(words[0], str(plan), *words[1:]).split())
    assert done.returncode == 0, done.stderr
    return done.stdout


def _report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _without_times(report: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in report.items() if name not in TIMES}
    for task in kept["tasks"]:
        task["traffic"] = {k: v for k, v in task["traffic"].items() if not k.endswith("_s")}
    return kept


def _log(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))


def test_a_written_job_is_taken_runs_and_resumes(site: Site) -> None:
    folder = site.folder / "my job"
    more = ["--sbatch-arg", "--comment=two words", "--sbatch-arg=--time", "--sbatch-arg=10"]
    plan = site.plan(LAUNCHER)
    done = site.run(*site.command("run", str(plan)).split(), "--write-job", str(folder), *more)
    assert done.returncode == 0, done.stderr
    assert "sbatch: Job" in done.stdout
    assert "to start at" in done.stdout
    script = folder / "job.sbatch"
    tried = site.run("sbatch", "--test-only", str(script))
    assert (tried.returncode, "to start at" in tried.stderr) == (0, True)
    job = site.submit(script)
    assert "Comment=two words" in site.run("scontrol", "show", "job", job).stdout
    assert site.ended(job) == ("COMPLETED", 0), _log(folder)
    report = _report(folder / "run")
    assert (report["tasks"][0]["result"]["value"], report["exit_code"]) == (75.0, 0)
    assert report["endpoint"]["info"]["launcher"] == "slurm"
    journal = folder / "run/samples/gsm8k.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:50]))
    again = site.submit(script)
    assert site.ended(again) == ("COMPLETED", 0), _log(folder)
    assert [load["finished"] for load in _report(folder / "run")["loads"]] == [80, 30]
    assert not site.servers()


def test_an_array_of_four_merges_to_one_run(site: Site) -> None:
    plan = site.plan(LAUNCHER, limits={"order_seed": 11})
    one, parts = site.folder / "one", site.folder / "parts"
    printed = _write(site, "run", "--write-job", str(one), plan=plan)
    assert "to start at" in printed
    printed = _write(site, "run", "--write-job", str(parts), "--job-array", "4", plan=plan)
    merge = next(line for line in printed.splitlines() if " merge " in line)
    tried = site.run("sbatch", "--test-only", str(parts / "job.sbatch"))
    assert tried.returncode == 0, tried.stderr
    alone, array = site.submit(one / "job.sbatch"), site.submit(parts / "job.sbatch")
    assert site.ended(alone) == ("COMPLETED", 0), _log(one)
    until(lambda: not site.run("squeue", "-h", f"--jobs={array}").stdout.strip(), 240)
    early = site.run("bash", "-c", merge.replace("/shards/*", "/shards/[123]"))
    assert (early.returncode, "shard 4 of 4 is missing" in early.stderr) == (2, True)
    merged = site.run("bash", "-c", merge)
    assert merged.returncode == 0, merged.stderr + _log(parts)
    assert _without_times(_report(parts / "run")) == _without_times(_report(one / "run"))
    scores = [
        sorted((folder / "run/scores/gsm8k.jsonl").read_bytes().splitlines())
        for folder in (one, parts)
    ]
    assert scores[0] == scores[1]
    assert len(_report(parts / "run")["loads"]) == 4
    assert "different random orders" not in str(_report(parts / "run"))


def test_the_shards_of_an_array_draw_one_order(site: Site) -> None:
    parts = site.folder / "parts"
    plan = site.folder / "plan.yaml"
    asked = {"tasks": ["gsm8k"], "dataset_root": site.environ["DATA_ROOT"], "limit": 30}
    plan.write_text(json.dumps({"launcher": "simulated", "no_reference": True, **asked}))
    _write(site, "run", "--write-job", str(parts), "--job-array", "3", plan=plan)
    array = site.submit(parts / "job.sbatch")
    until(lambda: not site.run("squeue", "-h", f"--jobs={array}").stdout.strip(), 120)
    seeds = {(parts / f"shards/{k}/order.json").read_text() for k in (1, 2, 3)}
    assert len(seeds) == 1, _log(parts)


def test_a_suite_is_submitted_too(site: Site) -> None:
    folder = site.folder / "suite"
    site.plan(LAUNCHER)
    suite = site.folder / "suite.yaml"
    suite.write_text(
        "plans: [plan.yaml, {plan: plan.yaml, name: again, limits: {concurrency: 3}}]\n"
    )
    _write(site, "run", "--write-job", str(folder), plan=suite)
    tried = site.run("sbatch", "--test-only", str(folder / "job.sbatch"))
    assert tried.returncode == 0, tried.stderr
    job = site.submit(folder / "job.sbatch")
    assert site.ended(job) == ("COMPLETED", 0), _log(folder)
    report = json.loads((folder / "run/suite_report.json").read_text())
    assert [row["outcome"] for row in report["rows"]] == ["PASS", "PASS"]


def test_a_heterogeneous_job_is_refused_by_name(site: Site) -> None:
    plan = site.plan(LAUNCHER)
    script = site.folder / "het.sh"
    script.write_text(
        "\n".join(
            [
                "#!/bin/bash",
                "#SBATCH --nodes=1 --time=5",
                f"#SBATCH --output={site.folder}/%j.out --chdir={Path.cwd()}",
                "#SBATCH hetjob",
                "#SBATCH --nodes=1 --time=5",
                site.command("run", str(plan)),
            ]
        )
        + "\n"
    )
    job = site.submit(script)
    until(lambda: not site.run("squeue", "-h", f"--jobs={job}").stdout.strip(), 120)
    assert "the job is heterogeneous, with 2 parts" in site.output(job)
    assert "heterogeneous jobs are not supported" in site.output(job)
