"""Test servers as steps of SLURM with stand-ins for SLURM's commands.

The command lines of plans are in golden/. `make test-slurm` uses a real SLURM.
"""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import slurm
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._machine import lock_files
from serve_eval.launchers._process import environment
from serve_eval.launchers._slurm import allocation, running_steps, srun, step_container
from serve_eval.launchers._slurm.allocation import around_us, find_running, node_count, spots
from serve_eval.launchers._slurm.srun import SlurmSteps, step
from serve_eval.launchers._slurm.step_container import SlurmContainer
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.containers import TIED
from serve_eval.launchers._trtllm.servers import Part
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext

CONTEXT = LaunchContext(model="org/model", log_dir=Path("/out/logs"))


@pytest.fixture(autouse=True)
def _no_job(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_"))]:
        monkeypatch.delenv(name)


def checked(**options):
    return registry.check_options(slurm.launch, options, "launcher")


def lines(**options):
    return [
        shlex.join(line)
        for line in slurm.commands(CONTEXT, slurm.SlurmOptions(**checked(**options)))
    ]


def written(**options):
    return {
        path.name: text
        for path, text in slurm.files(CONTEXT, slurm.SlurmOptions(**checked(**options))).items()
    }


# The plan


def test_servers_that_share_a_node_have_what_helps_there():
    [context, _, _] = lines(trtllm_disaggregated={})
    assert "env CUDA_VISIBLE_DEVICES=0 'UCX_TLS=^ib' bash -c" in context


def test_the_files_name_the_nodes_and_the_script_asks_for_as_many():
    sides = {"context_servers": {"num_instances": 2, "tp": 4}, "generation_servers": {"tp": 8}}
    files = written(
        trtllm_disaggregated=sides,
        nodes=["gpu07", "gpu09"],
        sbatch_args=["--partition=big", "--time=2:00:00"],
    )
    front = yaml.safe_load(files["orchestrator.yaml"])
    assert (front["hostname"], front["port"]) == ("gpu07", 8000)
    assert front["context_servers"]["urls"] == ["gpu07:8001", "gpu07:8002"]
    assert front["generation_servers"]["urls"] == ["gpu09:8003"]
    assert files["slurm.sbatch"].splitlines()[:12] == [
        "#!/bin/bash",
        "#SBATCH --job-name=serve-eval",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --nodelist=gpu07,gpu09",
        "#SBATCH --partition=big",
        "#SBATCH --time=2:00:00",
        (
            "# gpu07: context_0 GPU 0,1,2,3 port 8001; context_1 GPU 4,5,6,7 port 8002;"
            " orchestrator port 8000"
        ),
        "# gpu09: generation_0 GPU 0,1,2,3,4,5,6,7 port 8003",
    ]


def test_discovery_names_one_cluster_on_every_node():
    files = written(trtllm_disaggregated={"discovery": True, "generation_servers": {"tp": 8}})
    sections = [
        yaml.safe_load(text)["disagg_cluster"]
        for name, text in files.items()
        if name.endswith(".yaml")
    ]
    assert len(sections) == 3
    assert all(s["cluster_uri"] == "http://node1:8000" and s == sections[0] for s in sections)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trtllm": {}, "trtllm_disaggregated": {}}, "two ways to serve a model"),
        ({"trtllm": {"tp": 9}}, "9 ranks, which cannot be spread evenly over 2 nodes with 8 GPUs"),
        (
            {"trtllm": {"tp": 16}, "wrapper": ""},
            "16 ranks on 2 nodes, which only a wrapper can start",
        ),
        ({"trtllm": {"tp": 16}, "nodes": ["gpu07"]}, "2 nodes are needed, and there are 1: gpu07"),
        (
            {"srun_args": ["--het-group=1"]},
            "srun_args: '--het-group=1': heterogeneous jobs are not",
        ),
        ({"srun_args": ["--nodes=3"]}, "srun_args: --nodes is set by the launcher"),
        (
            {"srun_args": ["--export=ALL,HF_TOKEN=abc"]},
            "srun_args: --export=ALL,HF_TOKEN: a plan must not contain a secret",
        ),
        (
            {"container": {"image": "i", "args": ["--container-env=API_KEY=x"]}},
            "args: .*API_KEY: a plan must not contain a secret",
        ),
        ({"trtllm_disaggregated": {"discovery": True}, "bind": "all"}, "0.0.0.0 cannot be reached"),
        ({"container": {"image": ""}}, "container.image: required"),
        ({"container": {"image": "i", "mounts": ["/models"]}}, "/models: give SOURCE:TARGET"),
        (
            {"container": {"image": "i", "args": ["--mpi=none"]}},
            "container.args: --mpi=none is set",
        ),
        ({"container": {"image": "i", "ipc": "private"}}, "container.ipc: not an option of pyxis"),
        (
            {"container": {"image": "i", "engine": "docker", "args": ["-x"]}},
            "container.args: not an option of docker",
        ),
        ({"container": {"image": "", "engine": "docker"}}, "container.image: the name of an image"),
        (
            {"container": {"image": "i", "engine": "podman", "run_args": ["-d"]}},
            "container.run_args: -d is set",
        ),
        (
            {"container": {"image": "i", "engine": "docker"}, "trtllm": {"model": "./m"}},
            "full paths only",
        ),
        (
            {"container": {"image": "i", "engine": "docker"}, "wrapper": "w"},
            "w starts ranks.*a docker or podman container",
        ),
        (
            {"container": {"image": "i", "engine": "docker"}, "trtllm": {"tp": 16}},
            "16 ranks on 2 nodes, but a docker or podman contain",
        ),
        ({"gpus_per_node": 0}, "gpus_per_node: is 0"),
        ({"trtllm": {"env": {"HF_TOKEN": "x"}}}, "a plan must not contain a secret"),
        ({"trtllm": {"tpp": 2}}, "trtllm.tpp: unknown option. Did you mean launcher.trtllm.tp"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(PlanError, match=message):
        lines(**options)


@pytest.mark.parametrize("wrapper", [None, "", "trtllm-llmapi-launch"])
def test_blanks_are_no_matter(wrapper):
    assert (
        "serve '/my models/m' --host" in lines(trtllm={"model": "/my models/m"}, wrapper=wrapper)[0]
    )


def test_a_wrapper_is_for_servers_of_several_nodes_unless_it_is_given():
    sides = {"context_servers": {"num_instances": 2}, "generation_servers": {"tp": 16}}
    of_itself = lines(trtllm_disaggregated=sides)
    assert ["ranks.sh" in line for line in of_itself] == [False, False, True, False]
    assert [line.count("--mpi=pmix") for line in of_itself] == [0, 0, 1, 0]
    assert ["--cpu-bind=none" in line for line in of_itself] == [True, True, False, False]
    given = lines(trtllm_disaggregated=sides, wrapper="w")
    holding = "python3 -I /out/logs/held_ports.py 16 bash /out/logs/ranks.sh w trtllm-serve"
    assert [holding in line for line in given] == [False, True, False, False]
    assert ["bash /out/logs/ranks.sh w trtllm-serve" in line for line in given] == [
        True,
        True,
        True,
        False,
    ]
    assert "held_ports.py" not in written(trtllm_disaggregated=sides)
    assert {"held_ports.py", "ranks.sh"} < {*written(trtllm_disaggregated=sides, wrapper="w")}
    assert "--mpi=pmix" in given[0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 8))
def test_no_gpu_is_given_twice_and_a_node_has_no_more_than_it_has(widths, per_node):
    parts = [Part(name=f"s{i}", kind="x", width=width) for i, width in enumerate(widths)]
    if any(width % -(-width // per_node) for width in widths):
        with pytest.raises(PlanError, match="evenly"):
            spots(parts, per_node)
        return
    found = spots(parts, per_node)
    taken = [(node, gpu) for spot in found for node in spot.nodes for gpu in spot.gpus]
    assert len(taken) == len(set(taken)) == sum(widths)
    assert all(0 <= int(gpu) < per_node for _, gpu in taken)
    assert all(
        len(spot.nodes) == -(-width // per_node) for spot, width in zip(found, widths, strict=True)
    )
    assert {node for node, _ in taken} == set(range(node_count(found)))


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            (
                "slurmstepd-n1: error: *** STEP 3.3 ON n1 CANCELLED AT 2026-11-21T16:10:41 DUE TO"
                " TIME LIMIT ***"
            ),
            "time limit",
        ),
        (
            "slurmstepd-n1: error: *** STEP 1.5 ON n1 CANCELLED AT 2026-11-21T16:09:06 ***",
            "SLURM cancelled it",
        ),
        (
            (
                "6: Killed\nsrun: error: n2: task 6: Exited with exit code 137\n"
                "srun: launch/slurm: _step_signal: Terminating StepId=3.1\n"
                "0: slurmstepd-n1: error: *** STEP 3.1 ON n1 CANCELLED AT 2026-11-23T09:11:33 ***"
            ),
            "one of its ranks ended, and SLURM ended all others",
        ),
        (
            "srun: unrecognized option '--container-image=x'",
            "this SLURM does not support container images",
        ),
        (
            "srun: error: Invalid MPI type 'pmix_v9', --mpi=list for acceptable types",
            "no such MPI plug-in",
        ),
    ],
)
def test_what_slurm_writes_into_a_log_is_understood(log, told):
    found = cause(log)
    assert told in found[0]


# The allocation

STANDINS = {
    "squeue": (
        """if [[ $* == *--steps* ]]; then cat "$STANDIN_AT/steps"
elif [[ $STANDIN_SQUEUE ]]; then echo "$STANDIN_SQUEUE"
else echo "7 7 ${STANDIN_JOB:-RUNNING} gpu[1-2]"; fi"""
    ),
    "scontrol": 'echo "${STANDIN_HOSTS:-gpu1 gpu2}" | tr " " "\\n"',
    "sinfo": "printf 'gpu:h200:4(S:0-1)\\ngpu:6,nic:2\\n'",
    "scancel": (
        """cd "$STANDIN_AT"; echo "$*" >> cancelled
if [[ $1 == --signal=* && -e pid ]]; then kill -"${1#*=}" "$(cat pid)"; sed -i "/^$2 /d" steps; fi
if [[ $1 != --signal=* ]]; then sed -i "/^$1 /d" steps; fi"""
    ),
    "srun": (
        """while [[ $1 == --* ]]; do case $1 in --job-name=*) name=${1#*=};; esac; shift; done
if [[ $name != help-* && $name != end-* ]]; then
    echo "7.0 $name" > "$STANDIN_AT/steps"; echo $$ > "$STANDIN_AT/pid"
fi
exec "$@"
"""
    ),
}
"""The parts that a launch uses, for one server. Only scancel sends signals to srun's step."""


@pytest.fixture
def commands_of_slurm(tmp_path, monkeypatch):
    """Put a folder with stand-ins for SLURM's commands first on PATH."""
    for name, text in STANDINS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_AT", str(tmp_path))
    monkeypatch.setenv("SERVE_EVAL_PASS_ENV", "STANDIN_*")
    return tmp_path


PLACED = {
    "job": "7",
    "tag": "ab",
    "asked_on": "n",
    "log_dir": Path("/l"),
    "stop_timeout_s": 5.0,
}
"""The other values that a step gets."""
INSIDE = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[1-2]"}


def test_an_allocation_is_what_slurm_says(commands_of_slurm):
    found = find_running(None, None, INSIDE)
    assert (found.job, found.nodes, found.gpus_per_node) == ("7", ("gpu1", "gpu2"), 4)
    batch = find_running(None, None, {**INSIDE, "SLURM_GPUS_ON_NODE": "6"})
    assert batch.gpus_per_node == 6
    part = find_running(["gpu2"], 2, INSIDE)
    assert (part.job, part.nodes, part.gpus_per_node) == ("7", ("gpu2",), 2)
    assert around_us(None, None, INSIDE).nodes == ("gpu1", "gpu2")
    assert around_us(None, None, {}).nodes == ()
    assert find_running(None, None, {}) is None


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("8 7_1 RUNNING gpu9\n7 7_3 RUNNING gpu[1-2]\n9 7_2 RUNNING gpu8", "gpu[1-2]"),
        ("7 7_[3-4%2] PENDING\n8 7_1 RUNNING gpu9", "PENDING"),
        ("8 7_1 RUNNING gpu9", ""),
        ("7 7+0 RUNNING gpu1\n8 7+1 RUNNING gpu2", "heterogeneous"),
    ],
)
def test_a_task_of_an_array_has_its_own_nodes(commands_of_slurm, monkeypatch, listed, found):
    """One task has the id of its array, with which SLURM lists all of them."""
    monkeypatch.setenv("STANDIN_SQUEUE", listed)
    if found.startswith("gpu"):
        assert allocation._find_job("7") == ("RUNNING", found)
        assert find_running(None, None, INSIDE) is not None
        return
    told = {"PENDING": "job 7 is pending", "": "job 7 is not known"}.get(found, found)
    with pytest.raises(LaunchError, match=told):
        find_running(None, None, INSIDE)


def test_an_allocation_that_cannot_be_used_is_refused(commands_of_slurm, monkeypatch):
    with pytest.raises(PlanError, match="gpu3: not in the allocation, which has gpu1, gpu2"):
        find_running(["gpu3"], None, INSIDE)
    with pytest.raises(
        LaunchError, match="GPU 4,5 of its node, but the GPUs must be numbered from 0"
    ):
        find_running(
            None, None, {**INSIDE, "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "4,5"}
        )
    monkeypatch.setenv("STANDIN_JOB", "PENDING")
    with pytest.raises(LaunchError, match="job 7 is pending"):
        find_running(None, None, INSIDE)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="srun, squeue, scancel, scontrol, sinfo: not on PATH"):
        find_running(None, None, INSIDE)


def test_outside_of_an_allocation_a_script_is_shown(context):
    async def start():
        async with slurm.launch(context, slurm.SlurmOptions(**checked(trtllm={"tp": 16}))):
            raise AssertionError

    with pytest.raises(
        LaunchError, match=r"this plan needs 2 nodes(?s:.)*#SBATCH --nodes=2"
    ) as caught:
        asyncio.run(start())
    assert "sbatch" in str(caught.value.hint)


async def test_a_launch_runs_its_steps_and_looks_for_what_is_left(
    context,
    said,
    standin,
    commands_of_slurm,
    monkeypatch,
):
    standin()
    monkeypatch.setenv("PATH", f"{commands_of_slurm}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_HOSTS", "127.0.0.1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("OPENAI_API_KEY", "not-to-be-seen")
    options = checked(wrapper="", mpi="none")
    async with slurm.launch(context, slurm.SlurmOptions(**options)) as endpoint:
        step = (commands_of_slurm / "pid").read_text().strip()
        assert "not-to-be-seen" not in Path(f"/proc/{step}/environ").read_text()
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (
                await client.get(endpoint.base_url.removesuffix("/v1") + "/health")
            ).status_code == 200
        with (commands_of_slurm / "steps").open("a") as steps:
            steps.write(f"7.1 left{said[0].rpartition('*')[2]}\n7.2 another\n")
    assert endpoint.info.launcher == "slurm"
    assert said[0].startswith("job 7, steps named *-")
    assert said[1].startswith("127.0.0.1: trtllm GPU 0 port ")
    assert (commands_of_slurm / "cancelled").read_text() == "--signal=URG 7.0\n7.1\n"
    assert not any("warning" in line for line in said)


async def test_a_container_within_a_step_serves_and_is_gone_afterwards(
    context, engine, commands_of_slurm, monkeypatch
):
    monkeypatch.setenv("PATH", f"{commands_of_slurm}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STANDIN_HOSTS", "127.0.0.1")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    async with slurm.launch(
        context, slurm.SlurmOptions(**checked(container={"image": "i", "engine": "docker"}))
    ):
        (name,) = engine.names()
    assert engine.names() == []
    asked = [words for words in engine.asked() if words[0] != "ps"]
    assert [words[0] for words in asked] == ["run", "run", "rm"]
    assert asked[-1] == ["rm", "-f", name]


@pytest.mark.parametrize(
    "command", [["bash", "-c", "trap '' TERM; sleep 60"], ["sleep", "60"]], ids=["deaf", "plain"]
)
def test_a_container_within_a_step_ends_with_its_client(engine, command):
    given = Server(name="s", argv=(*command,), probe=(*command,), place=Place(host="n", port=1))
    container = SlurmContainer(image="i", engine="docker")
    step_of = step(
        step_container.within(given, container, "ab"),
        ["n"],
        0,
        SlurmSteps(container=container),
        **PLACED,
    )
    words = step_of.argv[step_of.argv.index("bash") :]  # the words that srun starts
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as client:
        deadline = time.monotonic() + 10
        while engine.names() != ["serve-eval-ab-s"] and time.monotonic() < deadline:
            time.sleep(0.05)
        assert engine.names() == ["serve-eval-ab-s"]
        assert client.poll() is None
        client.kill()
    assert engine.empty()


ASKED = (
    "while [ -e /proc/$PPID ] && ! ((0x$(sed -n 's/SigCgt:.//p' /proc/$PPID/status) & 0x4000)); do"
    " sleep 0.05; done; kill -TERM $PPID"
)
"""Send SIGTERM to the shell around a server once it can pass the signal on."""


@pytest.mark.parametrize(
    ("server", "code"),
    [("exit 5", 5), (f"trap 'exit 3' TERM; {ASKED}; sleep 9 & wait", 3), ("kill $$", 143)],
)
def test_a_tied_server_gets_sigterm_and_gives_its_exit_code(server, code):
    words = [*srun._alone(contained=True), *TIED, "bash", "-c", server]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as shell:
        try:
            assert shell.wait(20) == code
        finally:  # the processes that end with a container
            os.killpg(shell.pid, signal.SIGKILL)


def test_two_launches_do_not_share_the_nodes_of_a_job(context, commands_of_slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")

    async def start():
        async with slurm.launch(context, slurm.SlurmOptions(**checked(wrapper=""))):
            raise AssertionError

    with (
        lock_files.lock_names(["node-gpu1 of job 7"]),
        pytest.raises(LaunchError, match="node gpu1 of job 7 is used by another launch"),
    ):
        asyncio.run(start())


def test_srun_finds_its_configuration_and_nothing_of_the_job_around_it():
    around = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "0",
        "PMIX_RANK": "0",
        "HOME": "/",
    }
    assert environment.inherit(around) == {"SLURM_CONF": "/etc/slurm.conf", "HOME": "/"}


def test_a_server_does_not_wait_for_ranks_that_another_leads():
    around = {"TLLM_SPAWN_PROXY_PROCESS": "1", "TLLM_LOG_LEVEL": "INFO"}
    assert environment.inherit(around) == {"TLLM_LOG_LEVEL": "INFO"}


# The end of a step


def test_a_step_is_asked_and_then_cancelled(commands_of_slurm):
    (commands_of_slurm / "steps").write_text("5.1 context_0-ab\n5.2 context_1-ab\n")
    running_steps.end("5", "context_1-ab", "URG", 0.2)
    assert (commands_of_slurm / "cancelled").read_text() == "--signal=URG 5.2\n5.2\n"


WITH_A_RANK = """
rank() { trap 'echo the rank is asked' TERM; echo up; while :; do sleep 0.1; done; }
trap 'echo the server is asked; sleep 0.3; exit 5' TERM
rank &
while :; do sleep 0.1; done"""


@pytest.mark.parametrize(
    ("sent", "heard"),
    [
        pytest.param(signal.SIGURG, {"the server is asked"}, id="the end of a run"),
        pytest.param(
            signal.SIGTERM, {"the server is asked", "the rank is asked"}, id="the end of a job"
        ),
    ],
)
def test_the_shell_above_a_server_asks_it_alone_and_ends_as_it_does(tmp_path, sent, heard):
    """A signal for a step reaches all its processes, like one for a process group."""
    words = [*srun._above_the_server(), "bash", "-c", WITH_A_RANK]
    with (out := tmp_path / "out").open("w") as file:
        step = subprocess.Popen(words, stdout=file, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while "up" not in out.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(step.pid, sent)
        assert step.wait(20) == 5
        assert {*out.read_text().splitlines()} == {"up", *heard}
    finally:
        os.killpg(step.pid, signal.SIGKILL)


@pytest.mark.parametrize("sent", [signal.SIGURG, signal.SIGTERM])
def test_a_server_that_dies_of_the_signal_for_all_is_told_so(tmp_path, sent):
    """Ten run at the same time, because bash lost the exit code of most of them."""
    words = [*srun._above_the_server(), "bash", "-c", "echo up; while :; do sleep 0.1; done"]
    outs = [tmp_path / f"{i}" for i in range(10)]
    steps = []
    for out in outs:
        with out.open("w") as file:
            steps.append(subprocess.Popen(words, stdout=file, start_new_session=True))
    deadline = time.monotonic() + 20
    for one, out in zip(steps, outs, strict=True):
        while "up" not in out.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(one.pid, sent)
    assert [one.wait(20) for one in steps] == [143] * 10


@pytest.mark.parametrize(("server", "code"), [("exit 7", 7), ("kill -KILL $$", 137)])
def test_the_shell_above_a_server_passes_its_exit_code_on(server, code):
    assert (
        subprocess.run([*srun._above_the_server(), "bash", "-c", server], timeout=20).returncode
        == code
    )


def test_a_step_that_is_not_there_is_left_alone(commands_of_slurm):
    running_steps.end("5", "context_1-ab", "TERM", 0.2)
    assert not (commands_of_slurm / "cancelled").exists()


@pytest.mark.parametrize("slurm_answers", [True, False])
def test_the_command_that_comes_last_is_run_whatever_slurm_says(
    commands_of_slurm, tmp_path, slurm_answers
):
    (commands_of_slurm / "steps").write_text("5.2 context_1-ab\n")
    if not slurm_answers:
        (commands_of_slurm / "squeue").unlink()
    words = [sys.executable, "-I", running_steps.__file__, "5", "context_1-ab", "TERM", "0"]
    environ = {
        **os.environ,
        "PATH": (
            f"{commands_of_slurm}{os.pathsep}/nowhere" if not slurm_answers else os.environ["PATH"]
        ),
    }
    done = subprocess.run(
        [*words, "/bin/sh", "-c", "echo over; exit 3"], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "over\n")
    assert (commands_of_slurm / "cancelled").exists() == slurm_answers


def test_a_container_is_removed_by_a_step_on_its_node():
    server = Server(
        name="generation_0",
        argv=("docker", "run", "i", "trtllm-serve"),
        probe=("docker", "run", "i", "trtllm-serve", "serve"),
        place=Place(host="gpu2", port=1),
        at_end=("docker", "rm", "-f", "name"),
    )
    steps = SlurmSteps(container=SlurmContainer(image="i", engine="docker"), srun_args=["--mem=0"])
    found = step(server, ["gpu2"], 4, steps, **PLACED)
    assert found.at_end[3:7] == ("7", "generation_0-ab", "TERM", "0")
    assert found.at_end[7:10] == ("srun", "--jobid=7", "--job-name=end-generation_0-ab")
    assert {"--overlap", "--nodelist=gpu2", "--ntasks=1", "--mem=0"} < {*found.at_end}
    assert found.at_end[-4:] == server.at_end
    assert found.to_stop[3:] == ("7", "generation_0-ab", "TERM", "5")


@pytest.mark.parametrize("killed", [False, True])
def test_a_supervisor_asks_by_the_command_that_it_was_given(tmp_path, killed):
    """It also asks when the tool is gone. The server ignores SIGTERM; the command ends it."""
    deaf = "trap 'echo SIGTERM' TERM; echo $$; while [ ! -e stop ]; do sleep 0.02; done; exit 3"
    words = {
        "command": ["bash", "-c", deaf],
        "log_file": str(tmp_path / "log"),
        "to_stop": ["touch", "stop"],
        "at_end": ["touch", "over"],
    }
    code = f"""
import asyncio, json, os, pathlib
from serve_eval.launchers._process.server_process import server_process
async def main():
    words = json.loads({json.dumps(json.dumps(words))})
    async with server_process(words["command"], log_file=pathlib.Path(words["log_file"]),
                              grace_s=20.0, to_stop=words["to_stop"], at_end=words["at_end"]):
        while not pathlib.Path("log").read_text():
            await asyncio.sleep(0.02)
        if {killed}:
            os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, timeout=30, check=not killed
    )
    deadline = time.monotonic() + 10
    while not (tmp_path / "over").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (tmp_path / "over").exists()
    assert "SIGTERM" not in (tmp_path / "log").read_text()
