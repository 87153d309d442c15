"""Test servers with ranks of real MPI, from their start to every end.

The daemon leaves the process group.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from serve_eval.errors import LaunchError
from serve_eval.launchers import trtllm
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._machine import local_gpus
from serve_eval.launchers._trtllm.kv_transfer import AS_ROOT
from serve_eval.schema import LaunchContext
from tests.root import ROOT
from tests.standin.deployments import FOLDER as STANDIN
from tests.standin.deployments import environment, free_port, running

FOLDER = Path(os.environ.get("MPIS", ROOT / ".venv-mpi"))
"""The folder in which build.sh installs."""
MARK = "STANDIN_TEST_RUN"
LIBRARY = "libmpi.so.40"
RANK = re.compile(r"MPI rank (\d+) of (\d+): process \[(\d+)\]")
OURS = ("OMPI_", "PMIX_", "PRTE_", "OPAL_", "MPI4PY_")
WAIT_S = 60.0


def libraries():
    """Return the installed MPIs by origin."""
    found = {"pypi": [FOLDER / "lib" / LIBRARY], "debian": [*Path("/usr/lib").glob(f"*/{LIBRARY}")]}
    usable = packages() is not None
    return {
        name: paths[0] for name, paths in found.items() if usable and paths and paths[0].exists()
    }


def packages():
    """Return the folder of mpi4py, which both MPIs need."""
    return next(iter((FOLDER / "lib").glob("python*/site-packages")), None)


def variables(name):
    """Return the variables with which the stand-in starts ranks of that MPI.

    Skips the test if it is not installed.
    """
    there = libraries()
    if name not in there:
        pytest.skip(f"make test-mpi installs the MPI of {name}")
    path = [os.environ["PATH"], *([str(FOLDER / "bin")] if name == "pypi" else [])]
    return {
        "STANDIN_MPI": "1",
        "MPI4PY_LIBMPI": str(there[name]),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{packages()}",
        "PATH": os.pathsep.join(path),
    }


@dataclass(frozen=True)
class Mpi:
    """An MPI, with a mark that all processes started with it carry."""

    name: str
    mark: str
    environ: dict[str, str]

    @property
    def mpirun(self):
        folder = FOLDER / "bin" if self.name == "pypi" else Path("/usr/bin")
        return [str(folder / "mpirun"), "--allow-run-as-root"]

    def processes(self, word=""):
        """Return the living processes with the mark that have the word on their command lines."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with suppress(OSError):
                    marked = f"{MARK}={self.mark}".encode() in (
                        folder / "environ"
                    ).read_bytes().split(b"\0")
                    if marked and word.encode() in (folder / "cmdline").read_bytes():
                        found.append(int(folder.name))
        return found

    def check_all_gone(self):
        until(lambda: not self.processes(), 20, self.processes)


@pytest.fixture
def ordinary_user():
    """Do not change the user, who is root in most cases."""


@pytest.fixture(params=["pypi", "debian"])
def mpi(request, tmp_path, monkeypatch):
    """Set up a user's environment for either MPI, with the stand-in as trtllm-serve."""
    given = variables(request.param)
    for name in [name for name in os.environ if name.startswith((*OURS, "SLURM_", "CUDA_"))]:
        monkeypatch.delenv(name)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    path = os.pathsep.join([str(STANDIN), given.pop("PATH")])
    env = environment(
        **given, XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR=str(tmp_path), PATH=path
    )
    env[MARK] = mark
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(local_gpus, "memory_used", lambda: None)
    found = Mpi(request.param, mark, env)
    try:
        yield found
        found.check_all_gone()
    finally:
        for pid in found.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def said():
    return []


@pytest.fixture
def context(tmp_path, said, mpi):
    return LaunchContext(model="org/model", log_dir=tmp_path / "logs", notify=said.append)


def ranks(log):
    """Return rank, world size and process of each rank from the server's log."""
    text = log.read_text() if log.exists() else ""
    return [(int(rank), int(size), int(pid)) for rank, size, pid in RANK.findall(text)]


def until(true, timeout_s=WAIT_S, about=str):
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, about()
        time.sleep(0.05)


pytestmark = [pytest.mark.slow, pytest.mark.mpi]

ONLY_4, ONLY_5 = (
    pytest.mark.parametrize("mpi", [name], indirect=True) for name in ("debian", "pypi")
)
MORE = (os.cpu_count() or 1) + 1
"""More ranks than this machine has cores."""
ENOUGH = "OMPI_MCA_rmaps_base_oversubscribe"


def start(context, story, **options):
    async def tell():
        async with trtllm.launch(
            context,
            trtllm.TrtllmOptions(**{"ready_timeout_s": 60.0, "stop_timeout_s": 10.0, **options}),
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


@pytest.mark.parametrize("tp", [1, MORE])
def test_ranks_live_and_end_with_their_server(mpi, tp, context, said, monkeypatch):
    """Only a setting of the user gives Open MPI 4 slots for more ranks than cores."""
    monkeypatch.setenv(ENOUGH, "1")
    log = context.log_dir / "trtllm.log"

    async def story(endpoint):
        assert sorted(rank for rank, size, _ in ranks(log) if size == tp) == [*range(tp)]
        return mpi.processes("mpi4py.futures.server")

    found = start(context, story, tp=tp)
    assert sorted(found) == sorted(pid for _, _, pid in ranks(log))
    mpi.check_all_gone()
    text = log.read_text()
    assert f"Open MPI v{'5' if mpi.name == 'pypi' else '4.1'}" in text
    assert text.count("Finished server process") == 1
    assert [line for line in said if "PRTE_ALLOW_RUN_AS_ROOT" in line] or os.geteuid() != 0
    warnings = [line for line in said if "warning" in line and "shows no GPU" not in line]
    assert not warnings + [line for line in said if "not passed on" in line]


@pytest.fixture
def alone(mpi, tmp_path):
    """Return a function that runs a server without ranks until its log has a word.

    The function returns the reported cause and hint, and whether the server ended.
    """

    def run(word, tp, **changes):
        env = {**mpi.environ, **AS_ROOT, **changes}
        log = tmp_path / "server.log"
        words = ["serve", "org/model", "--port", str(free_port()), "--tp_size", str(tp)]
        with running(
            words, log, {name: value for name, value in env.items() if value is not None}
        ) as process:
            until(lambda: word in log.read_text(), about=log.read_text)
            found = cause(log.read_text())
            assert found is not None, log.read_text()
            return *found, process.poll() is not None

    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="Open MPI refuses root only")
@ONLY_5
def test_root_needs_the_variables(alone):
    """Open MPI 4 starts ranks for root like for other users."""
    without = dict.fromkeys(AS_ROOT)
    told, hint, ended = alone("(_manager_spawn)", 1, **without)
    assert told == "Open MPI starts no processes for root"
    assert all(f"{name}: '1'" in hint for name in without)
    assert not ended


@ONLY_4
def test_too_few_slots_are_named(alone):
    """Open MPI 5 starts more ranks than there are slots."""
    told, hint, ended = alone("MPI_ERR_SPAWN", MORE)
    assert "fewer slots" in told
    assert f"{ENOUGH}: '1'" in hint
    assert not ended


@ONLY_5
def test_a_prte_that_is_not_found_is_named(alone):
    told, _, ended = alone("MPI_ERR_UNKNOWN", 1, PATH=f"{STANDIN}:/usr/bin:/bin")
    assert "prte" in told
    assert not ended


def test_ranks_that_are_not_reached_are_named(mpi, alone):
    told, hint, _ = alone(
        "MPI_ERR_INTERN", 1, OMPI_MCA_btl="self,sm" if mpi.name == "pypi" else "self,vader"
    )
    assert "cannot reach each other" in told
    assert "OMPI_MCA_btl" in hint


@pytest.fixture
def plan(tmp_path, data_root):
    content = {
        "model": "org/model",
        "launcher": {"name": "trtllm", "stop_timeout_s": 10, "ready_timeout_s": 60},
        "tasks": [{"gsm8k": {"max_tokens": 16}}],
        "dataset_root": str(data_root),
        "no_reference": True,
        "limit": 3,
    }
    (file := tmp_path / "plan.yaml").write_text(json.dumps(content))
    return file


def test_an_evaluation_inside_mpirun_has_a_server_of_its_own(mpi, plan, tmp_path):
    """Of two ranks of mpirun, one evaluates and the other waits for it.

    A server that considered itself a rank of theirs would wait for the other.
    """
    out = tmp_path / "out"
    tool = f"{sys.executable} -m serve_eval run {plan} -o {out}"
    rank = f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || exec sleep 600; {tool}; kill $PPID'
    command = [
        *mpi.mpirun,
        "--oversubscribe",
        "-np",
        "2",
        "--mca",
        "btl_base_verbose",
        "0",
        "sh",
        "-c",
        rank,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=mpi.environ, capture_output=True, text=True, timeout=120
    )
    [task] = json.loads((out / "report.json").read_text())["tasks"]
    assert task["result"]["scored"] == 3, done.stderr
    assert [size for _, size, _ in ranks(out / "logs/trtllm.log")] == [1]


WHO = {
    "server": "serve_eval.launchers._standin",
    "supervisor": "_process/supervisor.py",
    "rank": "mpi4py.futures.server",
}
DAEMONS = {"pypi": "prte", "debian": "orted"}


def daemons(mpi):
    return [
        pid
        for pid in mpi.processes(DAEMONS[mpi.name])
        if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].endswith(DAEMONS[mpi.name])
    ]


@pytest.mark.parametrize("who", ["server", "supervisor"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "MPI's daemon hangs"])
def test_a_killed_server_leaves_no_rank(mpi, who, stopped, context):
    """MPI's own daemon ends ranks whose server is gone, unless the daemon hangs."""

    async def story():
        async with trtllm.launch(
            context, trtllm.TrtllmOptions(ready_timeout_s=WAIT_S, stop_timeout_s=2.0)
        ):
            assert len(ranks(context.log_dir / "trtllm.log")) == 1
            [daemon] = daemons(mpi)
            if stopped:
                os.kill(daemon, signal.SIGSTOP)
            [pid] = mpi.processes(WHO[who])[:1]
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(WAIT_S)

    with pytest.raises(LaunchError, match="trtllm ended with signal 9"):
        asyncio.run(story())
    mpi.check_all_gone()


@pytest.fixture
def evaluation(mpi, tmp_path, data_root):
    """Start an evaluation in its own process, and wait until it is under way."""
    content = {
        "model": "org/model",
        "launcher": {"name": "trtllm", "stop_timeout_s": 2, "ready_timeout_s": WAIT_S},
        "tasks": ["gsm8k"],
        "dataset_root": str(data_root),
        "no_reference": True,
        "limits": {"rate_limit": 2},
    }
    (file := tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    command = [sys.executable, "-m", "serve_eval", "run", str(file), "-o", str(tmp_path / "out")]
    said = tmp_path / "said"
    with said.open("w") as stderr:
        run = subprocess.Popen(
            command, cwd=ROOT, env=mpi.environ, stdout=stderr, stderr=stderr, start_new_session=True
        )
    until(lambda: "the first completion took" in said.read_text(), about=said.read_text)
    assert len(mpi.processes(WHO["rank"])) == 1
    yield run
    if run.poll() is None:
        run.kill()
    run.wait(10)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
@pytest.mark.parametrize("stopped", [False, True], ids=["", "MPI's daemon hangs"])
def test_a_tool_that_ends_leaves_no_rank(mpi, how, stopped, evaluation):
    if stopped:
        [daemon] = daemons(mpi)
        os.kill(daemon, signal.SIGSTOP)
    evaluation.send_signal(how)
    evaluation.wait(60)
    mpi.check_all_gone()


def test_a_tool_that_is_killed_with_its_server_leaves_no_rank(mpi, evaluation):
    """Only the supervisor can find a hung daemon of MPI then: it inherits the server's children."""
    [daemon], [server] = daemons(mpi), mpi.processes("-P\0-m\0serve_eval.launchers._standin")
    os.kill(daemon, signal.SIGSTOP)
    evaluation.kill()
    os.kill(server, signal.SIGKILL)
    evaluation.wait(60)
    mpi.check_all_gone()
