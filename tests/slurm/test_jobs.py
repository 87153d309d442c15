"""Submit the jobs that `--write-job` writes to a real SLURM, also side by side."""

import json
import shlex
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers._slurm.allocation import find_running
from tests.slurm.cluster import CPUS, MEMORY_MB, NODES, cluster, missing
from tests.slurm.conftest import Site, until

if reason := missing():
    pytest.skip(reason, allow_module_level=True)


pytestmark = [pytest.mark.slow, pytest.mark.slurm]

LAUNCHER = {"wrapper": "", "gpus_per_node": 4}
TIMES = ("started_at", "wall_s", "loads", "endpoint")
"""Fields of a report that are times, or that describe each session and its servers."""


def _write(site, *words, plan):
    """Write a job and return what was printed."""
    done = site.run(*site.command(words[0], str(plan), *words[1:]).split())
    assert done.returncode == 0, done.stderr
    return done.stdout


def _report(folder):
    return json.loads((folder / "report.json").read_text())


def _without_times(report):
    kept = {name: value for name, value in report.items() if name not in TIMES}
    for task in kept["tasks"]:
        task["traffic"] = {k: v for k, v in task["traffic"].items() if not k.endswith("_s")}
    return kept


def _log(folder):
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))


def test_a_written_job_is_taken_runs_and_resumes(site):
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


def test_an_array_of_four_merges_to_one_run(site):
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


def test_the_shards_of_an_array_draw_one_order(site):
    parts = site.folder / "parts"
    plan = site.folder / "plan.yaml"
    asked = {"tasks": ["gsm8k"], "dataset_root": site.environ["DATA_ROOT"], "limit": 30}
    plan.write_text(json.dumps({"launcher": "simulated", "no_reference": True, **asked}))
    _write(site, "run", "--write-job", str(parts), "--job-array", "3", plan=plan)
    array = site.submit(parts / "job.sbatch")
    until(lambda: not site.run("squeue", "-h", f"--jobs={array}").stdout.strip(), 120)
    seeds = {(parts / f"shards/{k}/order.json").read_text() for k in (1, 2, 3)}
    assert len(seeds) == 1, _log(parts)


def test_a_suite_is_submitted_too(site):
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


def test_a_heterogeneous_job_is_refused_by_name(site):
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


SLOW = json.dumps({"latency_s": 0.3})


def write(site, folder, plan, *words):
    """Write a job and return what was printed."""
    line = shlex.split(site.command("run", str(plan), "--write-job", str(folder), *words))
    done = site.run(*line)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stdout
    return done.stdout


def log(folder):
    return "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))


def wait(site, job):
    until(lambda: not site.run("squeue", "-h", f"--jobs={job}").stdout.strip(), 240)


def test_a_task_with_the_id_of_its_array_has_its_own_nodes(site, monkeypatch):
    """With that id, squeue lists the nodes of all tasks."""
    script = site.script("sleep 60", nodes=1)
    done = site.run("sbatch", "--parsable", "--array=1-2", str(script))
    array = done.stdout.strip()
    listed = ("squeue", "-h", f"--jobs={array}", "--states=RUNNING", "--format=%A %N")
    until(lambda: len(site.run(*listed).stdout.split()) == 4)
    words = site.run(*listed).stdout.split()
    places = dict(zip(words[::2], words[1::2], strict=True))
    monkeypatch.setenv("SLURM_CONF", site.environ["SLURM_CONF"])
    for job, node in places.items():
        found = find_running(None, 4, {"SLURM_JOB_ID": job})
        assert found.nodes == (node,)
    site.run("scancel", array)
    assert array in places


def test_the_tasks_of_an_array_run_side_by_side_and_are_merged_by_a_job(site):
    """One task waits meanwhile. The GPUs of a node are as sinfo tells."""
    folder = site.folder / "50% of it's job"
    printed = write(site, folder, site.plan({"wrapper": ""}), "--job-array", "3")
    assert "#SBATCH --gpus-per-node=4\n" in (folder / "job.sbatch").read_text()
    array = site.submit(folder / "job.sbatch", STANDIN_FAULTS=SLOW)
    merge = next(line for line in printed.splitlines() if " --wrap " in line)
    words = [word.replace("JOB", array) for word in shlex.split(merge)]
    joined = site.run(words[0], "--parsable", f"--output={folder}/merge.log", *words[1:])
    assert joined.returncode == 0, joined.stderr
    wait(site, array)
    assert site.ended(joined.stdout.strip()) == ("COMPLETED", 0), log(folder)
    places = [
        json.loads((folder / f"shards/{k}/report.json").read_text())["endpoint"]["base_url"]
        for k in (1, 2, 3)
    ]
    assert {place.split("/")[2].partition(":")[0] for place in places} == {*NODES}
    assert log(folder).count(f"job {array}, steps named") == 1
    report = json.loads((folder / "run/report.json").read_text())
    assert (report["tasks"][0]["result"]["value"], report["exit_code"]) == (75.0, 0)
    assert "are left" not in log(folder)
    assert not site.servers()


def test_a_heterogeneous_job_is_refused_from_outside(site):
    script = site.folder / "het.sh"
    options = f"--nodes=1 --time=5 --output={site.folder}/%j.out"
    script.write_text(
        f"#!/bin/bash\n#SBATCH {options}\n#SBATCH hetjob\n#SBATCH {options}\nsleep 60\n"
    )
    job = site.submit(script)
    until(lambda: site.state(job) == "RUNNING")
    words = site.command("run", str(site.plan({"wrapper": ""}))).split()
    done = site.run(*words, SLURM_JOB_ID=job)
    site.run("scancel", job)
    assert done.returncode == LaunchError.exit_code
    assert f"job {job} is heterogeneous: heterogeneous jobs are not supported" in done.stderr


@pytest.mark.parametrize(
    ("words", "comment"),
    [
        (["--comment=two words"], "two words"),
        (["--comment", "two words"], "two words"),
        (["--comment two words"], "two words"),
        (['--comment=it\'s "so" # \\ $HOME `x`'], 'it\'s "so" # \\ $HOME `x`'),
        (["--comment=a#b"], "a#b"),
        (["--comment=\\"], "\\"),
        (["--comment=ä [1-2]*?{};&|<>!~"], "ä [1-2]*?{};&|<>!~"),
        (["-p all", "-J", "my job", "--comment= x "], " x"),
    ],
)
def test_sbatch_reads_the_value_that_was_given(site, words, comment):
    folder = site.folder / "50% of it's job"
    given = [f"--sbatch-arg={word}" for word in [*words, "--hold"]]
    plan = site.plan({"wrapper": ""})
    write(site, folder, plan, *given)
    job = site.submit(folder / "job.sbatch")
    shown = site.run("scontrol", "show", "job", job).stdout
    site.run("scancel", job)
    name = "my job" if "my job" in str(words) else "serve-eval"
    line = next(line for line in shown.splitlines() if "Comment=" in line)
    assert line.strip().removeprefix("Comment=") == comment
    out = next(line for line in shown.splitlines() if "StdOut=" in line)
    assert out.strip() == f"StdOut={str(folder).replace('%', '%%')}/{name}-{job}.log"


@pytest.mark.parametrize("launcher", ["slurm", "trtllm"])
def test_a_slurm_without_gpus_gives_whole_nodes_with_their_memory(site, launcher):
    """It refuses to be asked for GPUs, and without --mem=0 gives a job half of the memory."""
    folder = site.folder / "job"
    options = {"name": launcher}
    if launcher == "slurm":
        options |= {"wrapper": "", "gpus_per_node": 4}
    with cluster(plain=True) as environ:
        plain = Site(site.folder, {**site.environ, "SLURM_CONF": environ["SLURM_CONF"]})
        write(plain, folder, plain.plan(options))
        asked = plain.run("sbatch", "--test-only", "--gpus-per-node=1", str(folder / "job.sbatch"))
        assert "Invalid generic resource" in asked.stderr
        job = plain.submit(folder / "job.sbatch")
        assert plain.ended(job) == ("COMPLETED", 0), log(folder)
        shown = plain.run("scontrol", "show", "job", job).stdout
    assert f"TRES=cpu={CPUS},mem={2 * CPUS * MEMORY_MB}M," in shown
    report = json.loads((folder / "run/report.json").read_text())
    assert (report["tasks"][0]["result"]["value"], report["exit_code"]) == (75.0, 0)


def test_the_memory_of_the_user_replaces_ours(site):
    plan = site.plan({"wrapper": ""})
    write(site, site.folder / "job", plan, "--sbatch-arg=--mem-per-gpu=0")


def test_a_job_is_written_for_the_nodes_that_a_plan_names(site):
    folder = site.folder / "job"
    write(site, folder, site.plan({"wrapper": "", "nodes": [NODES[1]]}))
    job = site.submit(folder / "job.sbatch")
    assert site.ended(job) == ("COMPLETED", 0), log(folder)
    report = json.loads((folder / "run/report.json").read_text())
    assert f"//{NODES[1]}:" in report["endpoint"]["base_url"]
