"""The README stays true: its commands, flags and files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.plan.resolve import resolve
from serve_eval.plugins import registry
from serve_eval.workflows.suite.file import read as read_suite
from serve_eval.yaml_source import parse
from tests.cli.command import serve_eval

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PAGES = README + "".join(
    (ROOT / "docs" / page).read_text() for page in ("method.md", "cases.md", "tasks.md")
)


def _help(*command: str) -> str:
    short = serve_eval(*command, "--help").stdout
    return serve_eval(*command, "--help-all").stdout if "--help-all" in short else short


def test_the_two_commands_stand_at_the_top_and_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r"^make (\w+)", README, re.MULTILINE)[:2] == ["demo", "test"]
    assert README.index("make test") < 400
    for target in re.findall(r"\bmake ([a-z-]+)", PAGES):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_flag_that_is_named_exists() -> None:
    known = "".join(
        _help(*command)
        for command in (
            ["run"],
            ["serve"],
            ["suite"],
            ["smoke"],
            ["watch"],
            ["compare"],
            ["invariants"],
            ["attribute"],
            ["power"],
            ["rescore"],
            ["export"],
            ["drift"],
            *(["cases", name] for name in ("expand", "import-results")),
            *(["references", name] for name in ("import", "register", "show")),
            ["datasets", "fetch"],
        )
    )
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGES)):
        assert re.search(rf"{flag}\b", known), flag


def test_every_command_that_is_named_exists() -> None:
    commands = _help()
    blocks = "".join(re.findall(r"^```\n(.*?)^```", PAGES, re.MULTILINE | re.DOTALL))
    inline = re.findall(r"`serve-eval ([a-z]+)", PAGES)
    for name in {*inline, *re.findall(r"^serve-eval ([a-z]+)", blocks, re.MULTILINE)}:
        assert re.search(rf"\b{name}\b", commands), name


def test_the_plan_file_of_the_readme_is_a_plan() -> None:
    text = re.search(r"```yaml\n(model:.*?)```", README, re.DOTALL)
    assert text is not None
    plan = resolve(parse(text.group(1), "README.md", PlanError).value, {}, {}).plan
    assert [task.name for task in plan.tasks] == ["mmlu", "gsm8k"]


@pytest.mark.parametrize("page", ["README.md", "docs/suites.md", "docs/endpoints.md"])
def test_the_suite_files_of_the_pages_are_suites(page: str, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    (tmp_path / "my-references").mkdir()
    for name in ("nightly-fp8", "llama"):
        (tmp_path / f"plans/{name}.yaml").write_text("model: org/m\ntasks: [gsm8k]\n")
    found = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    suites = [text for text in found if re.search(r"^(matrix|plans):", text, re.MULTILINE)]
    assert suites
    for text in suites:
        (tmp_path / "suite.yaml").write_text(
            text.replace("my-references", str(tmp_path / "my-references"))
        )
        assert len(read_suite(tmp_path / "suite.yaml", {}).runs) > 1


def test_the_table_of_tasks_has_a_row_for_each() -> None:
    for name in registry.names("serve_eval.tasks"):
        assert f"\n| {name} |" in (ROOT / "docs/tasks.md").read_text()
        assert re.search(rf"\b{name}\b", README[README.index("## Tasks") :])


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
)
def test_every_linked_file_is_there(page: str) -> None:
    path = ROOT / page
    for place in re.findall(r"\]\(([\w./-]+)\)", path.read_text()):
        assert (path.parent / place).exists(), place
