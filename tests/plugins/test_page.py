"""The folder of docs/extending.md, cut out of the page and run by the page's own commands."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The working directory with the page's files; the commands of the page."""
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"^`(my-[\w/.-]+)`[^\n]*\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(files) == 4
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    [commands] = re.findall(r"^```\n(serve-eval .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in commands.replace("\\\n", "").splitlines()]


def test_the_commands_of_the_page_list_and_run_what_it_shows(written: list[list[str]], tmp_path: Path) -> None:
    (_, *listing), (_, *run) = written
    told = serve_eval(*listing)
    assert told.returncode == 0, told.stderr
    assert f"\n      from {tmp_path}/my-evals/tasks/rivers.py\n      article: True\n" in told.stdout
    good = serve_eval(*run)
    assert good.returncode == 0, good.stderr
    report = json.loads((tmp_path / "OUT/report.json").read_text())
    [task] = report["tasks"]
    assert (task["result"]["value"], task["verdict"]["rule"], task["verdict"]["threshold"]) == (100.0, "within", 95.0)
    assert set(report["environment"]["extensions"]) == {"tasks.rivers", "verdicts.within"}
    bad = serve_eval(*run, "--set", "launcher.accuracy=0.0", "-o", tmp_path / "bad")
    assert bad.returncode == 1, bad.stderr


def test_the_entry_points_of_the_page_are_those_of_the_example_package() -> None:
    [shown] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    package = (ROOT / "tests/plugins/example_package/pyproject.toml").read_text()
    wanted = tomllib.loads(shown)["project"]["entry-points"]
    assert tomllib.loads(package)["project"]["entry-points"] == wanted
    assert set(wanted) == {f"serve_eval.{kind}" for kind in ("tasks", "scorers", "launchers", "verdicts")}
