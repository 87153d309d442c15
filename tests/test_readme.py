"""Test that the README and the page of known faults name things that exist."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from serve_eval.datasets.local import find_sources
from serve_eval.errors import PlanError
from serve_eval.plan.options import IN_A_PLAN, ProtocolOptions
from serve_eval.plan.resolve import resolve
from serve_eval.plugins import registry
from serve_eval.plugins.setting import list_declared
from serve_eval.protocol.shared import usual_task
from serve_eval.schema import Spec
from serve_eval.workflows.suite.file import read as read_suite
from serve_eval.yaml_source import parse
from tests.cli.command import serve_eval
from tests.prose.count import long_page_lines
from tests.tasks.made_data import NAMES
from tests.tasks.task_rows import find_too_long

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
PAGES = README + "".join(
    (DOCS / f"{page}.md").read_text()
    for page in ("run", "run-folder", "references", "drift", "method", "cases", "tasks")
)
NO_FLAGS = re.search(r"^## Keys without a flag$.*", (DOCS / "run.md").read_text(), re.M | re.S)
"""The section that names flags of earlier versions."""
LINKING = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
LINKING += sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))
TO_DO = "run make task-pages, which adds what a new task lacks"


def _help(*command: str) -> str:
    short = serve_eval(*command, "--help").stdout
    return serve_eval(*command, "--help-all").stdout if "--help-all" in short else short


def test_the_two_commands_stand_at_the_top_and_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    first = re.findall(r"^make (\w+)", README, re.MULTILINE)[:2]
    assert first == ["demo", "test"], "README begins with make demo and make test"
    assert README.index("make test") < 400, "README begins with make demo and make test"
    for target in re.findall(r"\bmake ([a-z-]+)", PAGES):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), (
            f"a page names make {target}, which the Makefile lacks"
        )


def test_every_flag_that_is_named_exists() -> None:
    known = "".join(
        _help(*command)
        for command in (
            ["run"],
            ["show"],
            ["serve"],
            ["run"],
            ["smoke"],
            ["watch"],
            ["compare"],
            ["check", "invariants"],
            ["check", "load"],
            ["check", "workers"],
            ["references", "power"],
            ["judge", "--rescore"],
            ["runs", "export"],
            ["runs", "trend"],
            *(["data", "cases", name] for name in ("expand", "import-results")),
            *(["references", name] for name in ("import", "register", "show", "take")),
            ["data", "fetch"],
        )
    )
    assert NO_FLAGS is not None
    pages = PAGES.replace(NO_FLAGS[0], "")
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", pages)):
        assert re.search(rf"{flag}\b", known), f"a page names {flag}, which no help has"


def test_the_table_of_keys_without_a_flag_has_all_of_them() -> None:
    assert NO_FLAGS is not None
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \| `([A-Z_]+)` \|$", NO_FLAGS[0], re.MULTILINE)
    assert sorted(rows) == sorted(
        (one.place, one.flags[0].partition("/")[0], one.variable)
        for structure in (*IN_A_PLAN, ProtocolOptions)
        for one in list_declared(structure)
        if not one.setting.flag
    )


def test_every_command_that_is_named_exists() -> None:
    commands = _help()
    fences = re.findall(r"^```(\w*)\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL)
    blocks = "".join(text for language, text in fences if not language)
    inline = re.findall(r"`serve-eval ([a-z]+)", PAGES)
    for name in {*inline, *re.findall(r"^(?:\$ )?serve-eval ([a-z]+)", blocks, re.MULTILINE)}:
        assert re.search(rf"\b{name}\b", commands), (
            f"a page names serve-eval {name}, which is no command"
        )


def test_the_plan_file_of_the_readme_is_a_plan() -> None:
    text = re.search(r"```yaml\n(model:.*?)```", README, re.DOTALL)
    assert text is not None
    plan = resolve(parse(text.group(1), "README.md", PlanError).value, {}, {}).plan
    assert [task.name for task in plan.tasks] == ["mmlu", "gsm8k"]


@pytest.mark.parametrize("page", ["docs/suites.md", "docs/endpoints.md"])
def test_the_suite_files_of_the_pages_are_suites(page: str, tmp_path: Path) -> None:
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


def _base(name: str) -> str:
    """Return the task of which another one is the control."""
    return name.removesuffix("_alone")


def test_the_table_of_tasks_has_a_row_for_each() -> None:
    for name in registry.names("serve_eval.tasks"):
        assert f"\n| {name} |" in (ROOT / "docs/tasks.md").read_text(), f"{name}: {TO_DO}"
        assert re.search(rf"\b{_base(name)}\b", README[README.index("## Tasks") :]), (
            f"{name}: {TO_DO}"
        )


def test_the_table_of_data_has_a_row_for_each_task_that_reads_some() -> None:
    page = (DOCS / "datasets.md").read_text()
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
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if link.startswith("https://"):
            continue
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{page}: no file of the link {link}"
        assert not heading or heading in _headings(target), f"{page}: no heading of the link {link}"


def _headings(path: Path) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_index_names_every_page_once() -> None:
    links = re.findall(r"^\* \[.*?\]\((.*?)\)", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert sorted(links) == sorted(path.name for path in DOCS.glob("*.md") if path.stem != "README")


def test_the_readme_is_read_in_two_minutes() -> None:
    assert find_too_long(README) is None, find_too_long(README)


def test_no_page_has_lines_that_could_be_shorter() -> None:
    found = "\n".join(map(str, long_page_lines(ROOT)))
    assert not found, f"reflow these lines to at most 100 characters:\n{found}"


def test_the_notice_names_the_source_of_every_prompt_template() -> None:
    templates = (ROOT / "NOTICE").read_text().partition("Prompt templates\n")[2]
    for name in registry.names("serve_eval.tasks"):
        assert re.search(rf"\b{_base(name)}\b", templates), f"{name}: {TO_DO}"


@pytest.mark.slow
def test_the_quick_start_prints_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


ROOT_KNOWN_FAULTS = Path(__file__).parents[1]
LEAST_NAMED = 18


def test_each_fault_of_the_page_has_a_test() -> None:
    lines = (ROOT_KNOWN_FAULTS / "docs/known-faults.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line][2:]
    held = [row[3] for row in rows if row[3] != "-"]
    assert len(rows) == 22
    assert len(held) >= LEAST_NAMED
    for name in held:
        file, _, function = name.partition("::")
        assert re.search(
            rf"^(async )?def {function}\(", (ROOT_KNOWN_FAULTS / file).read_text(), re.MULTILINE
        )
