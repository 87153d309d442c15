"""Test that no folder adds code to processes of serve-eval."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.processes.child_process import (
    build_command,
    build_environment,
    inherit,
    list_places,
)
from serve_eval.processes.import_path import ROOT
from tests.cli.command import environment
from tests.processes.hostile_folder import AT_START, NAMES, OURS, fill


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
def test_only_absolute_folders_reach_a_process_of_ours(given, kept):
    found = build_environment({"PYTHONPATH": given, "X": "1"})
    assert found.pop("X") == "1"
    places = found["PYTHONPATH"].split(":") if found else []
    assert [one for one in places if one != ROOT] == kept


@pytest.mark.parametrize("name", ["PATH", "PYTHONPATH", "LD_LIBRARY_PATH"])
def test_lists_of_folders_are_passed_on_without_relative_ones(name):
    assert inherit({name: ":/a:bin:/b:."}) == {name: "/a:/b"}
    assert inherit({name: "."}) == {}
    assert inherit({name: ".:/a"}, [name]) == {name: ".:/a"}


def test_the_standard_library_comes_first_in_a_child():
    places = list_places()
    assert sorted(places) == sorted(place or str(Path.cwd()) for place in sys.path)
    assert Path(os.__file__).parent == Path(places[0])


def test_a_module_next_to_a_scorer_does_not_replace_one_of_python(tmp_path):
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


ROOT_FOREIGN_FOLDER = Path(__file__).resolve().parents[2]
SCRIPT = Path(sys.executable).with_name("serve-eval")
EMBEDDED = ("--launcher", "embedded", "-m", "embedded", "-t", "word_problems", "--limit", "5")
SIMULATED = ("--launcher", "simulated", "-m", "m", "-t", "word_problems", "--limit", "5")
PLAN = """
model: m
launcher: {name: simulated, accuracy: 0.9}
tasks: [word_problems]
allow_missing_reference: true
"""
SUITE = "plans: [plan.yaml]\n"


def _run(folder, *words, timeout_s=120, **variables):
    variables = {"XDG_STATE_HOME": str(folder.parent / "state"), **variables}
    return subprocess.run(
        words,
        cwd=folder,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _check(done, mark, *codes):
    assert not mark.exists(), mark.read_text()
    assert done.returncode in (codes or (0,)), done.stdout + done.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a finished run of the simulated server, in a folder without modules."""
    folder = tmp_path_factory.mktemp("finished")
    done = _run(folder, str(SCRIPT), "run", *SIMULATED, "--no-reference", "-o", "run")
    assert done.returncode == 3, done.stderr
    return folder / "run"


@pytest.mark.parametrize("launcher", [EMBEDDED, SIMULATED], ids=["embedded", "simulated"])
def test_a_run_in_a_foreign_folder(tmp_path, launcher):
    mark = fill(tmp_path / "work")
    words = (str(SCRIPT), "run", *launcher, "--no-reference", "-o", "out")
    _check(_run(tmp_path / "work", *words), mark, 3)


@pytest.mark.slow
@pytest.mark.parametrize("path", [":/nowhere", ".", "./", "../work:", "/nowhere::/elsewhere"])
def test_a_relative_import_path_adds_no_folder(tmp_path, path):
    """Python itself runs sitecustomize of such a folder; everything after its start is ours."""
    own = ("typing", "__future__", "signal", "socket", "selectors", "pickle", "json", "random")
    mark = fill(tmp_path / "work", without=(*AT_START, *OURS, *own))
    (tmp_path / "work/launchers").mkdir()
    words = (str(SCRIPT), "run", *EMBEDDED, "--no-reference", "-o", "out")
    _check(_run(tmp_path / "work", *words, PYTHONPATH=path), mark, 3)


@pytest.mark.parametrize("path", ["", ":", "."])
def test_our_processes_do_not_take_their_start_from_such_a_path(tmp_path, path):
    mark = fill(tmp_path / "work")
    env = build_environment({**environment(), "PYTHONPATH": path})
    done = subprocess.run(
        build_command("serve_eval", "--version"),
        cwd=tmp_path / "work",
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    _check(done, mark)


@pytest.mark.parametrize("path", ["", ".", ":"])
def test_python_m_leaves_the_current_folder_out(tmp_path, path):
    """Python looks for serve_eval there itself, so this folder has none."""
    mark = fill(tmp_path / "work", without=("serve_eval", *AT_START))
    words = (sys.executable, "-m", "serve_eval", "run", *EMBEDDED, "--no-reference", "-o", "out")
    _check(_run(tmp_path / "work", *words, PYTHONPATH=path), mark, 3)


def test_a_folder_that_is_named_absolutely_stays(tmp_path):
    (tmp_path / "named").mkdir()
    (tmp_path / "named/named_by_its_user.py").touch()
    asks = "import sys; sys.argv = ['serve-eval', '--version']\nfrom serve_eval.cli import main\n"
    asks += "try: main()\nfinally: import named_by_its_user"
    named = f"{tmp_path / 'named'}:{ROOT_FOREIGN_FOLDER}"
    done = _run(tmp_path / "named", sys.executable, "-c", asks, PYTHONPATH=named)
    assert done.returncode == 0, done.stderr


def test_resuming_the_run_folder_that_one_stands_in(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    mark = fill(folder)
    fill(folder / "logs", without=("serve_eval",))
    told = ("--trust-plan", "--no-reference")
    _check(_run(folder, str(SCRIPT), "run", "--resume", ".", *told), mark, 3)
    (folder / "results/word_problems.jsonl").unlink(missing_ok=True)
    assert not (tmp_path / "run/logs.ran").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("diagnose", "."),
        ("show", "."),
        ("runs", "view", ".", "-o", "runs.html"),
        ("judge", ".", "--verdict", "paired", "--no-reference"),
        ("judge", "--rescore", "."),
        ("data", "list", "launchers"),
        (
            "setup",
            "doctor",
        ),
        ("setup", "completion", "bash"),
    ],
    ids=lambda words: words[0],
)
def test_commands_that_read_a_folder(finished, tmp_path, words):
    shutil.copytree(finished, tmp_path / "run")
    mark = fill(tmp_path / "run")
    _check(_run(tmp_path / "run", str(SCRIPT), *words), mark, 0, 2, 3, 4)


def test_a_suite_and_the_folder_of_its_plans(tmp_path):
    mark = fill(tmp_path / "work")
    (tmp_path / "work/plan.yaml").write_text(PLAN)
    (tmp_path / "work/suite.yaml").write_text(SUITE)
    words = (str(SCRIPT), "run", "suite.yaml", "-o", "out")
    _check(_run(tmp_path / "work", *words), mark, 0, 3)


def test_servers_that_are_kept_up(tmp_path):
    mark = fill(tmp_path / "work")
    started = _run(tmp_path / "work", str(SCRIPT), "serve", "embedded", "--detach", "-o", "held")
    stopped = _run(tmp_path / "work", str(SCRIPT), "serve", "--stop", "all")
    _check(started, mark)
    _check(stopped, mark)


@pytest.mark.slow
def test_the_demo(tmp_path):
    mark = fill(tmp_path / "work")
    _check(_run(tmp_path / "work", str(SCRIPT), "setup", "demo", "-o", "out"), mark)


TEST = """
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME, LAUNCHER, OPTIONS = "embedded", "embedded", {"limit": 20}

    def test_bf16(self):
        self.evaluate("word_problems")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "own"),
    [
        ((), {"random", "launchers", "torch"}),
        (("-p", "no:cacheprovider"), {"random", "launchers", "torch"}),
        (("--import-mode=importlib",), {"random", "pickle", "launchers", "numpy"}),
        (("-n", "1"), {"launchers", "torch"}),  # xdist starts Python with this folder in front
    ],
    ids=["plain", "no cache", "importlib", "xdist"],
)
def test_a_repository_with_such_names_is_tested_by_pytest(tmp_path, flags, own):
    """pytest puts this folder on its own import path; the processes of a test do not get it."""
    mark = fill(tmp_path / "work", without=(*{*NAMES} - own, "evil"))
    (tmp_path / "work/test_it.py").write_text(TEST)
    command = (str(SCRIPT.with_name("pytest")), "-q", "-p", "no:kmock", *flags, "test_it.py")
    _check(_run(tmp_path / "work", *command), mark)
