"""Test commands on weak file systems, and for a user without a home.

The user may read everything, since the interpreter of these tests may lie in a closed folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval import whole_file
from tests.cli.command import environment

HERE = Path(__file__).parent
RUN = ("run", "--launcher", "simulated", "--tasks", "word_problems", "--limit", "4")


def _run(folder, failing, *words, **more):
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    return subprocess.run(
        [sys.executable, "-m", "serve_eval", *words],
        env=environment(PYTHONPATH=paths, FAILING=failing, BELOW=str(folder), **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "failing",
    [
        "flock:ENOLCK fsync:EINVAL symlink:EPERM link:EPERM chmod:EPERM",
        "fsync:ENOTSUP link:EOPNOTSUPP",
    ],
)
def test_a_run_ends_without_what_it_can_do_without(tmp_path, failing):
    state = tmp_path / "state"
    done = _run(tmp_path, failing, *RUN, "--no-reference", XDG_STATE_HOME=str(state))
    assert done.returncode == 3, done.stderr
    warned = "has no locks (flock), so start no second command there" in done.stderr
    assert warned == ("flock" in failing)
    [folder] = [one for one in (tmp_path / "outputs").iterdir() if one.name != "latest"]
    lines = [line for file in folder.glob("samples/*") for line in file.read_text().splitlines()]
    assert (len(lines), (folder / "report.json").exists()) == (4, True)
    assert (state / "serve-eval/key").stat().st_size == 32


@pytest.mark.parametrize(
    ("failing", "call"),
    [
        ("rename:EXDEV", "rename"),
        ("fsync:EDQUOT", "fsync"),
        ("flock:EIO", "flock"),
        ("mkdir:EROFS", "Read-only file system"),
    ],
)
def test_what_is_not_safe_is_refused_by_name_before_anything_is_asked(tmp_path, failing, call):
    folder = tmp_path / "run"
    done = _run(tmp_path, failing, *RUN, "--no-reference", "-o", str(folder))
    assert done.returncode in (2, 4), done.stderr
    assert f"error: {folder}" in done.stderr
    assert call in done.stderr
    assert "Choose another folder with -o" in done.stderr
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(folder.glob("samples/*"))


def test_without_locks_a_living_holder_is_found_and_a_dead_one_is_forgotten(
    tmp_path,
):
    folder = tmp_path / "run"
    assert _run(tmp_path, "flock:ENOLCK", *RUN, "--no-reference", "-o", str(folder)).returncode == 3
    lock = next(one for one in folder.iterdir() if one.name.endswith("lock"))
    assert lock.read_text() == "\nplan.json\n"  # no process, and the command of the folder
    host = os.uname().nodename
    lock.write_text(f"{os.getpid()} {host}\n")
    busy = _run(tmp_path, "flock:ENOLCK", *RUN, "--no-reference", "-o", str(folder))
    assert busy.returncode == 2
    assert f"is in use by another run (process {os.getpid()} {host})" in busy.stderr
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    lock.write_text(f"{dead.stdout.strip()} {host}\n")
    free = _run(tmp_path, "flock:ENOLCK", *RUN, "--no-reference", "-o", str(folder))
    assert free.returncode == 3, free.stderr


@pytest.mark.parametrize(
    ("holder", "lives"),
    [
        ("", False),
        ("12", False),
        (f"{os.getpid()} {os.uname().nodename}", False),
        ("1 another-machine", True),
        (f"{2**31 - 1} {os.uname().nodename}", False),
        (f"{2**70} {os.uname().nodename}", False),
        (f"nonsense {os.uname().nodename}", False),
    ],
    ids=["nobody", "locked", "this process", "elsewhere", "ended", "too large", "nonsense"],
)
def test_the_holder_of_an_unlocked_folder(holder, lives):
    assert whole_file.may_live(holder) is lives


NOBODY = "65534"


def _as_nobody(folder, *words):
    setpriv = shutil.which("setpriv")
    if setpriv is None or os.geteuid() != 0:
        pytest.skip("only root can become another user, with setpriv")
    kept = environment(HOME="/nonexistent", PYTHONPATH=str(Path(__file__).parents[2]))
    environ = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
    return subprocess.run(
        [
            *(setpriv, "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"),
            *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
            *("bash", "-c", 'umask 077; exec "$@"', "bash"),
            *(sys.executable, "-B", "-m", "serve_eval", *words),
        ],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_ordinary_user_runs_reads_and_is_told_of_a_folder_that_is_closed():
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ordinary-") as made:
        folder = Path(made)
        folder.chmod(0o777)
        done = _as_nobody(folder, *RUN, "--no-reference")
        assert done.returncode == 3, done.stderr
        shown = _as_nobody(folder, "show", "outputs/latest")
        assert shown.returncode == 0, shown.stderr
        again = _as_nobody(folder, *RUN, "--no-reference", "-o", "outputs/latest")
        assert (again.returncode, "Traceback" in again.stderr) == (3, False), again.stderr
        (folder / "closed").mkdir(mode=0o755)
        closed = _as_nobody(folder, *RUN, "--no-reference", "-o", "closed/run")
        assert closed.returncode == 2
        assert "error: closed/run: cannot be used as a run folder: Permission denied" in (
            closed.stderr
        )
        folder.chmod(0o755)
        here = _as_nobody(folder / "closed", *RUN, "--no-reference")
        assert here.returncode == 2
        assert "no folder can be made here: Permission denied" in here.stderr
