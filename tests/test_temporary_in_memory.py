"""Test where `make test` keeps temporary files, and that it removes what a killed one left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.temporary_in_memory import PREFIX, choose_folder

ROOT = Path(__file__).resolve().parents[1]


def test_a_folder_of_a_process_that_is_gone_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lives, dead = (tmp_path / f"{PREFIX}{one}" for one in (os.getpid(), ended.pid))
    for folder in (lives, dead, tmp_path / "others"):
        folder.mkdir()
    assert choose_folder(tmp_path, 7, 1) == tmp_path / f"{PREFIX}7"
    assert {one.name for one in tmp_path.iterdir()} == {lives.name, "others"}


def test_without_room_pytest_keeps_them_where_it_does(tmp_path: Path) -> None:
    assert choose_folder(tmp_path, 7, 2**62) is None
    assert choose_folder(tmp_path / "absent", 7, 1) is None


def test_make_test_uses_the_plugin() -> None:
    assert " -p tests.temporary_in_memory " in (ROOT / "Makefile").read_text(encoding="utf-8")
