"""Test ranks on a real SLURM: with both wrappers of TensorRT-LLM or real MPI.

The wrappers are imitations.
"""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mpi.test_ranks import ranks, variables
from tests.slurm.cluster import NODES, missing
from tests.slurm.conftest import SLOW, answered, gone, result, until

if reason := missing():
    pytest.skip(reason, allow_module_level=True)


pytestmark = [pytest.mark.slow, pytest.mark.slurm]

WRAPPER = "trtllm-llmapi-launch"
SHOWN = {"command": "shown-trtllm-serve"}
EXAMPLE = {
    "context_servers": {"num_instances": 2, "tp": 2},
    "generation_servers": {"tp": 4},
    **SHOWN,
}
"""The example of docs/clusters.md: two servers share the first node, the third has the second."""
HERE = {"context_servers": {"num_instances": 2}, "generation_servers": {"tp": 2}, **SHOWN}
"""Three servers on one node."""
WIDE = {"trtllm": {"tp": 8, **SHOWN}}
"""One server on two nodes."""
WITH = {"wrapper": WRAPPER}
OVER = r"(ended with exit code 1|is dead, though its process lives,) after \S+ s"
"""Its log may show the error before SLURM has ended the step."""


def log(site, name):
    return (site.out / f"logs/{name}.log").read_text()


def address(site, name):
    (found,) = re.findall(r"leader at (\S+)", log(site, name))
    return str(found)


# What the imitations do


def test_the_imitations_differ_as_the_wrappers_do(site, wrapper):
    """After a server's failure, the newest wrapper passes the exit code on.

    With the older one srun does not end.
    """
    (site.folder / "fails").write_text("echo failed; touch $SITE/over; exit 7\n")
    srun = (
        f"srun --overlap --nodes=1 --ntasks=2 --mpi=none --kill-on-bad-exit=1 {WRAPPER} bash"
        " $SITE/fails"
    )
    job = site.submit(site.script(f"{srun}; echo srun: $?"))
    until(lambda: (site.folder / "over").exists() and "leader at" in site.output(job))
    if wrapper == "newest":
        until(lambda: "srun: 7" in site.output(job))
    else:
        assert not site.ended_within(job, 5)
        assert "srun:" not in site.output(job)
        site.run("scancel", job)
    site.ended(job)


def test_two_of_the_older_wrapper_choose_the_same_port_and_of_the_newest_none_does(site, wrapper):
    (site.folder / "waits").write_text(
        "until [ -e $SITE/enough ] || [ $SECONDS -gt 120 ]; do sleep 0.1; done\n"
    )
    srun = (
        f"srun --overlap --nodes=1 --nodelist={NODES[0]} --ntasks=1 --mpi=none {WRAPPER} bash"
        " $SITE/waits"
    )
    job = site.submit(
        site.script(
            *(f"({srun} > $SITE/{name} 2>&1; echo $? > $SITE/{name}.code) &" for name in "ab"),
            "wait",
        )
    )
    logs = [site.folder / name for name in "ab"]

    def leading():
        return sum("leader at" in file.read_text() for file in logs if file.exists())

    if wrapper == "newest":
        until(lambda: leading() == 2)
    else:
        until(
            lambda: any(
                "Address already in use" in file.read_text() for file in logs if file.exists()
            )
        )
    assert leading() == (2 if wrapper == "newest" else 1)
    (site.folder / "enough").touch()
    assert site.ended(job)[0] == "COMPLETED"


# Servers by them


@pytest.mark.parametrize(
    ("launcher", "led"),
    [
        pytest.param({"trtllm_disaggregated": EXAMPLE}, (), id="the example"),
        pytest.param(
            {"trtllm_disaggregated": EXAMPLE, **WITH},
            ("context_0", "context_1", "generation_0"),
            id="wrapped",
        ),
        pytest.param(
            {"trtllm_disaggregated": HERE, **WITH},
            ("context_0", "context_1", "generation_0"),
            id="one node, wrapped",
        ),
        pytest.param(WIDE, ("trtllm",), id="two nodes"),
    ],
)
def test_servers_work_with_either(site, wrapper, launcher, led):
    job = site.submit(site.script(site.command("run", str(site.plan(launcher)))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    logs = [file.stem for file in (site.out / "logs").glob("*.log")]
    assert {name for name in logs if "leader at" in log(site, name)} == {*led}
    addresses = [address(site, name) for name in led]
    assert len({*addresses}) == len(led)
    kind = "ipc:///tmp/serve-eval-ranks-" if wrapper == "newest" else "tcp://"
    assert all(one.startswith(kind) for one in addresses)
    for name in logs:
        assert "0 variables of SLURM or MPI" in log(site, name)
    gone(site, job)


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        pytest.param({"trtllm_disaggregated": EXAMPLE, **WITH}, "generation_0", id="wrapped"),
        pytest.param(WIDE, "trtllm", id="two nodes"),
    ],
)
def test_a_server_without_its_model_ends_the_run(site, wrapper, launcher, name):
    faults = [
        {"no_model": True, "when": {"config": "generation_servers.yaml"}},
        {"no_model": True, "when": {"gpus": "0,1,2,3"}},
    ]
    job = site.submit(
        site.script(site.command("run", str(site.plan(launcher)))),
        STANDIN_FAULTS=json.dumps(faults),
    )
    assert site.ended(job) == ("FAILED", 4), site.output(job)
    assert re.search(f"{name} {OVER}: its model was not found", site.output(job))
    gone(site, job)


@pytest.mark.parametrize("given", [WITH, {}], ids=["wrapped", "the example"])
def test_a_server_with_a_config_that_it_does_not_know_ends_the_run(site, wrapper, given):
    sides = {
        **EXAMPLE,
        "context_servers": {"num_instances": 2, "tp": 2, "config": {"no_such_key": 1}},
    }
    job = site.submit(
        site.script(site.command("run", str(site.plan({"trtllm_disaggregated": sides, **given}))))
    )
    assert site.ended(job) == ("FAILED", 4), site.output(job)
    assert re.search(f"context_[01] {OVER}: its config has a key", site.output(job))
    gone(site, job)


def test_ranks_end_with_the_server_of_the_first_of_them(site, wrapper):
    faults = json.dumps({"crash_after": 30})
    job = site.submit(site.script(site.command("run", str(site.plan(WIDE)))), STANDIN_FAULTS=faults)
    assert site.ended(job) == ("FAILED", 4)
    assert re.search(
        "trtllm ended with exit code 1 after .*: one of its ranks ended", site.output(job)
    )
    gone(site, job)
    until(lambda: not living(site), 20)


def test_a_server_ends_with_any_of_its_ranks(site, wrapper):
    """The rank is on the other node."""
    job = site.submit(
        site.script(site.command("run", str(site.plan(WIDE)), "--concurrency", "1")),
        STANDIN_FAULTS=SLOW,
    )
    until(lambda: answered(site) >= 3)
    ranks = living(site)
    assert len(ranks) == 8
    os.kill(ranks[6], signal.SIGKILL)
    assert site.ended(job) == ("FAILED", 4)
    assert re.search(
        "trtllm ended with signal 9 after .*: one of its ranks ended", site.output(job)
    )
    assert f"srun: error: {NODES[1]}: task 6:" in site.output(job)
    gone(site, job)
    until(lambda: not living(site), 20)


def living(site):
    """Return the living rank processes by rank."""
    files = {
        int(file.name.rpartition("-")[2]): file for file in site.folder.glob("llmapi-*/rank-*")
    }
    pids = {rank: int(file.read_text()) for rank, file in sorted(files.items())}
    return {rank: pid for rank, pid in pids.items() if Path(f"/proc/{pid}").exists()}


ENOUGH = {"OMPI_MCA_rmaps_base_oversubscribe": "1"}
"""Without it, Open MPI 4 starts no more ranks than there are cores."""
RANK, SERVER = "mpi4py.futures.server", "-P\0-m\0serve_eval.launchers._standin"
DAEMONS = {"pypi": "prte", "debian": "orted"}


@pytest.fixture(params=["pypi", "debian"])
def mpi(request, site):
    """Return the MPI of the site's image."""
    given = variables(request.param)
    path = os.pathsep.join([site.environ["PATH"], *given.pop("PATH").split(os.pathsep)])
    site.environ.update(given, **ENOUGH, PATH=path, TMPDIR=str(site.folder))
    return str(request.param)


def log_mpi_ranks(site, name):
    return site.out / f"logs/{name}.log"


def processes(site, word=""):
    """Return the living processes of the site that have the word on their command lines."""
    wanted, found = f"SITE={site.folder}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                words, variables = (
                    (folder / "cmdline").read_bytes(),
                    (folder / "environ").read_bytes(),
                )
                if word.encode() in words and wanted in variables.split(b"\0"):
                    found.append(int(folder.name))
    return found


def daemons(site, mpi):
    name = DAEMONS[mpi]
    return [
        pid
        for pid in processes(site, name)
        if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].endswith(name)
    ]


@pytest.mark.parametrize(
    ("launcher", "sizes"),
    [
        pytest.param(
            {"trtllm": {"tp": 4, "command": "shown-trtllm-serve"}}, {"trtllm": 4}, id="four ranks"
        ),
        pytest.param({"trtllm_disaggregated": {}}, {"context_0": 1, "generation_0": 1}, id="1+1"),
    ],
)
def test_mpi_spawns_the_ranks_of_a_step(site, mpi, launcher, sizes):
    job = site.submit(site.script(site.command("run", str(site.plan(launcher)))))
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    for name, size in sizes.items():
        text = log_mpi_ranks(site, name).read_text()
        assert f"Open MPI v{'5' if mpi == 'pypi' else '4.1'}" in text
        assert sorted(rank for rank, of, _ in ranks(log_mpi_ranks(site, name)) if of == size) == [
            *range(size)
        ]
        assert text.count("Finished server process") == 1
        assert "Traceback" not in text
    assert "are left" not in site.output(job)
    gone(site, job)
    assert not processes(site)


@pytest.mark.parametrize("who", ["server", "tool", "job"])
def test_no_rank_is_left(site, mpi, who):
    """A batch script continues after its tool.

    Open MPI 5's daemon, which would end the ranks, hangs. That of 4.1 leaves the session of its
    server, so a SLURM that knows processes by their parents does not find it.
    """
    run = site.command("run", str(site.plan({"stop_timeout_s": 2})), "--concurrency", "1")
    job = site.submit(
        site.script(f"{run} & echo $! > {site.folder}/pid; wait $!; sleep 100"), STANDIN_FAULTS=SLOW
    )
    until(lambda: answered(site) >= 3)
    [_] = processes(site, RANK)
    [daemon] = daemons(site, mpi)
    if mpi == "pypi":
        os.kill(daemon, signal.SIGSTOP)
    if who == "job":
        site.run("scancel", job)
    else:
        tool = int((site.folder / "pid").read_text())
        os.kill(tool if who == "tool" else processes(site, SERVER)[0], signal.SIGKILL)
    if who == "server":
        until(lambda: "trtllm ended with signal 9" in site.output(job), 20)
    until(lambda: not processes(site, RANK) and not daemons(site, mpi) and not site.servers(), 20)
    if who != "job":
        until(lambda: not site.steps(job), 20)
        assert site.state(job) == "RUNNING"
        site.run("scancel", job)
    site.ended(job)
