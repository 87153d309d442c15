"""Test locks and the registry of held servers, with real processes as holders."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError, NoRoomError
from serve_eval.launchers._machine import lock_files
from serve_eval.schema import Endpoint
from serve_eval.workflows import servers
from serve_eval.workflows.servers import Held
from tests.root import ROOT

HOLDS = """
import os, sys
uid, shared, *names = sys.argv[1:]
sys.path.insert(0, os.getcwd())
from pathlib import Path
from serve_eval.launchers._machine import lock_files
if shared:
    lock_files.SHARED = Path(shared)
if uid:
    os.setuid(int(uid))
with lock_files.lock_names(names):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(*names, uid="", shared="", **environ):
    """Run a process that holds the locks for the block, or ends with an error."""
    env = {
        name: value for name, value in os.environ.items() if name != lock_files.VARIABLE
    } | environ
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, uid, shared, *names],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(20)


def error_of(process):
    assert process.wait(20) == 1
    return process.stderr.read().splitlines()[-1]


@pytest.mark.parametrize("kind", ["GPU", "port", "node"])
def test_two_tmpdirs_share_their_locks(kind, tmp_path):
    name = f"{kind}-of a test {uuid.uuid4().hex}"
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    try:
        with (
            holder(name, TMPDIR=str(folders[0])) as first,
            holder(name, TMPDIR=str(folders[1])) as second,
        ):
            assert first.poll() is None
            assert f"is used by another launch of serve-eval (process {first.pid})" in error_of(
                second
            )
        with holder(name, TMPDIR=str(folders[1])) as third:
            assert third.poll() is None
        assert [list(folder.iterdir()) for folder in folders] == [[], []]
    finally:
        (lock_files.SHARED / f"serve-eval-{os.getuid()}" / f"{name}.lock").unlink(missing_ok=True)


def test_a_folder_may_be_named(tmp_path):
    with holder("port-1", SERVE_EVAL_LOCK_DIR=str(tmp_path / "a/locks")) as first:
        assert (tmp_path / "a/locks/port-1.lock").read_text() == f"{first.pid}\n"
        with holder("port-1", SERVE_EVAL_LOCK_DIR=str(tmp_path / "b")) as second:
            assert second.poll() is None


def _link(place, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    place.symlink_to(tmp_path / "elsewhere")


def _of_another_user(place, tmp_path):
    if os.getuid():
        pytest.skip("only root can give a folder away")
    place.mkdir()
    os.chown(place, 12345, 12345)


def _file(place, tmp_path):
    place.write_text("")


@pytest.mark.parametrize("in_the_way", [_link, _of_another_user, _file])
def test_what_is_in_the_way_makes_the_state_folder_the_place(in_the_way, tmp_path, monkeypatch):
    (shared := tmp_path / "shared").mkdir()
    monkeypatch.setattr(lock_files, "SHARED", shared)
    in_the_way(shared / f"serve-eval-{os.getuid()}", tmp_path)
    found = lock_files.folder({"XDG_STATE_HOME": str(tmp_path / "state")})
    assert found.is_relative_to(tmp_path / "state/serve-eval/locks")
    assert found.is_dir()
    blocked = tmp_path / "no folder"
    blocked.write_text("")
    with pytest.raises(LaunchError, match=r"no folder for locks: .*serve-eval-") as caught:
        lock_files.folder({"XDG_STATE_HOME": str(blocked)})
    assert "SERVE_EVAL_LOCK_DIR" in caught.value.hint


def test_a_folder_of_an_earlier_version_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_files, "SHARED", tmp_path)
    (old := tmp_path / f"serve-eval-{os.getuid()}").mkdir(mode=0o700)
    assert lock_files.folder({}) == old
    assert old.stat().st_mode & 0o777 == 0o711


def test_what_cleans_up_tmp_leaves_a_folder_alone_while_a_lock_is_held(tmp_path, monkeypatch):
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with (
            lock_files.lock_names(["port-1"]),
            lock_files.lock_names(["port-2"]),
            pytest.raises(BlockingIOError),
        ):
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
def test_a_gpu_that_another_user_locked_is_seen(tmp_path, monkeypatch):
    shared = Path("/tmp") / f"serve-eval-test-{uuid.uuid4().hex}"  # other users can reach it
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(lock_files, "SHARED", shared)
    monkeypatch.delenv(lock_files.VARIABLE, raising=False)
    try:
        with holder("GPU-a", "port-1", uid="12345", shared=str(shared)) as other:
            if other.poll() is not None:
                pytest.skip("another user cannot read this checkout")
            with lock_files.lock_names(["GPU-b", "port-1"]):
                pass
            with (
                pytest.raises(
                    NoRoomError,
                    match=r"^GPU 3 is used by another launch of serve-eval, by user 12345$",
                ),
                lock_files.lock_names(["GPU-a"], shown={"GPU-a": "GPU 3"}),
            ):
                pass
        with (
            lock_files.lock_names(["GPU-a"]),
            holder("GPU-a", uid="12345", shared=str(shared)) as other,
        ):
            assert "GPU a is used by another launch of serve-eval, by root" in error_of(other)
    finally:
        for path in sorted(shared.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        shared.rmdir()


def test_what_another_user_put_there_cannot_harm(tmp_path, monkeypatch):
    """Their lock may be a pipe without a writer, a link, or missing."""
    monkeypatch.setattr(lock_files, "SHARED", tmp_path)
    theirs = tmp_path / f"serve-eval-{os.getuid()}"
    theirs.mkdir()
    os.mkfifo(theirs / "GPU-0.lock")
    (theirs / "GPU-1.lock").symlink_to("/dev/zero")
    for name in ("GPU-0", "GPU-1", "GPU-2"):
        assert lock_files._other_user(name, tmp_path / "serve-eval-4242") is None


def test_a_lock_that_was_taken_before_is_not_taken_again(tmp_path, monkeypatch):
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path))
    with (
        lock_files.lock_names(["GPU-a"]) as held,
        lock_files.lock_names(["GPU-a", "port-1"], held=held) as both,
    ):
        assert both["GPU-a"] == held["GPU-a"]
        assert {"GPU-a", "port-1"} <= set(both)
        with pytest.raises(NoRoomError, match="GPU a is used"), lock_files.lock_names(["GPU-a"]):
            pass


def test_files_do_not_pile_up(tmp_path, monkeypatch):
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path))
    with holder("port-2", SERVE_EVAL_LOCK_DIR=str(tmp_path)):
        with lock_files.lock_names(["GPU-a", "port-1", "folder-/a/b"]) as locks:
            inherited = os.dup(locks["port-1"])
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "GPU-a.lock",
            "port-1.lock",
            "port-2.lock",
        ]
        with pytest.raises(LaunchError, match="port 1 is used"), lock_files.lock_names(["port-1"]):
            pass
        os.close(inherited)
        with lock_files.lock_names(["port-1"]):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["GPU-a.lock"]


def test_a_file_that_was_removed_meanwhile_holds_nothing(tmp_path, monkeypatch):
    """A process that opened the file before it was removed must not take it for the lock."""
    monkeypatch.setenv(lock_files.VARIABLE, str(tmp_path))
    opened = lock_files._open

    def slow(path):
        file = opened(path)
        monkeypatch.setattr(lock_files, "_open", opened)
        path.unlink()
        return file

    monkeypatch.setattr(lock_files, "_open", slow)
    with (
        lock_files.lock_names(["port-1"]),
        pytest.raises(LaunchError, match="port 1 is used"),
        lock_files.lock_names(["port-1"]),
    ):
        pass


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def folder(tmp_path):
    return servers.registry({"XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture
def holder_held_servers():
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def entry(process=None, id_="0a1b2c3d"):
    pid = os.getpid() if process is None else process.pid
    return Held(
        id=id_,
        state="starting",
        launcher="trtllm",
        model="org/m",
        pid=pid,
        began=servers.began(pid) or "",
        since="2026-11-21T15:00:00+00:00",
        log_dir="/logs",
        patience_s=3600.0,
    )


def test_the_folder_is_the_users_alone(tmp_path):
    (tmp_path / "serve-eval/servers").mkdir(parents=True, mode=0o755)
    folder = servers.registry({"XDG_STATE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "serve-eval/servers"
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)] == [
        0o700,
        0o700,
    ]
    servers.claim(folder, entry())
    assert stat.S_IMODE((folder / "0a1b2c3d.json").stat().st_mode) == 0o600
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be used"):
        servers.registry({"XDG_STATE_HOME": str(tmp_path / "file")})


def test_it_lies_in_the_home_folder_where_no_other_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert servers.registry({}).is_relative_to(tmp_path / ".local/state/serve-eval/servers")


def test_what_was_entered_is_found_until_it_is_taken_out(folder):
    one = replace(
        entry(),
        endpoint=Endpoint(base_url="http://h:1/v1", model="org/m", info={"commands": [["a", "b"]]}),
    )
    assert servers.claim(folder, one) is None
    assert servers.find(folder, one.id) == one
    servers.update(folder, ready := replace(one, state="ready"))
    assert servers.entries(folder) == [ready]
    servers.remove(folder, one)
    assert servers.find(folder, one.id) is None
    assert servers.entries(folder) == []


def test_what_another_holder_has_stays_its_own(folder, holder_held_servers):
    theirs, ours = entry(holder_held_servers), entry()
    assert servers.claim(folder, theirs) is None
    assert servers.claim(folder, ours) == theirs
    servers.update(folder, replace(ours, state="ready"))
    servers.remove(folder, ours)
    assert servers.find(folder, theirs.id) == theirs
    assert servers.now(folder, ours) is None


def test_what_a_dead_holder_left_is_cleaned_up_and_free(folder, holder_held_servers):
    servers.claim(folder, entry(holder_held_servers))
    holder_held_servers.kill()
    while (
        servers.began(holder_held_servers.pid) is not None
    ):  # then a zombie: nothing has reaped it
        time.sleep(0.01)
    assert servers.find(folder, "0a1b2c3d") is None
    assert servers.claim(folder, entry()) is None
    servers.claim(folder, other := entry(holder_held_servers, "00000000"))
    assert not other.alive
    assert [one.id for one in servers.entries(folder)] == ["0a1b2c3d"]
    assert not (folder / "00000000.json").exists()


def test_a_process_of_the_same_number_is_not_mistaken_for_the_holder(folder, holder_held_servers):
    earlier = replace(entry(holder_held_servers), began="another boot 1")
    servers.claim(folder, earlier)
    assert servers.find(folder, earlier.id) is None
    servers.ask_to_end(earlier)
    assert holder_held_servers.poll() is None
    servers.ask_to_end(entry(holder_held_servers))
    assert holder_held_servers.wait(10) == -signal.SIGTERM
    servers.ask_to_end(earlier)  # it has ended already


def test_the_last_words_of_a_holder_stay_until_the_next_start(folder, holder_held_servers):
    servers.claim(
        folder, failed := replace(entry(holder_held_servers), state="ended", error="out of memory")
    )
    holder_held_servers.kill()
    holder_held_servers.wait()
    assert servers.find(folder, failed.id) == failed
    assert servers.entries(folder) == [failed]
    ours = entry()
    assert servers.claim(folder, ours) is None
    servers.update(folder, replace(failed, error="later"))
    assert servers.find(folder, failed.id) == ours


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "0a1b2c3d"}', b"\xff"])
def test_a_damaged_file_is_nobodys(folder, content):
    file = folder / "0a1b2c3d.json"
    file.write_bytes(content)
    assert servers.find(folder, "0a1b2c3d") is None
    assert servers.entries(folder) == []
    assert not file.exists()
    file.write_bytes(content)
    assert servers.claim(folder, entry()) is None
    assert servers.find(folder, "0a1b2c3d") == entry()


def test_of_many_that_enter_the_same_at_once_one_wins(folder):
    with ThreadPool(8) as pool:
        for _ in range(20):
            results = pool.map(
                lambda n: servers.claim(folder, replace(entry(), log_dir=str(n))), range(8)
            )
            [winner] = {one.log_dir for one in results if one is not None}
            assert results.count(None) == 1
            assert results[int(winner)] is None
            servers.remove(folder, entry())
