"""Hold every story to the document: it is found by walking the packages, not from a list."""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from serve_eval.cli._commands import find_entry
from serve_eval.report.ci import list_annotations, write_junit, write_markdown
from serve_eval.report.document import (
    Document,
    describe_document_form,
    make_ci_result,
    make_page,
    print_document,
    write_document,
)
from serve_eval.report.page.content import ScriptData
from serve_eval.report.page.writer import render_page
from serve_eval.report.text import clean
from serve_eval.storage.story_files import name_command
from tests.report.document.stories import PACKAGE, STORIES, WORKFLOWS, find_stories, make_documents

SHOWN = {"rich", "typer", "serve_eval.report.ci", "serve_eval.report.page.writer"}
"""Modules that no story with a document may import: the faces and the endings."""
LINES, COLUMNS = 24, 80
HOSTILE = "</title><script>window.hit = 1</script>\x1b[31m\u202e`|*\n::error::x"


def _list_documents(text: str = "some text") -> Iterator[tuple[str, Document]]:
    for story in STORIES:
        for name, document in make_documents(story, text).items():
            yield f"{story} {name}", document


DOCUMENTS = dict(_list_documents())


def _borrows(story: str) -> bool:
    """Return True if the command of a package ends by the document of another story.

    `runs merge` joins shards and ends as the run that they are together.
    """
    file = PACKAGE / f"cli/{'_'.join(name_command(story).split())}.py"
    tree = ast.parse(file.read_text() if file.exists() else "")
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {f"serve_eval.report.{one}.document" for one in STORIES}
    return bool(imported & others) and "serve_eval.cli._ending" in imported


def test_every_story_has_a_document_or_ends_by_that_of_another() -> None:
    packages = {place.stem for place in WORKFLOWS.iterdir() if place.stem.isidentifier()}
    lists = {"gold"}  # `data check` prints a list of names with what is wrong about each.
    lists |= {"__init__", "__pycache__", "demo", "events"}
    without = packages - set(STORIES) - lists
    assert not {one for one in without if not _borrows(one)}
    assert _borrows("merge")
    assert "run" in STORIES


@pytest.mark.parametrize("story", STORIES)
def test_no_story_prints_or_ends_by_itself(story: str) -> None:
    place = find_stories()[story]
    for file in [place] if place.is_file() else place.rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in (
                [node.module or ""] if isinstance(node, ast.ImportFrom)
                else [one.name for one in node.names]
            )
        }  # fmt: skip
        assert not {name for name in names if name in SHOWN or name.split(".")[0] in SHOWN}, file
        calls = {
            node.func.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"print", "exit"}, file


@pytest.mark.parametrize("name", DOCUMENTS)
def test_page_and_junit_name_a_command_of_today(name: str) -> None:
    document = DOCUMENTS[name]
    command = name_command(document.story)
    words = [word for word in command.split() if not word.startswith("-")]
    assert find_entry(words) is not None, command
    page = make_page(document)
    assert page.kind == command
    assert page.title.startswith(f"{command}: ")
    names = [one.name for one in make_ci_result(document).suites]
    assert document.suites or names == [f"serve-eval {command}"]
    for one in names:
        words = one.partition(":")[0].split()[1:]
        known = find_entry(words[:1]) is not None
        assert not one.startswith("serve-eval ") or known, one


def _print(document: Document, *, verbose: bool = False, columns: int = COLUMNS) -> str:
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, color_system=None)
    print_document(document, console, verbose=verbose)
    return out.getvalue()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_first_screen_holds_the_verdict_and_what_comes_next(name: str) -> None:
    document = DOCUMENTS[name]
    shown = _print(document)
    lines = shown.splitlines()
    assert len(lines) <= LINES - 2  # the lines that name the folder and the page
    assert all(len(line) <= COLUMNS or "serve-eval " in line for line in lines)
    assert lines[bool(document.banner)].startswith(f" {document.verdict} ")
    for command in document.commands[:3]:
        assert command in shown
    whole = _print(document, verbose=True, columns=1000)
    for row in (row for one in document.conclusions for row in one.statements):
        assert clean(row.text).split("\n")[0] in whole


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_face_is_filled(name: str) -> None:
    document = DOCUMENTS[name]
    result = make_ci_result(document)
    page = make_page(document)
    assert document.verdict in render_page(page)
    titles = [one.title for one in page.sections if not isinstance(one, ScriptData)]
    assert len(set(titles)) == len(titles), "sections are landmarks, which need names of their own"
    assert document.verdict in write_markdown(result)
    suites = ElementTree.fromstring(write_junit(result))
    assert int(suites.get("tests", "0")) >= 1
    failed = int(suites.get("failures", "0")) + int(suites.get("errors", "0"))
    if document.verdict in ("FAIL", "ERROR") and not document.banner:
        assert failed or document.verdict in result.said
        assert list(list_annotations(result)) or not failed
    form = json.loads(write_document(document, b'{"a": 1}'))
    Draft202012Validator(describe_document_form()).validate(form)
    assert (form["outcome"], form["exit_code"]) == (document.verdict, document.exit_code)
    assert form["result"] == {"a": 1}


def test_texts_of_others_change_no_face() -> None:
    for name, document in _list_documents(HOSTILE):
        result = make_ci_result(document)
        assert "<script>window" not in render_page(make_page(document)), name
        ElementTree.fromstring(write_junit(result))
        assert "\x1b[31m" not in _print(document, verbose=True), name
        assert "\u202e" not in write_markdown(result), name
        assert all("\n" not in line for line in list_annotations(result)), name
        json.loads(write_document(document))


def test_a_verification_says_on_the_first_screen_which_part_differs() -> None:
    """It is the cause of the deployment, beside the reason why the deployment itself is red."""
    shown = " ".join(_print(DOCUMENTS["verify parts"]).split())
    assert "found in context: some text" in shown
