"""The import path of processes of serve-eval: what a folder may not add to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.processes.child_process import build_environment, inherit, list_places
from serve_eval.processes.import_path import ROOT
from tests.cli.command import environment


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", []),
        (".", []),
        (":", []),
        ("./", []),
        ("lib:../lib", []),
        ("/a", ["/a"]),
        (":/a", ["/a"]),
        ("/a::/b:.", ["/a", "/b"]),
        ("/a:/b:/a", ["/a", "/b"]),
    ],
)
def test_only_absolute_folders_reach_a_process_of_ours(given: str, kept: list[str]) -> None:
    found = build_environment({"PYTHONPATH": given, "X": "1"})
    assert found.pop("X") == "1"
    places = found["PYTHONPATH"].split(":") if found else []
    assert [one for one in places if one != ROOT] == kept


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_LIBRARY_PATH"])
def test_lists_of_folders_are_passed_on_without_relative_ones(name: str) -> None:
    assert inherit({name: ":/a:bin:/b:."}) == {name: "/a:/b"}
    assert inherit({name: "."}) == {}
    assert inherit({name: ".:/a"}, [name]) == {name: ".:/a"}


def test_the_standard_library_comes_first_in_a_child() -> None:
    places = list_places()
    assert sorted(places) == sorted(place or str(Path.cwd()) for place in sys.path)
    assert Path(os.__file__).parent == Path(places[0])


def test_a_module_next_to_a_scorer_does_not_replace_one_of_python(tmp_path: Path) -> None:
    """As under pytest, which puts the folder of a test in front of all others."""
    for name in ("random", "pickle", "socket", "struct"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('of the user')\n")
    (tmp_path / "of_user.py").write_text(
        "def make():\n    return answer\n"
        "def answer():\n    import random\n    return random.__name__\n"
    )
    script = (
        "import sys, random, socket, pickle\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import of_user\n"
        "from serve_eval.processes.bounded_call import Apart\n"
        "apart = Apart({'answer': (of_user.make, ())}, limit_s=20)\n"
        "print(apart.call('answer'))\n"
        "apart.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path.parent,
        env=environment(PYTHONPATH=ROOT),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "random\n", done.stdout + done.stderr
