"""Test the commands, examples and reference of the pages, and the container files."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import serve_eval as site_serve_eval
from serve_eval.cli._commands import walk
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from tests.cli.command import serve_eval
from tests.docs.commands import PAGES, list_commands, read_command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_read(page: Path) -> None:
    for command in list_commands(page):
        try:
            read_command(command.words)
        except Exception as error:
            pytest.fail(f"serve-eval {' '.join(command.words)}: {error!r} {error}")


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for words in (
        ["run", "--no-such-flag"],
        ["nothing"],
        ["references", "power", "--samples", "many"],
    ):
        with pytest.raises(Exception, match=r".*"):
            read_command(words)


def test_most_commands_of_the_pages_are_found() -> None:
    assert sum(len(list(list_commands(page))) for page in PAGES) > 120


PAGE = (Path(__file__).resolve().parents[2] / "docs/getting-started.md").read_text()
EXIT_CODES = {"run plan.yaml -o red": 1}
"""Exit codes that are not 0."""


@pytest.mark.slow
def test_the_page_for_new_users_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = {"XDG_STATE_HOME": str(tmp_path / "state"), "COLUMNS": "80"}
    [port] = free_ports(LOOPBACK, None)
    blocks = re.findall(r"^```\n(\$ .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    given, served = 0, ""
    try:
        for step in re.split(r"^\$ serve-eval ", "".join(blocks), flags=re.MULTILINE)[1:]:
            command, *shown = step.rstrip().splitlines()
            words = command.replace("8000", str(port)).replace("ID", served).split()
            done = serve_eval(*words, **state)
            served = "".join(re.findall(r"^id: +(\S+)", done.stdout, re.MULTILINE)) or served
            assert done.returncode == EXIT_CODES.get(command, 0), (command, done.stderr)
            given += 1
            printed = (done.stdout + done.stderr).replace(str(port), "8000").splitlines()
            for line in shown:
                begins = line.removesuffix("...").rstrip()
                assert any(one.startswith(begins) for one in printed), (line, printed)
            if command.startswith("references take"):
                plan = (tmp_path / "plan.yaml").read_text()
                old = "allow_missing_reference: true\n"
                assert old in plan
                (tmp_path / "plan.yaml").write_text(
                    plan.replace(old, "references_dir: my-references\n")
                )
    finally:
        serve_eval("serve", "--stop", "all", **state)
    assert given == 11


ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/docker"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def test_the_image_installs_extras_that_exist_and_starts_our_command() -> None:
    file = (FOLDER / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"wheel\}\[(.*?)\]", file)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", file, re.MULTILINE)
    assert set(json.loads(entry)) == set(project["scripts"])
    [pinned] = re.findall(r"build==([\d.]+)", file)
    assert f"build=={pinned}\n" in (ROOT / "constraints.txt").read_text()


def test_the_services_have_commands_that_can_be_read() -> None:
    build = SERVICES["embedded"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    for service in SERVICES.values():
        read_command(shlex.split(service["command"]))


@pytest.mark.slow
def test_the_commands_of_the_services_work_together(tmp_path: Path) -> None:
    [port] = free_ports(LOOPBACK, None)
    serve, check = (
        shlex.split(
            SERVICES[name]["command"]
            .replace("8000", str(port))
            .replace("/results", str(tmp_path))
            .replace("/tmp/embedded", str(tmp_path / "embedded"))
        )
        for name in ("embedded", "check")
    )
    health = [
        word.replace("8000", str(port)) for word in SERVICES["embedded"]["healthcheck"]["test"]
    ]
    command = [sys.executable, "-m", "serve_eval", *serve]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while subprocess.run([sys.executable, *health[2:]], capture_output=True).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert serve_eval(*check).returncode == 3
    finally:
        server.terminate()
        server.wait(30)
    assert (tmp_path / "first/report.json").exists()


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


SITE = Path(__file__).resolve().parents[2] / "docs/_site"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SITE / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_and_public_name(reference: ModuleType) -> None:
    pages = dict(reference.write_pages())
    assert list(pages) == ["commands", "tasks", "scorers", "launchers", "verdicts", "library"]
    for words, _ in walk():
        assert f"\n## {' '.join(words)}\n" in pages["commands"]
    for name in site_serve_eval.__all__:
        assert f"\n## {name}\n" in pages["library"]


def test_the_help_of_a_command_is_whole(reference: ModuleType) -> None:
    texts = dict(reference.list_commands())
    assert "--write-job" in texts["run"]
    assert "--hardware" in texts["references register"]
    assert "All 1" not in texts["run"]
