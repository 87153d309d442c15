"""Test that commands, names and examples in the README and the pages exist."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import serve_eval as site_serve_eval
from serve_eval.cli import app
from serve_eval.cli._commands import CommandEntry, find_entry, walk
from serve_eval.datasets.local import find_sources
from serve_eval.errors import PlanError
from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from serve_eval.plan.options import IN_A_PLAN, ProtocolOptions
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import registry
from serve_eval.plugins.setting import list_declared
from serve_eval.protocol.shared import usual_task
from serve_eval.schema import Spec
from serve_eval.workflows.suite.file import read as read_suite
from serve_eval.yaml_source import parse
from tests.cli.command import serve_eval
from tests.prose.__main__ import long_page_lines
from tests.root import ROOT
from tests.tasks.made_data import NAMES

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\s*(?:- )?(?:run: )?(?:\$ )?(?:\w+=\S+ )*)(serve-eval(?: .+)?)$")
_SYNOPSIS = re.compile(r"^serve-eval [\w ]+:(?: |$)| \[--")
"""The heading of an output, or a line with options in brackets."""
_ENDS = ("|", ">", "2>", "<", "&&", "||", "&", ";")
ROOT_OPTIONS = {"--version", "--help", "-h", "--install-completion", "--show-completion"}


class PageCommand(NamedTuple):
    """A command of a page, in words."""

    page: str
    words: list[str]


def list_commands(page):
    """Yield the commands in the blocks of a page."""
    for block in _FENCE.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            found = _COMMAND.match(line.rstrip())
            if found is not None and not _SYNOPSIS.search(found[1]):
                yield PageCommand(page.name, _split(found[1]))


def _split(line):
    words = shlex.split(re.split(r" {2,}", line)[0], comments=True)[1:]
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: min(ends, default=len(words))]


def read_command(words):
    """Read a command as `serve-eval` does, without calling it. Raises click's UsageError."""
    if not words or words[0] in ROOT_OPTIONS:
        return
    settings = app.app.info.context_settings
    ends = (n for n in range(1, len(words) + 1) if isinstance(find_entry(words[:n]), CommandEntry))
    count = next(ends, 0)
    if not count and set(words) & ROOT_OPTIONS:
        return
    command = app.make_command(*words[:count])
    path, rest = " ".join(("serve-eval", *words[:count])), words[count:]
    if not {"--help", "-h", "--help-all"} & set(rest):
        command.make_context(path, list(rest), **settings)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_can_be_read(page):
    for command in list_commands(page):
        try:
            read_command(command.words)
        except Exception as error:
            pytest.fail(f"serve-eval {' '.join(command.words)}: {error!r} {error}")


def test_a_command_that_does_not_exist_is_noticed():
    for words in (
        ["run", "--no-such-flag"],
        ["nothing"],
        ["references", "power", "--samples", "many"],
    ):
        with pytest.raises(Exception, match=r".*"):
            read_command(words)


def test_most_commands_of_the_pages_are_found():
    assert sum(len(list(list_commands(page))) for page in PAGES) > 120


PAGE = (ROOT / "docs/getting-started.md").read_text()
EXIT_CODES = {"run plan.yaml -o red": 1}
"""Exit codes that are not 0."""


@pytest.mark.slow
def test_the_page_for_new_users_prints_what_it_shows(tmp_path, monkeypatch):
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


FOLDER = ROOT / "docs/docker"
SERVICES = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def test_the_image_installs_extras_that_exist_and_starts_our_command():
    file = (FOLDER / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"wheel\}\[(.*?)\]", file)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", file, re.MULTILINE)
    assert set(json.loads(entry)) == set(project["scripts"])
    [pinned] = re.findall(r"build==([\d.]+)", file)
    assert f"build=={pinned}\n" in (ROOT / "constraints.txt").read_text()


def test_the_services_have_commands_that_can_be_read():
    build = SERVICES["embedded"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    for service in SERVICES.values():
        read_command(shlex.split(service["command"]))


@pytest.mark.slow
def test_the_commands_of_the_services_work_together(tmp_path):
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
def examples(tmp_path):
    """Write the files of the pages into packages, and return their paths."""
    page = (ROOT / "docs/extending.md").read_text()
    shown = r"^`(?:my-evals|serve_eval)/([\w/.]+\.py)`[^\n]*\n\n```python\n(.*?)^```"
    files = dict(re.findall(shown, page, re.MULTILINE | re.DOTALL))
    assert {Path(name).parts[0] for name in files} == {
        *("tasks", "scorers", "launchers", "verdicts")
    }
    assert len(files) > 5
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).with_name("__init__.py").write_text("")
    return sorted(files)


def _run(tool, *arguments, cwd):
    done = subprocess.run(
        [sys.executable, "-m", tool, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_pass_ruff(examples, tmp_path):
    config = ("--config", str(ROOT / "pyproject.toml"), "--no-cache")
    _run("ruff", "check", *config, *examples, cwd=tmp_path)
    _run("ruff", "format", "--check", *config, *examples, cwd=tmp_path)


@pytest.mark.slow
def test_the_examples_pass_mypy(examples, tmp_path):
    cache = str(tmp_path / "cache")
    _run("mypy", "--strict", "--cache-dir", cache, *examples, cwd=tmp_path)


SITE = ROOT / "docs/_site"


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location("reference", SITE / "reference.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_and_public_name(reference):
    pages = dict(reference.write_pages())
    assert list(pages) == ["commands", "tasks", "scorers", "launchers", "verdicts", "library"]
    for words, _ in walk():
        assert f"\n## {' '.join(words)}\n" in pages["commands"]
    for name in site_serve_eval.__all__:
        assert f"\n## {name}\n" in pages["library"]


def test_the_help_of_a_command_is_whole(reference):
    texts = dict(reference.list_commands())
    assert "--write-job" in texts["run"]
    assert "--hardware" in texts["references register"]
    assert "All 1" not in texts["run"]


README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
OUR_FLAGS = ("getting-started", "run", "references", "tasks", "compare", "verify", "check", "watch")
OUR_FLAGS += ("own-questions", "method")
"""Pages that name no flag of another tool."""
PAGES_TEXT = README + "".join((DOCS / f"{page}.md").read_text() for page in OUR_FLAGS)
NO_FLAGS = re.search(r"^## Keys without a flag$.*", (DOCS / "run.md").read_text(), re.M | re.S)
"""The section that names keys by the flags that they do not have."""
LINKING = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
LINKING += sorted(str(path.relative_to(ROOT)) for path in DOCS.rglob("*.md"))
TO_DO = "run make task-pages, which adds what a new task lacks"


def test_the_two_commands_stand_at_the_top_and_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    first = re.findall(r"^make (\w+)", README, re.MULTILINE)[:2]
    assert first == ["demo", "test"], "README begins with make demo and make test"
    assert README.index("make test") < 400, "README begins with make demo and make test"
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", PAGES_TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), (
            f"a page names make {target}, which the Makefile lacks"
        )


def test_every_flag_that_is_named_exists(reference):
    known = "".join(text for _, text in reference.list_commands())
    pages = PAGES_TEXT.replace(NO_FLAGS[0], "")
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", pages)):
        assert re.search(rf"{flag}\b", known), f"a page names {flag}, which no help has"


def test_the_table_of_keys_without_a_flag_has_all_of_them():
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \| `([A-Z_]+)` \|$", NO_FLAGS[0], re.MULTILINE)
    assert sorted(rows) == sorted(
        (one.place, one.flags[0].partition("/")[0], one.variable)
        for structure in (*IN_A_PLAN, ProtocolOptions)
        for one in list_declared(structure)
        if not one.setting.flag
    )


def test_every_command_that_is_named_exists():
    commands = serve_eval("--help").stdout
    fences = re.findall(r"^```(\w*)\n(.*?)^```", PAGES_TEXT, re.MULTILINE | re.DOTALL)
    blocks = "".join(text for language, text in fences if not language)
    inline = re.findall(r"`serve-eval ([a-z]+)", PAGES_TEXT)
    for name in {*inline, *re.findall(r"^(?:\$ )?serve-eval ([a-z]+)", blocks, re.MULTILINE)}:
        assert re.search(rf"\b{name}\b", commands), (
            f"a page names serve-eval {name}, which is no command"
        )


def test_the_plan_file_of_the_readme_is_a_plan():
    text = re.search(r"```yaml\n(model:.*?)```", README, re.DOTALL)
    plan = resolve(parse(text.group(1), "README.md", PlanError).value, {}, {}).plan
    assert [task.name for task in plan.tasks] == ["mmlu", "gsm8k"]


@pytest.mark.parametrize("page", ["docs/ci.md", "docs/requests.md"])
def test_the_suite_files_of_the_pages_are_suites(page, tmp_path):
    (tmp_path / "plans").mkdir()
    (tmp_path / "my-references").mkdir()
    for name in ("nightly-fp8", "llama"):
        (tmp_path / f"plans/{name}.yaml").write_text(
            "model: org/m\ntasks: [gsm8k]\nbase_url: h:1\n"
        )
    found = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    suites = [text for text in found if re.search(r"^(matrix|plans):", text, re.MULTILINE)]
    assert suites
    for text in suites:
        (tmp_path / "suite.yaml").write_text(
            text.replace("my-references", str(tmp_path / "my-references"))
        )
        assert len(read_suite(tmp_path / "suite.yaml", {}).runs) > 1


def _base(name):
    """Return the task of which another one is the control."""
    return name.removesuffix("_alone")


def test_the_table_of_tasks_has_a_row_for_each():
    for name in registry.names("serve_eval.tasks"):
        assert f"\n| {name} |" in (ROOT / "docs/tasks.md").read_text(), f"{name}: {TO_DO}"


def test_the_table_of_data_has_a_row_for_each_task_that_reads_some():
    page = (DOCS / "tasks.md").read_text()
    table = page[page.index("| task | folders") :].partition("\n\n")[0]
    cells = [cell for row in table.splitlines() for cell in row.split("|")[1].split(",")]
    known = find_sources()
    for name in NAMES:
        sets = usual_task(Spec(name=name)).datasets if name != "cases" else ()
        unknown = set(sets) - known.keys()
        assert not unknown, f"{name}: datasets names {unknown}, of which no file has a SOURCE"
        named = any(fnmatch.fnmatchcase(name, cell.strip()) for cell in cells)
        assert named or not sets, f"{name}: {TO_DO}"


@pytest.mark.parametrize("page", LINKING)
def test_every_link_leads_to_a_file_and_a_heading(page):
    path = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{page}: no file of the link {link}"
        assert not heading or heading in _headings(target), f"{page}: no heading of the link {link}"


def _headings(path):
    """Return the anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_names_every_page_once():
    links = re.findall(r"^\* \[.*?\]\((.*?)\)", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert sorted(links) == sorted(path.name for path in DOCS.glob("*.md") if path.stem != "README")


def test_the_readme_and_the_pages_are_as_short_as_promised():
    assert (len(README.splitlines()) <= 120, len(README.split()) <= 900) == (True, True)
    pages = list(DOCS.glob("*.md"))
    words = {page.stem: len(page.read_text().split()) for page in pages}
    assert (len(pages) <= 20, sum(words.values()) <= 50_000) == (True, True), words


def test_the_changes_of_a_release_are_read_in_a_minute():
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases
    for text in releases:
        assert len(text.splitlines()) <= 60, text.partition("\n")[0]


def test_the_sidebar_has_four_groups():
    index = (DOCS / "README.md").read_text()
    groups = re.findall(r"^## .*\n\n\* \[", index, re.MULTILINE)
    assert len(groups) == 4


def test_no_page_has_lines_that_could_be_shorter():
    found = "\n".join(map(str, long_page_lines(ROOT)))
    assert not found, f"reflow these lines to at most 100 characters:\n{found}"


def test_the_notice_names_the_source_of_every_prompt_template():
    templates = (ROOT / "NOTICE").read_text().partition("Prompt templates\n")[2]
    for name in registry.names("serve_eval.tasks"):
        assert re.search(rf"\b{_base(name)}\b", templates), f"{name}: {TO_DO}"


@pytest.mark.slow
def test_the_quick_start_prints_what_the_readme_shows(tmp_path, monkeypatch):
    summary, start = re.findall(
        r"^```\n( FAIL .*?|\$ make demo.*?)^```", README, re.MULTILINE | re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    printed, ran = "", 0
    for command, shown in re.findall(
        r"^\$ serve-eval (.*)\n(.*\S.*)\n", start.replace("\\\n", ""), re.MULTILINE
    ):
        line, _, code = shown.partition("#")
        done = serve_eval(*command.split(), COLUMNS="80")
        begins = line.rstrip().removesuffix(" ...")
        assert any(one.startswith(begins) for one in done.stdout.splitlines()), done.stdout
        assert done.returncode == int(re.sub(r"\D", "", code) or 0), done.stderr
        printed, ran = done.stdout, ran + 1
    assert ran == 4
    # A terminal wraps rows; the page leaves some of them out.
    rows = re.sub(r"\n {10}(?=[\w])(?!\d+ ┴)", " ", summary).splitlines()
    assert len(rows) == 8
    for row in rows:
        assert row in printed.splitlines(), row


LEAST_NAMED = 18


def test_each_fault_of_the_page_has_a_test():
    table = (ROOT / "docs/measured/known-faults.md").read_text().partition("| thread |")[2]
    lines = table.splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    held = [row[3] for row in rows if row[3] != "-"]
    assert len(rows) == 22
    assert len(held) >= LEAST_NAMED
    for name in held:
        file, _, function = name.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE)
