"""The registry of held servers, with real processes as holders."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint
from serve_eval.workflows.servers import held_servers
from serve_eval.workflows.servers.held_servers import Held

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return held_servers.registry({"XDG_STATE_HOME": str(tmp_path)})


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(SLEEP) as process:
        yield process
        process.kill()


def entry(process: subprocess.Popen[bytes] | None = None, id_: str = "0a1b2c3d") -> Held:
    pid = os.getpid() if process is None else process.pid
    return Held(
        id=id_,
        state="starting",
        launcher="trtllm",
        model="org/m",
        pid=pid,
        began=held_servers.began(pid) or "",
        since="2026-11-21T15:00:00+00:00",
        log_dir="/logs",
        patience_s=3600.0,
    )


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    (tmp_path / "serve-eval/servers").mkdir(parents=True, mode=0o755)
    folder = held_servers.registry({"XDG_STATE_HOME": str(tmp_path)})
    assert folder.parent == tmp_path / "serve-eval/servers"
    assert [stat.S_IMODE(place.stat().st_mode) for place in (folder, folder.parent)] == [
        0o700,
        0o700,
    ]
    held_servers.claim(folder, entry())
    assert stat.S_IMODE((folder / "0a1b2c3d.json").stat().st_mode) == 0o600
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be used"):
        held_servers.registry({"XDG_STATE_HOME": str(tmp_path / "file")})


def test_it_lies_in_the_home_folder_where_no_other_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert held_servers.registry({}).is_relative_to(tmp_path / ".local/state/serve-eval/servers")


def test_what_was_entered_is_found_until_it_is_taken_out(folder: Path) -> None:
    one = replace(
        entry(),
        endpoint=Endpoint(base_url="http://h:1/v1", model="org/m", info={"commands": [["a", "b"]]}),
    )
    assert held_servers.claim(folder, one) is None
    assert held_servers.find(folder, one.id) == one
    held_servers.update(folder, ready := replace(one, state="ready"))
    assert held_servers.entries(folder) == [ready]
    held_servers.remove(folder, one)
    assert held_servers.find(folder, one.id) is None
    assert held_servers.entries(folder) == []


def test_what_another_holder_has_stays_its_own(
    folder: Path, holder: subprocess.Popen[bytes]
) -> None:
    theirs, ours = entry(holder), entry()
    assert held_servers.claim(folder, theirs) is None
    assert held_servers.claim(folder, ours) == theirs
    held_servers.update(folder, replace(ours, state="ready"))
    held_servers.remove(folder, ours)
    assert held_servers.find(folder, theirs.id) == theirs
    assert held_servers.now(folder, ours) is None


def test_what_a_dead_holder_left_is_cleaned_up_and_free(
    folder: Path, holder: subprocess.Popen[bytes]
) -> None:
    held_servers.claim(folder, entry(holder))
    holder.kill()
    while held_servers.began(holder.pid) is not None:  # then a zombie: nothing has reaped it
        time.sleep(0.01)
    assert held_servers.find(folder, "0a1b2c3d") is None
    assert held_servers.claim(folder, entry()) is None
    held_servers.claim(folder, other := entry(holder, "00000000"))
    assert not other.alive
    assert [one.id for one in held_servers.entries(folder)] == ["0a1b2c3d"]
    assert not (folder / "00000000.json").exists()


def test_a_process_of_the_same_number_is_not_mistaken_for_the_holder(
    folder: Path, holder: subprocess.Popen[bytes]
) -> None:
    earlier = replace(entry(holder), began="another boot 1")
    held_servers.claim(folder, earlier)
    assert held_servers.find(folder, earlier.id) is None
    held_servers.ask_to_end(earlier)
    assert holder.poll() is None
    held_servers.ask_to_end(entry(holder))
    assert holder.wait(10) == -signal.SIGTERM
    held_servers.ask_to_end(earlier)  # it has ended already


def test_the_last_words_of_a_holder_stay_until_the_next_start(
    folder: Path, holder: subprocess.Popen[bytes]
) -> None:
    held_servers.claim(
        folder, failed := replace(entry(holder), state="ended", error="out of memory")
    )
    holder.kill()
    holder.wait()
    assert held_servers.find(folder, failed.id) == failed
    assert held_servers.entries(folder) == [failed]
    ours = entry()
    assert held_servers.claim(folder, ours) is None
    held_servers.update(folder, replace(failed, error="later"))
    assert held_servers.find(folder, failed.id) == ours


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"id": "0a1b2c3d"}', b"\xff"])
def test_a_damaged_file_is_nobodys(folder: Path, content: bytes) -> None:
    file = folder / "0a1b2c3d.json"
    file.write_bytes(content)
    assert held_servers.find(folder, "0a1b2c3d") is None
    assert held_servers.entries(folder) == []
    assert not file.exists()
    file.write_bytes(content)
    assert held_servers.claim(folder, entry()) is None
    assert held_servers.find(folder, "0a1b2c3d") == entry()


def test_of_many_that_enter_the_same_at_once_one_wins(folder: Path) -> None:
    with ThreadPool(8) as pool:
        for _ in range(20):
            results = pool.map(
                lambda n: held_servers.claim(folder, replace(entry(), log_dir=str(n))), range(8)
            )
            [winner] = {one.log_dir for one in results if one is not None}
            assert results.count(None) == 1
            assert results[int(winner)] is None
            held_servers.remove(folder, entry())
