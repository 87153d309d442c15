"""The examples of tasks, scorers, rules and launchers pass the linters of this repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def examples(tmp_path: Path) -> list[str]:
    """Write the files of the pages into packages, and return their paths."""
    page = (ROOT / "docs/extending.md").read_text()
    shown = r"^`my-evals/([\w/.]+\.py)`[^\n]*\n\n```python\n(.*?)^```"
    files = dict(re.findall(shown, page, re.MULTILINE | re.DOTALL))
    for name, place in (("adding-a-task", "tasks/capitals.py"), ("scorers", "scorers/ending.py")):
        text = (ROOT / f"docs/{name}.md").read_text()
        [files[place]] = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert {Path(name).parts[0] for name in files} == {
        *("tasks", "scorers", "launchers", "verdicts")
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_name("__init__.py").write_text("")
    return sorted(files)


def _run(tool: str, *arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_pass_ruff(examples: list[str], tmp_path: Path) -> None:
    config = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    _run("ruff", "check", *config, *examples, cwd=tmp_path)
    _run("ruff", "format", "--check", *config, *examples, cwd=tmp_path)


@pytest.mark.slow
def test_the_examples_pass_mypy(examples: list[str], tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    _run("mypy", "--strict", "--cache-dir", cache, *examples, cwd=tmp_path)
