"""Test that sdist and wheel hold all that a user needs, and that runs of the wheel are watched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.root import ROOT
from tests.wheel.steps import Failed, expect
from tests.wheel.watching import (
    Hiding,
    build_variables,
    copy_watch,
    find_foreign,
    hide,
    run_watched,
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Build the sdist, and the wheel from the sdist, in a folder."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_one_package_the_references_and_the_licences(dist):
    names = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    shipped = {
        f"serve_eval/references/{file.name}" for file in (ROOT / "references").glob("*.yaml")
    }
    assert len(shipped) == 22
    assert shipped <= names
    assert {
        "serve_eval/py.typed",
        "serve_eval/launchers/py.typed",
        "serve_eval/cases/example.yaml",
        "serve_eval/protocol/presets.yaml",
        "serve_eval/launchers/external.py",
    } <= names
    assert {name.rsplit("/", 1)[-1] for name in names if "/licenses/" in name} == {
        "LICENSE",
        "NOTICE",
    }
    for file in (
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        assert f"serve_eval/launchers/_embedded/model/{file}" in names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"serve_eval"}


def _in_the_sdist(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def test_the_sdist_holds_what_building_testing_and_linting_need(dist):
    assert {
        ".ci/run",
        "CHANGELOG.md",
        "Makefile",
        "README.md",
        "bench/goals.py",
        "constraints.txt",
        "docs/architecture.md",
        "pyproject.toml",
        "references/gsm8k.yaml",
        "tests/conftest.py",
        "tests/wheel/test_packaging.py",
        "training/train.py",
    } <= _in_the_sdist(dist)


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="only a checkout knows which files are tracked"
)
def test_the_sdist_holds_every_file_of_the_checkout_and_no_other(dist):
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listed = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.split("\0")
    files = {name for name in listed if name and (ROOT / name).is_file()}
    linked = {f"serve_eval/{name}" for name in files if name.startswith("launchers/")}
    assert _in_the_sdist(dist) ^ (files | linked) == {"PKG-INFO"}


def test_python_versions_are_named_once_each():
    """The classifiers, which `make test-pythons` tries, begin with the oldest supported version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)
    ]
    assert project["requires-python"] == f">={named[0]}"
    assert len(named) >= 3
    assert named == sorted(set(named), key=lambda version: int(version.partition(".")[2]))


def test_the_installed_wheel_finds_its_references_far_from_the_checkout(dist, tmp_path):
    target = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(target),
    ]
    subprocess.run([*pip, str(next(dist.glob("*.whl")))], check=True, timeout=120)
    script = (
        "from serve_eval.verdicts.references import load, find_shipped_dir; folder ="
        " find_shipped_dir();print(folder); print(len(load(folder / 'mmlu.yaml')))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    folder, models = done.stdout.splitlines()
    assert Path(folder) == target / "serve_eval" / "references"
    assert int(models) == 51


def test_the_version_stands_in_one_place():
    import serve_eval

    done = subprocess.run(
        [sys.executable, "-m", "serve_eval", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"serve-eval {serve_eval.__version__}\n"
    assert serve_eval.__version__ not in (ROOT / "pyproject.toml").read_text()


def test_the_constraints_name_versions_only():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines[0].startswith("#")
    for line in lines[1:]:
        name, separator, version = line.partition("==")
        assert name
        assert separator
        assert version[0].isdigit(), line
        assert "/" not in line


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with a module and a file."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "of_checkout.py").write_text("import os\n")
    (folder / "data.txt").write_text("data")
    return folder


IMPORTS = "import os, sys; sys.path.append(os.environ['CHECKOUT']); import of_checkout"
READS = "import os; open(os.environ['CHECKOUT'] + '/data.txt').read()"


@pytest.mark.parametrize(
    ("code", "processes", "found"),
    [
        ("print('nothing')", 1, set()),
        (IMPORTS, 1, {"module", "opened"}),
        (READS, 1, {"opened"}),
        (f"{READS}; os._exit(0)", 1, {"opened"}),
        (
            f"import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', {IMPORTS!r}])",
            2,
            {"module", "opened"},
        ),
    ],
)
def test_what_a_process_takes_from_the_checkout_is_found(
    tmp_path, checkout, code, processes, found
):
    log = copy_watch(tmp_path, checkout)
    done = run_watched(
        [sys.executable, "-P", "-c", code],
        hiding=Hiding((), ""),
        folder=tmp_path,
        variables={**build_variables(log), "CHECKOUT": str(checkout)},
    )
    assert done.returncode == 0, done.stderr
    watched, foreign = find_foreign(log, tmp_path / "environment")
    assert watched == processes
    assert {one.partition(" ")[0] for one in foreign} == found
    assert all(str(checkout) in one for one in foreign)


def test_our_modules_may_come_from_the_environment_only(tmp_path):
    log = tmp_path / "log"
    inside, outside = tmp_path / "environment/lib/serve_eval/a.py", tmp_path / "else/a.py"
    log.write_text(f"begun\nmodule serve_eval.a {inside}\nmodule serve_eval.b {outside}\n")
    assert find_foreign(log, tmp_path / "environment") == (1, [f"module serve_eval.b {outside}"])
    assert find_foreign(tmp_path / "none", tmp_path) == (0, [])


def test_a_hidden_checkout_is_empty(tmp_path, checkout):
    hiding = hide(checkout)
    if not hiding.words:
        pytest.skip("this machine refuses mount namespaces")
    command = ["sh", "-c", 'ls -A "$0"; cat "$0/data.txt"', str(checkout)]
    done = run_watched(command, hiding=hiding, folder=tmp_path, variables={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert done.stdout == ""
    assert (checkout / "data.txt").read_text() == "data"


def test_a_step_fails_by_exit_code_or_by_a_missing_word(tmp_path):
    command = ["sh", "-c", "echo said; exit 3"]
    done = run_watched(command, hiding=Hiding((), ""), folder=tmp_path, variables={})
    expect(done, code=3, words=("said",))
    with pytest.raises(Failed, match="exit code 3, not 0"):
        expect(done, code=0)
    with pytest.raises(Failed, match="lacks 'more'"):
        expect(done, code=3, words=("more",))
