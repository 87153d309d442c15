"""A SLURM of two nodes on this machine, in one temporary folder, for tests and manual use.

    python3 tests/slurm/cluster.py install           # install the Debian packages, as root
    python3 tests/slurm/cluster.py run COMMAND...     # start SLURM, run the command, stop SLURM

Debian's slurmd is built without multiple-slurmd support, so two nodes must not have the same host
name in slurm.conf. Nodes named by two loopback addresses work: a program that binds the name of its
node can be reached there, without an entry in /etc/hosts. The GPUs that SLURM sees are character
devices that every machine has: it assigns them and sets CUDA_VISIBLE_DEVICES, and nothing opens
them.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge", "libpmix2", "libpmix-dev")
"""libpmix-dev is needed for a link only: SLURM opens libpmix.so by that name."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
NODES = ("127.0.0.1", "127.0.0.2")
GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
START_S = 60.0
CPUS = 16
"""More than the machine has, because each step on a shared node takes some."""
KILL_WAIT_S = 5
MEMORY_MB = 50
"""Memory for each core by default; nodes have twice as much."""


def missing():
    """Return why SLURM cannot run here, or None if it can."""
    if sys.platform != "linux" or os.getuid() != 0:
        return "a SLURM of our own needs Linux and root"
    if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(lacking)} not installed: python3 tests/slurm/cluster.py install"
    if not list(Path("/usr/lib").glob("*/pmix*/lib/libpmix.so")):
        return "SLURM finds no PMIx: python3 tests/slurm/cluster.py install"
    return None


@contextmanager
def cluster(*, plain=False):
    """Run munged, slurmctld and two slurmd for the block.

    A `plain` SLURM manages no GPUs, but memory: a job gets MEMORY_MB for each core by default.

    Yields the environment in which srun finds them. Raises RuntimeError with the logs if the nodes
    are not up in time. Jobs that are left are cancelled at the end.
    """
    # Short, because sockets in the folder have long names.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    folder.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environ["SLURM_CONF"] = str(folder / "slurm.conf")
    _configure(folder, plain=plain)
    try:
        with ExitStack() as stack:
            stack.enter_context(
                _daemon(
                    ["munged", "--foreground", *_munge(folder)], folder / "log/munged.out", environ
                )
            )
            _until(lambda: (folder / "munge.socket").exists(), folder)
            stack.enter_context(_daemon(["slurmctld", "-D"], folder / "log/slurmctld.out", environ))
            for node in NODES:
                stack.enter_context(
                    _daemon(
                        ["slurmd", "-D", "-N", node], folder / f"log/slurmd-{node}.out", environ
                    )
                )
            _until(
                lambda: _out(["sinfo", "-h", "-N", "-o", "%t"], environ).split() == ["idle"] * 2,
                folder,
            )
            try:
                yield environ
            finally:
                _out(["scancel", "--user=root"], environ)
                with suppress(RuntimeError):
                    _until(lambda: not _out(["squeue", "-h"], environ).strip(), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder, *, plain):
    for name in (
        "state",
        "log",
        *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in NODES),
    ):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    ports = iter(_free_ports(3))
    host = socket.gethostname().partition(".")[0]
    of_node = f"RealMemory={2 * CPUS * MEMORY_MB}" if plain else f"Gres=gpu:{len(GPUS)}"
    lines = [
        "ClusterName=serve-eval-test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={next(ports)}",
        "SlurmUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        f"SelectTypeParameters=CR_Core{'_Memory' * plain}",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/none",
        "ReturnToService=2",
        "SlurmdParameters=config_overrides",
        f"KillWait={KILL_WAIT_S}",
        f"DefMemPerCPU={MEMORY_MB}" if plain else "GresTypes=gpu",
        f"TmpFS={folder}/tmp/%n",  # PMIx has its folders there, by step; nodes cannot share it
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool/%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/log/slurmctld.log",
        f"SlurmdLogFile={folder}/log/slurmd-%n.log",
        *(
            f"NodeName={node} NodeAddr={node} Port={next(ports)} CPUs={CPUS} {of_node}"
            for node in NODES
        ),
        f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP",
    ]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    if not plain:
        gpus = "".join(f"Name=gpu File={device}\n" for device in GPUS)
        (folder / "gres.conf").write_text(gpus)


def _munge(folder):
    given = {
        "key-file": "munge.key",
        "socket": "munge.socket",
        "pid-file": "munge.pid",
        "seed-file": "munge.seed",
    }
    return [f"--{option}={folder / name}" for option, name in given.items()]


@contextmanager
def _daemon(command, log, environ):
    """Run a daemon that ends with this process, even if this process is killed."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environ,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(true, folder):
    deadline = time.monotonic() + START_S
    while not true():
        if time.monotonic() > deadline:
            logs = "\n".join(
                f"{p.name}\n{p.read_text(errors='replace')[-1500:]}"
                for p in folder.glob("log/*.out")
            )
            raise RuntimeError(f"SLURM is not there after {START_S:g} s\n{logs}")
        time.sleep(0.2)


def _out(command, environ):
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30).stdout


def _free_ports(count):
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in held]


def main(words):
    if words == ["install"]:
        if missing() is None:
            return 0
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        return subprocess.run(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
        ).returncode
    if words[:1] != ["run"] or len(words) < 2:
        print(__doc__)
        return 2
    if reason := missing():
        print(reason, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with cluster() as environ:
        return subprocess.run(words[1:], env=environ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
