"""Test the text of job scripts and the scripts around ranks, without SLURM.

The requirements are in rank_tasks; `make test-slurm` runs the scripts as tasks of a real SLURM.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import LaunchError, PlanError
from serve_eval.evaluation.launch import job_size
from serve_eval.launchers._slurm import allocation
from serve_eval.launchers._slurm.job_script import job_script, sbatch_lines
from serve_eval.launchers._slurm.srun import (
    HELD,
    HOLDER,
    PORTS_EACH,
    SCRIPT,
    count_held_ports,
    files,
)
from serve_eval.schema import JobSize, Plan, Spec

WIDE = {"trtllm": {"tp": 16}}
"""A server that is wider than a node."""


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ([], []),
        (["--partition=big", "--time=2:00:00"], ["--partition=big", "--time=2:00:00"]),
        (["-p", "big", "--exclusive"], ["-p big", "--exclusive"]),
        (["--comment=two words"], ['"--comment=two words"']),
        (["--comment", "two words", "-A", "me"], ['--comment "two words"', "-A me"]),
        (['--comment="a" \\b'], ['"--comment=\\"a\\" \\\\b"']),
        (["--comment=# no comment"], ['"--comment=# no comment"']),
        (["--licenses=a:2,b:1"], ["--licenses=a:2,b:1"]),
        (["-p big", "--time 2:00:00"], ["-p big", "--time 2:00:00"]),
        (["--comment two words"], ['--comment "two words"']),
        (["-Jtwo words"], ['"-Jtwo words"']),
    ],
)
def test_each_option_has_a_line(arguments, lines):
    assert sbatch_lines(arguments) == lines


@given(st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1))
def test_any_value_is_quoted_as_a_shell_reads_double_quotes(value):
    word = f"--comment={value}"
    if word.isprintable():
        assert [shlex.split(line) for line in sbatch_lines([word])] == [[word]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes=1", ":", "--nodes=2"], "':': heterogeneous jobs are not supported"),
        (["hetjob"], "'hetjob': heterogeneous"),
        (["packjob"], "'packjob': heterogeneous"),
        (["--het-group=1"], "'--het-group=1': heterogeneous"),
        (["batch"], "'batch' is no option"),
        (["--comment=a\nb"], "characters that a script cannot have"),
        (["--comment=a\x00b"], "characters that a script cannot have"),
        ([""], "is empty"),
        (["--export=ALL,HF_TOKEN=abc"], "HF_TOKEN: a plan must not contain a secret"),
    ],
)
def test_what_a_script_cannot_have_is_refused(arguments, message):
    with pytest.raises(PlanError) as caught:
        sbatch_lines(arguments)
    assert message in str(caught.value)


def test_a_script_asks_for_what_the_servers_need():
    size = JobSize(nodes=2, gpus_per_node=4, tasks_per_node=4, whole_nodes=True, notes=("here",))
    assert job_script(size, "serve-eval run plan.yaml", sbatch_args=["--time=9"]).splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=serve-eval",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --time=9",
        "# here",
        "# Leave out --gpus-per-node if SLURM manages no GPUs; account, partition, time:"
        " launcher.sbatch_args.",
        "# After a time limit or scancel, submit it again: finished answers are kept.",
        "exec serve-eval run plan.yaml",
    ]
    without = job_script(size, "x", manages_gpus=False)
    assert "gpus-per-node" not in without
    known = job_script(size, "x", manages_gpus=True)
    assert "#SBATCH --gpus-per-node=4" in known
    assert "Leave out" not in known


@pytest.mark.parametrize("given", ["--mem=9G", "--mem-per-gpu=9G", "--mem-per-cpu 9G", "--mem"])
def test_memory_is_asked_for_once(given):
    """Sbatch refuses --mem with --mem-per-gpu."""
    text = job_script(JobSize(whole_nodes=True), "x", sbatch_args=[given])
    assert "--mem=0" not in text
    assert "--mem=0" in job_script(JobSize(whole_nodes=True), "x", sbatch_args=["--comment=--mem"])


@pytest.mark.parametrize("given", [["--array=1-4"], ["-a", "1-4"], ["-a1-4"], ["--array", "1"]])
def test_an_array_that_would_run_one_plan_many_times_is_refused(given):
    with pytest.raises(PlanError, match="every task would run the whole plan"):
        job_script(JobSize(), "x", sbatch_args=given)
    assert "--array=1-4%2" in job_script(JobSize(), "x", sbatch_args=["--array=1-4%2"], array=4)


def test_a_note_is_one_comment():
    text = job_script(JobSize(notes=("n1: a\necho b",)), "x", before=["first"])
    assert "# n1: a echo b\n" in text
    assert text.endswith("first\nexec x\n")


def test_an_array_has_a_log_of_each_task_in_a_folder_of_any_name():
    text = job_script(JobSize(), "x", array=4, log_dir=Path("/a b/50%"), work_dir=Path("/w"))
    assert "#SBATCH --array=1-4\n#SBATCH --chdir=/w\n" in text
    assert '#SBATCH "--output=/a b/50%%/%x-%A_%a.log"' in text
    assert "%x-%j.log" in job_script(JobSize(), "x", log_dir=Path("/l"))


@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        (Spec(name="external", options={"base_url": "http://h:1/v1"}), JobSize()),
        (Spec(name="simulated"), JobSize()),
        (
            Spec(name="trtllm", options={"tp": 2, "pp": 2}),
            JobSize(gpus_per_node=4, whole_nodes=True),
        ),
        (
            Spec(
                name="trtllm_disaggregated",
                options={"context_servers": {"num_instances": 2}, "generation_servers": {"tp": 4}},
            ),
            JobSize(gpus_per_node=6, whole_nodes=True),
        ),
        (
            Spec(name="container", options={"image": "i:1", "trtllm": {"tp": 8}}),
            JobSize(gpus_per_node=8, whole_nodes=True),
        ),
        (
            Spec(name="transformers_serve", options={"gpus": [0, 1]}),
            JobSize(gpus_per_node=2, whole_nodes=True),
        ),
        (
            Spec(name="transformers_serve"),
            JobSize(notes=("The plan names no GPUs (launcher.gpus), so the job has none.",)),
        ),
    ],
)
def test_a_job_is_as_large_as_its_servers(launcher, size):
    assert job_size(Plan(model="org/m", launcher=launcher, tasks=())) == size


@pytest.mark.parametrize(
    ("listed", "nodes", "gpus"),
    [
        ("gpu:h100:4(S:0-1)\n(null)\ngpu:8", 4, 4),
        ("gpu:a:2,gpu:b:6\n", 2, 8),
        ("(null)", 2, 8),
        (None, 2, 8),
    ],
)
def test_a_new_job_has_as_many_gpus_as_this_cluster_has_on_a_node(
    tmp_path, monkeypatch, listed, nodes, gpus
):
    """The job and the GPUs around us do not matter."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "elsewhere")
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    if listed is not None:
        (tmp_path / "sinfo").write_text(f"#!/bin/sh\necho '{listed}'\n")
        (tmp_path / "sinfo").chmod(0o755)
    size = job_size(Plan(model="m", launcher=Spec(name="slurm", options=WIDE), tasks=()))
    assert (size.nodes, size.gpus_per_node) == (nodes, gpus)
    local = job_size(Plan(model="m", launcher=Spec(name="trtllm", options={"tp": 2}), tasks=()))
    assert local.gpus_per_node == 2


def test_the_options_of_a_launcher_are_checked():
    wrong = Spec(name="container", options={"image": "i", "run_args": ["-d"]})
    with pytest.raises(PlanError, match="takes the container away"):
        job_size(Plan(model="m", launcher=wrong, tasks=()))
    few = Spec(name="trtllm", options={"tp": 2, "gpus": [0]})
    with pytest.raises(PlanError, match="2 GPUs are needed"):
        job_size(Plan(model="m", launcher=few, tasks=()))
    nowhere = Spec(name="transformers_serve", options={"port": 70000})
    with pytest.raises(PlanError, match="70000 is out of range"):
        job_size(Plan(model="m", launcher=nowhere, tasks=()))


def test_a_job_of_the_launcher_slurm_has_its_nodes():
    options = {"trtllm": {"tp": 16}, "gpus_per_node": 4, "sbatch_args": ["-p", "big"]}
    size = job_size(Plan(model="m", launcher=Spec(name="slurm", options=options), tasks=()))
    assert (size.nodes, size.gpus_per_node, size.tasks_per_node) == (4, 4, 4)
    assert size.sbatch_args == ("-p", "big")
    assert size.notes[0].startswith("node1: trtllm GPU 0,1,2,3")


@pytest.mark.parametrize(
    ("environ", "refused"),
    [
        ({"SLURM_HET_SIZE": "2"}, True),
        ({"SLURM_PACK_SIZE": "3"}, True),
        ({"SLURM_HET_SIZE": "1"}, False),
        ({}, False),
    ],
)
def test_a_heterogeneous_job_is_named(environ, refused):
    if not refused:
        allocation._check_one_part(environ)
        return
    with pytest.raises(LaunchError, match="parts: heterogeneous jobs are not supported"):
        allocation._check_one_part(environ)


# The leader is a sleep. After the server has failed, the older wrapper stays and the newer one
# stops the leader.
OLDER = (
    'set -e\ncommand=$*\necho "$TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR" > at\n($command) &\nsleep 60\n'
)
NEWER = (
    'echo "$TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR" > at\n("$@"; code=$?; touch stop; exit $code)'
    " &\nwait $!\nexit $?\n"
)
LEADERLESS = "(eval $*) &\nexit 9\n"
WORKER = "touch started\nsleep 60\n"


@pytest.fixture(params=[OLDER, NEWER], ids=["older", "newer"])
def wrapper(request, tmp_path):
    return wrapping(tmp_path, request.param)


def wrapping(folder, text):
    for path, script in files(1, folder).items():
        path.write_text(script)
    file = folder / "wrapper"
    file.write_text(f"#!/bin/bash\n{text}")
    file.chmod(0o755)
    return str(file)


class Task:
    """ranks.sh in its own session, like a task."""

    def __init__(self, wrapper, *server, rank=0):
        self.folder = Path(wrapper).parent
        self.process = subprocess.Popen(
            ["bash", str(self.folder / SCRIPT), wrapper, *server],
            cwd=self.folder,
            env={**os.environ, "SLURM_PROCID": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def members(self):
        """Return the processes of its session, without zombies."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                words = stat.read_text().rpartition(")")[2].split()
                if int(words[3]) == self.process.pid and words[0] != "Z":
                    found.append(int(stat.parent.name))
        return found

    def children(self):
        pid = self.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def terminate(self):
        """Send SIGTERM to every process, as scancel --signal=TERM does."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def until(self, name):
        deadline = time.monotonic() + 20
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ended(self):
        try:
            out, _ = self.process.communicate(timeout=20)
            deadline = time.monotonic() + 10
            while self.members():  # the processes that were killed last may need a moment
                assert time.monotonic() < deadline
                time.sleep(0.02)
        finally:
            for pid in self.members():
                os.kill(pid, signal.SIGKILL)
        return self.process.returncode, out


def test_it_ends_with_the_exit_code_of_its_server(wrapper):
    assert Task(wrapper, "bash", "-c", "echo 'a  \"b'; exit 5").ended() == (5, 'a  "b\n')
    folder = Path((Path(wrapper).parent / "at").read_text().strip().removeprefix("ipc://")).parent
    assert folder.name.startswith("serve-eval-ranks-")
    assert not folder.exists()


@pytest.mark.slow
def test_it_waits_for_a_server_that_was_asked_to_end(wrapper):
    """Its wrapper is gone by then. A stop request to all is not a failure of any."""
    task = Task(
        wrapper,
        "bash",
        "-c",
        "trap 'sleep 1; echo over; exit 3' TERM; touch up; while :; do sleep 0.1; done",
    )
    task.until("up")
    task.terminate()
    code, out = task.ended()
    assert code == 0
    assert "over" in out


def test_a_server_does_not_outlive_its_leader(tmp_path):
    assert Task(wrapping(tmp_path, LEADERLESS), "sleep", "60").ended()[0] == 9


def test_a_wrapper_that_is_not_there_ends_it(tmp_path):
    wrapping(tmp_path, "")
    assert Task(str(tmp_path / "nothing"), "true").ended()[0] == 127


def test_another_rank_is_asked_to_end(tmp_path):
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    task.terminate()
    assert task.ended()[0] == 0


def test_another_rank_may_be_asked_after_its_wrapper(tmp_path):
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    (wrapper_pid,) = task.children()
    os.kill(wrapper_pid, signal.SIGTERM)
    while task.children() in ([], [wrapper_pid]):
        assert task.process.poll() is None
        time.sleep(0.02)
    os.kill(task.process.pid, signal.SIGTERM)
    assert task.ended()[0] == 0


def test_another_rank_that_is_killed_fails(tmp_path):
    task = Task(wrapping(tmp_path, WORKER), "server", rank=1)
    task.until("started")
    (wrapper_pid,) = task.children()
    os.kill(wrapper_pid, signal.SIGKILL)
    code, out = task.ended()
    assert code == 137, out


# Held ports

SEARCH = """
import socket
port = 10012
while True:
    one = socket.socket()
    try:
        one.bind(("", port))
        break
    except OSError:
        port += 1
print(port)
"""
"""The search of older wrappers."""


def test_ports_are_held_that_others_found_before(tmp_path):
    """Ports are held even if others hold them as well."""
    (tmp_path / HOLDER).write_text(HELD)
    words = [sys.executable, str(tmp_path / HOLDER), str(PORTS_EACH)]
    holds = "import sys; print(flush=True); sys.stdin.read()"
    late = (
        "import socket; one = socket.create_server(('127.0.0.1', 10012 + 3));"
        " print(one.getsockname()[1])"
    )
    with subprocess.Popen(
        [*words, *words, sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None
        other.stdout.readline()
        with subprocess.Popen(
            [*words, sys.executable, "-c", f"{holds}\n{SEARCH}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as one:
            one.stdout.readline()
            other.stdin.close()
            other.wait(20)
            bound = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True)
            assert bound.stdout == "10015\n", bound.stderr
            found, _ = one.communicate(timeout=20)
    assert int(found) >= 10012 + PORTS_EACH
    assert int(
        subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True).stdout
    ) < int(found)


def test_each_wrapped_server_of_a_node_has_ports_of_its_own():
    assert [*count_held_ports([0, 0, 1, 0, 0], [True, True, True, True, False])] == [
        0,
        16,
        0,
        32,
        48,
    ]
    assert [*count_held_ports([0, 0], [False, False])] == [0, 0]
