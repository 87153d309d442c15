"""The sdist and the wheel made from it hold everything that a user needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_wheel_holds_both_packages_the_references_and_the_licences(dist: Path) -> None:
    names = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    shipped = {f"serve_eval/references/{file.name}" for file in (ROOT / "references").glob("*.yaml")}
    assert len(shipped) == 22
    assert shipped <= names
    assert {
        "serve_eval/py.typed",
        "launchers/py.typed",
        "serve_eval/cases/example.yaml",
        "launchers/external.py",
    } <= names
    assert {name.rsplit("/", 1)[-1] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    for file in (
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        assert f"launchers/_embedded/model/{file}" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "training/"))]


def test_the_sdist_holds_what_the_readme_commands_need(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "Makefile",
        "constraints.txt",
        "README.md",
        "references/gsm8k.yaml",
        "training/train.py",
        "tests/test_packaging.py",
    } <= names


def test_the_installed_wheel_finds_its_references_far_from_the_checkout(dist: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(next(dist.glob("*.whl")))], check=True, timeout=120)
    script = (
        "from serve_eval.verdicts.references import load, shipped_dir; folder = shipped_dir();"
        "print(folder); print(len(load(folder / 'mmlu.yaml')))"
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


def test_the_version_stands_in_one_place() -> None:
    import serve_eval

    done = subprocess.run(
        [sys.executable, "-m", "serve_eval", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"serve-eval {serve_eval.__version__}\n"
    assert serve_eval.__version__ not in (ROOT / "pyproject.toml").read_text()


def test_the_constraints_name_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert lines[0].startswith("#")
    for line in lines[1:]:
        name, separator, version = line.partition("==")
        assert name
        assert separator
        assert version[0].isdigit(), line
        assert "/" not in line
