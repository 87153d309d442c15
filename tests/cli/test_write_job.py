"""Write SLURM jobs of runs and suites, with imitations of SLURM's commands; tests/slurm has a real
one.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from serve_eval.cli._write_job import KEPT
from serve_eval.cli.serve import _describe, _resolve
from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.schema import Endpoint, Shard
from serve_eval.workflows.servers import Held
from serve_eval.workflows.suite.file import read as read_suite
from serve_eval.yaml_source import read
from tests.cli.command import serve_eval


@pytest.fixture
def flags(data_root):
    flags = ["run", "--base-url", "host:8000", "--model", "m", "--tasks", "gsm8k"]
    return [*flags, "--dataset-root", str(data_root), "--limit", "20", "--no-reference"]


@pytest.fixture(autouse=True)
def slurm(tmp_path, monkeypatch):
    """Put sinfo and sbatch on the PATH: of a cluster with GPUs, which refuses the partition no."""
    folder = tmp_path / "bin"
    folder.mkdir()
    refuses = "echo 'sbatch: error: invalid partition' >&2; exit 1"
    scripts = {
        "sinfo": "echo gpu:h100:8",
        "sbatch": 'echo "$@" >> $0.asked\n'
        f'if grep -q partition=no "$2"; then {refuses}; fi\necho "sbatch: Job 1 to start" >&2',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def _last(folder):
    """Return the words of the last line of a job script."""
    return shlex.split((folder / "job.sbatch").read_text().splitlines()[-1])


def test_a_job_runs_the_plan_that_was_given(flags, tmp_path):
    folder = tmp_path / "my job"
    serve_eval(
        *flags,
        "--write-job",
        folder,
        "--sbatch-arg=-p",
        "--sbatch-arg=big",
        exits=0,
        prints=f"sbatch '{folder}/job.sbatch'",
    )
    asked = resolve(read(folder / "plan.yaml", ValueError).value, {}, {}).plan
    options = {"tasks": ["gsm8k"], "base_url": "host:8000", "model": "m", "limit": 20}
    given = resolve({**options, "no_reference": True, "dataset_root": flags[8]}, {}, {}).plan
    assert asked == given
    words = ["exec", sys.executable, "-P", "-m", "serve_eval", "run"]
    assert _last(folder) == [*words, f"{folder}/plan.yaml", "-o", f"{folder}/run"]
    script = (folder / "job.sbatch").read_text()
    assert "#SBATCH -p big\n" in script
    assert f"#SBATCH --chdir={Path.cwd()}\n" in script
    assert not (folder / "run").exists()


def test_an_array_asks_a_shard_in_each_task(flags, tmp_path):
    folder = tmp_path / "job"
    serve_eval(
        *flags,
        "--write-job",
        folder,
        "--job-array",
        "4",
        "--allow-code-execution",
        exits=0,
        prints=f"merge {folder}/shards/* -o {folder}/run",
    )
    assert "#SBATCH --array=1-4\n" in (folder / "job.sbatch").read_text()
    shard = ["--shard", "auto/4", "-o", f"{folder}/shards/$SLURM_ARRAY_TASK_ID"]
    assert _last(folder)[7:] == [*shard, "--allow-code-execution"]
    content = read(folder / "plan.yaml", ValueError).value
    plan = resolve(content, {"shard": "auto/4"}, {"SLURM_ARRAY_TASK_ID": "4"}).plan
    assert plan.shard == Shard(4, 4)


def test_the_job_has_the_folder_and_the_flags_that_were_given(flags, tmp_path):
    more = ["-o", tmp_path / "out", "--strict", "--rerun", "never"]
    serve_eval(*flags, *more, "--write-job", tmp_path / "job", exits=0)
    words = _last(tmp_path / "job")[7:]
    assert words == ["--strict", "--rerun", "never", "-o", f"{tmp_path}/out"]
    array = serve_eval(*flags, *more, "--write-job", tmp_path / "job", "--job-array", "2")
    assert f"merge --strict {tmp_path}/job/shards/* -o {tmp_path}/out" in array.stdout
    assert "sbatch --dependency=afterany:JOB" in array.stdout


def test_variables_of_the_time_of_submission_do_not_change_the_plan(flags, tmp_path):
    """Keys, and variables that are no options, reach the job."""
    serve_eval(*flags, "--write-job", tmp_path / "job", exits=0)
    *_, forget, _ = (tmp_path / "job/job.sbatch").read_text().splitlines()
    environ = {"SERVE_EVAL_TASKS": "mmlu", "SERVE_EVAL_OUTPUT_DIR": "a b", "OPENAI_API_KEY": "k"}
    kept = {"SERVE_EVAL_PASS_ENV": "A", "SERVE_EVAL_LOCK_DIR": "/l", "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(
        ["bash", "-euc", f"{forget}; env"], env={**environ, **kept}, capture_output=True, text=True
    )
    found = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert {name for name in found if name.startswith("SERVE_EVAL_")} == {
        "SERVE_EVAL_PASS_ENV",
        "SERVE_EVAL_LOCK_DIR",
    }
    assert found["OPENAI_API_KEY"] == "k"


def test_no_variable_of_an_option_is_kept():
    told = serve_eval("run --help-all").stdout
    flags = {f"--{name.lower().replace('_', '-')}" for name in ("TASKS", *KEPT)}
    assert {flag for flag in flags if f"{flag} " in told} == {"--tasks"}


def test_sbatch_checks_the_script(flags, slurm, tmp_path):
    folder = tmp_path / "job"
    (slurm / "sinfo").write_text("#!/bin/sh\necho '(null)'\n")
    gpus = ["--launcher", "trtllm", "--set", "launcher.tp=2"]
    asked = [word for word in flags if word not in ("--base-url", "host:8000")]
    serve_eval(*asked, *gpus, "--write-job", folder, exits=0, prints="sbatch: Job 1 to start")
    assert (slurm / "sbatch.asked").read_text() == f"--test-only {folder}/job.sbatch\n"
    script = (folder / "job.sbatch").read_text()
    assert "--exclusive" in script
    assert "gpus" not in script  # this cluster knows none
    refused = serve_eval(
        *flags, "--write-job", folder, "--sbatch-arg=--partition=no", exits=2, tells="refuses"
    )
    assert "invalid partition" in refused.stderr


def test_without_sbatch_the_script_is_not_checked(flags, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = serve_eval(*flags, "--write-job", tmp_path / "job")
    assert "SLURM's commands are not here, so the script was not checked" in done.stdout


def test_a_cluster_that_does_not_answer_refuses_nothing(flags, slurm, tmp_path):
    (slurm / "sinfo").write_text("#!/bin/sh\necho 'cannot contact controller' >&2; exit 1\n")
    serve_eval(
        *flags,
        "--write-job",
        tmp_path / "job",
        exits=0,
        prints="so the script was not checked: cannot contact controller",
    )
    assert not (slurm / "sbatch.asked").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--job-array", "4"], "need --write-job DIR"),
        (["--sbatch-arg=-p"], "need --write-job DIR"),
        (["--write-job", "job", "--job-array", "0"], "must be 1 or more"),
        (["--write-job", "job", "--job-array", "21"], "fewer than the 21 shards"),
        (["--write-job", "job", "--job-array", "2", "--shard", "1/2"], "is a shard already"),
        (["--write-job", "job", "--dry-run"], "--dry-run and --write-job contradict"),
        (["--write-job", "job", "--reuse"], "--reuse and --write-job contradict"),
        (["--write-job", "a\nb"], "cannot be written into a job script"),
        (["--write-job", "job", "--sbatch-arg=--export=API_KEY=x"], "must not contain a secret"),
        (["--write-job", "job", "--sbatch-arg=:"], "heterogeneous jobs are not supported"),
        (["--write-job", "job", "--tasks", "aime", "--dataset-root", "/no"], "aime"),
    ],
)
def test_what_a_run_would_refuse_is_refused_before_a_job_is_written(
    flags, tmp_path, monkeypatch, more, message
):
    monkeypatch.chdir(tmp_path)
    serve_eval(*flags, *more, exits=2, tells=message)
    assert not (tmp_path / "job").exists()


def test_a_suite_is_a_job_too(data_root, tmp_path):
    file = tmp_path / "nightly.yaml"
    file.write_text(
        f"""
defaults: {{dataset_root: {data_root}, no_reference: true, limit: 5}}
matrix:
  model: [org/a, {{model: org/b, attributes: {{size: 8B}}}}]
  endpoint: ["h:1", {{name: trtllm, tp: 4}}]
  tasks: [gsm8k, mmlu]
waivers: [{{match: {{model: org/a}}, reason: issue 12, until: 2031-01-31}}]
"""
    )
    folder = tmp_path / "job"
    serve_eval(f"run {file} --write-job {folder}", exits=0)
    assert _last(folder)[5:] == ["run", f"{folder}/plan.yaml", "-o", f"{folder}/run"]
    asked = read_suite(file, {})
    assert {run.task_label for run in asked.runs} == {"gsm8k", "mmlu"}
    assert read_suite(folder / "plan.yaml", {}) == asked
    assert asked.waivers[0].until == date(2031, 1, 31)
    assert "#SBATCH --gpus-per-node=4\n" in (folder / "job.sbatch").read_text()
    refused = serve_eval(f"run {file} --write-job {folder} --job-array 2")
    assert "a suite has no shards" in refused.stderr
    with_folder = serve_eval(f"run --resume {folder} --write-job {folder}")
    assert "leave out --resume" in with_folder.stderr


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_dry_run_shows_commands_and_files_and_starts_nothing(tmp_path):
    settings = ["--set", "launcher.config={max_num_tokens: 1}", "--set", "launcher.gpus=[3]"]
    said = serve_eval("serve trtllm --model org/m --dry-run", *settings)
    assert said.stdout.splitlines() == [
        "files:",
        "mkdir -p logs",
        "cat > logs/trtllm.yaml <<'END'",
        "max_num_tokens: 1",
        "END",
        "commands:",
        (
            "  env CUDA_VISIBLE_DEVICES=3 trtllm-serve serve org/m --host 127.0.0.1 --port 8000"
            " --config logs/trtllm.yaml"
        ),
        "nothing was started",
    ]
    assert not (tmp_path / "state").exists()


def test_the_launcher_of_a_plan_is_taken_with_its_lines(tmp_path):
    (plan := tmp_path / "plan.yaml").write_text(
        "model: m\ntasks: [gsm8k]\nlauncher: {name: trtllm, tp: 2}\n"
    )
    found = _resolve(str(plan), "other", ["launcher.pp=2"])
    assert (found.model, found.tasks, found.launcher.options) == ("other", (), {"tp": 2, "pp": 2})
    plan.write_text("model: m\nlauncher: {name: trtllm, tpp: 2}\n")
    with pytest.raises(PlanError, match=r"plan\.yaml:2: launcher\.tpp: unknown option"):
        _resolve(str(plan), None, None)
    plan.write_text("- m\n")
    with pytest.raises(PlanError, match="expected a mapping"):
        _resolve(str(plan), None, None)


@pytest.mark.parametrize(
    ("launcher", "tasks"),
    [("embedded", ["word_problems"]), ("trtllm_disaggregated", ["gsm8k", "mmlu"])],
)
def test_the_command_that_is_told_is_one_that_can_be_run(launcher, tasks):
    url = "http://127.0.0.1:1/v1"
    held = Held(
        id="0a",
        state="ready",
        launcher=launcher,
        model="org/m",
        pid=1,
        began="",
        since="",
        log_dir="/logs",
        patience_s=1.0,
        endpoint=Endpoint(base_url=url),
    )
    told = dict(
        line.split(":", 1) for line in _describe(held, launcher, detached=True).splitlines()
    )
    words = told["evaluate"].split()
    assert words[:2] == ["serve-eval", "run"]
    flags = {
        name[2:].replace("-", "_"): value
        for name, value in zip(words[2::2], words[3::2], strict=True)
    }
    plan = resolve({}, {**flags, "tasks": flags["tasks"].split(",")}, {}).plan
    assert (flags["base_url"], plan.model, [task.name for task in plan.tasks]) == (
        url,
        "org/m",
        tasks,
    )


def test_the_list_names_the_folder_that_a_server_was_started_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = serve_eval("serve embedded --detach", exits=0)
    number = re.findall(r"^id: +(\w+)$", started.stdout, re.MULTILINE)[0]
    listed = serve_eval("serve --list -v").stdout
    told = json.loads(serve_eval("serve --list --json").stdout)
    [command] = told["commands"]
    stopped = serve_eval(*command.split()[1:], exits=0)
    assert stopped.stdout.startswith(
        f" STOPPED   {number}  embedded: embedded at http://127.0.0.1:"
    )
    assert listed.startswith(f" READY   {number}  embedded: embedded at http://127.0.0.1:")
    [server] = told["result"]["servers"]
    assert (server["id"], server["state"], server["started_in"]) == (number, "ready", str(tmp_path))
    assert f"  {tmp_path}  {server['log_dir']}\n" in listed, listed
    assert serve_eval("serve --list -q").stdout.startswith(" NO SERVERS ")


def test_of_the_settings_in_the_environment_those_of_the_launcher_count(
    monkeypatch,
):
    monkeypatch.setenv("SERVE_EVAL_SET", "gsm8k.num_fewshot=3\nlauncher.tp=2\n")
    assert _resolve("trtllm", "m", None).launcher.options == {"tp": 2}
    assert _resolve("trtllm", "m", ["launcher.pp=2"]).launcher.options == {"pp": 2}


@pytest.mark.parametrize(
    "arguments", ["", "trtllm --list", "trtllm --stop all", "--list --stop all"]
)
def test_one_thing_is_done_at_a_time(arguments):
    serve_eval(
        f"serve {arguments}", exits=2, tells="give one of: a launcher, a plan file, --list, --stop"
    )


def test_nothing_is_held_at_first():
    nothing = " NO SERVERS   this machine  no servers are running\n"
    assert serve_eval("serve --list").stdout == nothing
    ended = serve_eval("serve --stop all")
    assert (ended.returncode, ended.stdout) == (0, nothing)
    serve_eval(
        "serve --stop 0a1b2c3d",
        exits=2,
        tells="no servers 0a1b2c3d run on this machine; running: none",
    )


def test_a_folder_that_cannot_be_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").touch()
    serve_eval(
        f"serve trtllm --model m -o {tmp_path}/file", exits=2, tells="cannot write: File exists"
    )
