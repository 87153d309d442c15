"""Test the documents of all stories, and their first screens on a terminal."""

import ast
import io
import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from rich.console import Console

from serve_eval.cli._commands import find_entry
from serve_eval.report.ci import list_annotations, write_junit, write_markdown
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    describe_document_form,
    make_ci_result,
    make_page,
    print_document,
    write_document,
)
from serve_eval.report.document.listing import (
    LINES,
    ListEntry,
    Listing,
    describe_listing_form,
    print_listing,
    write_listing,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, Facts, ScriptData
from serve_eval.report.page.writer import render_page
from serve_eval.report.pictures.picture import Ruler, RulerRow
from serve_eval.report.text import clean
from serve_eval.schema import ResultHeader
from serve_eval.storage.story_files import name_command
from tests.report.document.stories import PACKAGE, STORIES, WORKFLOWS, find_stories, make_documents

SHOWN = {"rich", "typer", "serve_eval.report.ci", "serve_eval.report.page.writer"}
"""Modules that no story with a document may import: the faces and the endings."""
LINES_STORIES, COLUMNS = 24, 80
HOSTILE = "</title><script>window.hit = 1</script>\x1b[31m\u202e`|*\n::error::x"


def _list_documents(text="some text"):
    for story in STORIES:
        for name, document in make_documents(story, text).items():
            yield f"{story} {name}", document


DOCUMENTS = dict(_list_documents())


def _borrows(story):
    """Return True if the command of a package ends by the document of another story.

    `runs merge` joins shards and ends as the run that they are together.
    """
    entry = find_entry(name_command(story).split())
    module, _, name = getattr(entry, "place", "app.").partition(".")
    file = ast.parse((PACKAGE / f"cli/{module}.py").read_text())
    function = next((one for one in file.body if getattr(one, "name", "") == name), file)
    imported = {node.module for node in ast.walk(function) if isinstance(node, ast.ImportFrom)}
    others = {f"serve_eval.report.{one}.document" for one in STORIES}
    return bool(imported & others) and "serve_eval.cli._ending" in imported


def test_every_story_has_a_document_or_ends_by_that_of_another():
    packages = {place.stem for place in WORKFLOWS.iterdir() if place.stem.isidentifier()}
    # `data check` and `data requests` print a list of names with what is wrong about each.
    lists = {"gold", "requests_log"}
    lists |= {"__init__", "__pycache__", "demo", "events"}
    without = packages - set(STORIES) - lists
    assert not {one for one in without if not _borrows(one)}
    assert _borrows("merge")
    assert "run" in STORIES


@pytest.mark.parametrize("story", STORIES)
def test_no_story_prints_or_ends_by_itself(story):
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
def test_page_and_junit_name_a_command_of_today(name):
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


def _print(document, *, verbose=False, columns=COLUMNS):
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=True, color_system=None)
    print_document(document, console, verbose=verbose)
    return out.getvalue()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_first_screen_holds_the_verdict_and_what_comes_next(name):
    document = DOCUMENTS[name]
    shown = _print(document)
    lines = shown.splitlines()
    assert len(lines) <= LINES_STORIES - 2  # the lines that name the folder and the page
    assert all(len(line) <= COLUMNS or "serve-eval " in line for line in lines)
    assert lines[bool(document.banner)].startswith(f" {document.verdict} ")
    for command in document.commands[:3]:
        assert command in shown
    whole = _print(document, verbose=True, columns=1000)
    for row in (row for one in document.conclusions for row in one.statements):
        assert clean(row.text).split("\n")[0] in whole


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_face_is_filled(name):
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


def test_texts_of_others_change_no_face():
    for name, document in _list_documents(HOSTILE):
        result = make_ci_result(document)
        assert "<script>window" not in render_page(make_page(document)), name
        ElementTree.fromstring(write_junit(result))
        assert "\x1b[31m" not in _print(document, verbose=True), name
        assert "\u202e" not in write_markdown(result), name
        assert all("\n" not in line for line in list_annotations(result)), name
        json.loads(write_document(document))


def test_a_verification_says_on_the_first_screen_which_part_differs():
    """It is the cause of the deployment, beside the reason why the deployment itself is red."""
    shown = " ".join(_print(DOCUMENTS["verify parts"]).split())
    assert "found in context: some text" in shown


def _print_terminal(document, *, columns=80, terminal=True, **more):
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=terminal, color_system=None)
    print_document(document, console, **more)
    return out.getvalue()


def _make(**more):
    conclusion = Conclusion(name="gsm8k", outcome="FAIL", figures="52.1 against 59.3")
    filled = {
        "story": "run",
        "command": "serve-eval run",
        "header": ResultHeader(started_at="", wall_s=0.0, exit_code=1),
    }
    return Document(**{"conclusions": [conclusion], **filled, **more})


def _tabulate(rows):
    return DataTable(
        title="Table",
        columns=[DataColumn(name="name"), DataColumn(name="n", number=True)],
        rows=[[DataCell(text=f"row {i}"), DataCell(text=str(i))] for i in range(rows)],
    )


words = st.text(alphabet="abc def ghi ", min_size=1, max_size=400)


@settings(max_examples=60)
@given(
    texts=st.lists(words, max_size=30),
    warnings=st.lists(words, max_size=9),
    rows=st.integers(0, 60),
    conclusions=st.integers(1, 40),
    columns=st.integers(60, 200),
)
def test_no_document_is_longer_than_a_screen(texts, warnings, rows, conclusions, columns):
    outcomes = ("PASS", "FAIL", "INCONCLUSIVE")
    document = _make(
        conclusions=[
            Conclusion(name=f"task {i}", outcome=outcomes[i % 3], figures="1 against 2", cause="x")
            for i in range(conclusions)
        ],
        statements=[Statement(label="note", text=text) for text in texts],
        warnings=warnings,
        blocks=[Block(section=_tabulate(rows), depth=Depth.FIRST)],
        commands=["serve-eval diagnose", "serve-eval show", "serve-eval compare", "a fourth one"],
    )
    lines = _print_terminal(document, columns=columns).splitlines()
    assert len(lines) <= 22
    assert lines[0].startswith(" FAIL " if conclusions > 1 else " PASS ")
    assert [line for line in lines if "a fourth" in line] == []
    assert any("serve-eval compare" in line for line in lines)
    hidden = any("with -v" in line or "-v adds" in line for line in lines)
    whole = _print_terminal(document, columns=columns, verbose=True)
    assert hidden or len(whole.splitlines()) <= len(lines) + 4


def test_the_worst_conclusion_comes_first_and_those_that_passed_need_no_words():
    passed = Conclusion(
        name="mmlu",
        outcome="PASS",
        figures="60.1",
        statements=[
            Statement(label="value", text="59 to 61"),
            Statement(label="warning", text="cut"),
        ],
    )
    failed = Conclusion(name="gsm8k", outcome="FAIL", figures="52.1", cause="int4")
    document = _make(conclusions=[passed, failed])
    assert _print_terminal(document).splitlines() == [
        " FAIL   2 tasks: 1 FAIL, 1 PASS",
        " outcome  task   value",
        " FAIL     gsm8k  52.1",
        " PASS     mmlu   60.1",
        " why      gsm8k: int4",
        " warning  mmlu: cut",
        " more     -v adds 1 more fact",
    ]
    assert document.make_line().others == "of 2 tasks: 1 FAIL, 1 PASS"
    assert " value    mmlu: 59 to 61\n" in _print_terminal(document, verbose=True)


def test_a_long_statement_is_cut_on_the_first_screen_only():
    document = _make(statements=[Statement(label="note", text="word " * 100)])
    first, whole = _print_terminal(document), _print_terminal(document, verbose=True)
    assert (first.count("word"), whole.count("word")) == (41, 100)
    assert " ...\n more     -v adds 1 more fact\n" in first


def test_anywhere_but_on_a_terminal_a_statement_is_one_line():
    document = _make(statements=[Statement(label="note", text="word " * 20)])
    assert (
        f" note     {'word ' * 20}".rstrip()
        in _print_terminal(document, terminal=False).splitlines()
    )


def test_a_cause_may_be_longer_than_other_statements():
    conclusion = Conclusion(name="gsm8k", outcome="FAIL", cause="word " * 60)
    assert _print_terminal(_make(conclusions=[conclusion])).count("word") == 60


def test_the_words_of_a_last_column_go_on_below_themselves_on_a_terminal():
    names = ("check", "n", "finding")
    table = DataTable(
        title="Table",
        columns=[DataColumn(name=name, number=name == "n") for name in names],
        rows=[
            [DataCell(text="chat"), DataCell(text="1"), DataCell(text="word " * 30)],
            [DataCell(text="stop"), DataCell(text="2"), DataCell(text="x" * 200)],
        ],
    )
    document = _make(blocks=[Block(section=table)])
    lines = _print_terminal(document, verbose=True).splitlines()
    assert all(len(line) <= 80 for line in lines)
    first = next(i for i, line in enumerate(lines) if line.startswith(" chat   1  word word"))
    assert lines[first + 1].startswith(" " * 11 + "word word")
    assert sum(line.count("word") for line in lines) == 30
    assert sum(line.count("x") for line in lines) == 200
    piped = _print_terminal(document, verbose=True, terminal=False).splitlines()
    assert f" chat   1  {'word ' * 30}".rstrip() in piped
    assert f" stop   2  {'x' * 200}" in piped


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "●"), ("ascii", "o")])
def test_a_ruler_is_drawn_with_marks_that_the_output_can_show(encoding, mark):
    row = RulerRow(label="gsm8k", text="", value=52.0, reference=59.0, threshold=57.0)
    one = Conclusion(
        name="gsm8k",
        outcome="FAIL",
        figures="52.0 against 59.0",
        drawn="● 52.0  ▲ reference 59.0",
        ruler=Ruler(low=50.0, high=70.0, rows=[row]),
    )
    raw = io.BytesIO()
    console = Console(
        file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=80, no_color=True
    )
    print_document(_make(conclusions=[one]), console)
    head, drawn = raw.getvalue().decode(encoding).splitlines()
    assert head.startswith(f" FAIL   gsm8k  {mark} 52.0  ")
    assert re.match(r" {10}50 .* 60$", drawn) is not None
    assert drawn.count(mark) == 1


@pytest.mark.parametrize("notice", ["", "REHEARSAL: nothing was judged"])
def test_a_brief_result_is_its_whole_verdict_on_one_line(notice):
    one = Conclusion(name="gsm8k", outcome="FAIL", figures="52.1 against 59.3, " * 4 + "why")
    *before, line = _print_terminal(
        _make(conclusions=[one], notice=notice), columns=40, brief=True
    ).splitlines()
    assert before == [notice] * bool(notice)
    assert line == f" FAIL   gsm8k  {one.figures}"


def test_the_last_lines_of_a_text_are_kept_on_the_first_screen():
    text = "\n".join(f"line {i}" for i in range(30))
    document = _make(statements=[Statement(label="prompt", text=text, last=3, mark=(0, 4))])
    for terminal in (True, False):
        shown = _print_terminal(document, terminal=terminal).splitlines()
        assert shown[1] == " prompt   ... line 27"
        assert [line.strip() for line in shown[2:4]] == ["line 28", "line 29"]
        assert shown[-1] == " more     -v adds 1 more fact"
        whole = _print_terminal(document, terminal=terminal, verbose=True)
        assert [line.split()[-1] for line in whole.splitlines()[1:]] == list(map(str, range(30)))


def test_facts_of_a_block_come_with_v():
    facts = Facts(title="one of them", rows=[Fact(label="answer", text="a\nb")])
    document = _make(blocks=[Block(section=facts)])
    assert _print_terminal(document).endswith("-v adds 1 more fact\n")
    assert " one of them\n answer   a\n          b\n" in _print_terminal(document, verbose=True)


def test_a_long_table_is_counted_as_a_whole():
    shown = _print_terminal(_make(blocks=[Block(section=_tabulate(5000), depth=Depth.FIRST)]))
    assert len(shown.splitlines()) <= 22
    [count] = re.findall(r"and (\d+) more rows with -v", shown)
    assert f"row {5000 - int(count) - 1} " in shown


def test_the_part_of_a_text_that_decides_is_highlighted():
    document = _make(statements=[Statement(label="answer", text="so it is 42.", mark=(9, 11))])
    out = io.StringIO()
    print_document(
        document, Console(file=out, width=80, force_terminal=True, color_system="standard")
    )
    assert "so it is \x1b[1;7m42\x1b[0m." in out.getvalue()


WORDS = st.lists(st.text("abc \x1b[1m", max_size=30), max_size=8).map(" ".join)
ENTRIES = st.lists(
    st.builds(
        ListEntry,
        name=st.text("abcde", min_size=1, max_size=40),
        text=WORDS,
        more=st.lists(st.just("more of it"), max_size=3),
        wrong=st.booleans(),
    ),
    max_size=60,
)


def _print_listing(listing, *, verbose=False, brief=False):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    print_listing(listing, console, verbose=verbose, brief=brief)
    assert "\x1b" not in out.getvalue()
    return out.getvalue().splitlines()


@settings(max_examples=60)
@given(ENTRIES)
def test_few_lines_are_printed_and_nothing_is_lost_with_v(entries):
    listing = Listing(title="all", entries=entries, notes=["a note"], next="serve-eval data list")
    shown, whole = _print_listing(listing), _print_listing(listing, verbose=True)
    assert len(shown) <= LINES
    assert (shown[0], whole[0], whole[-1]) == ("all", "all", "  serve-eval data list")
    assert whole.count("      more of it") == sum(len(one.more) for one in entries)
    assert "  a note" in whole
    assert _print_listing(listing, brief=True) == [one.name for one in entries]


def test_names_that_cannot_be_used_come_before_a_row_of_names():
    many = [ListEntry(name=f"name{i}", text="works") for i in range(40)]
    shown = _print_listing(
        Listing(title="41", entries=[*many, ListEntry(name="x", text="bad", wrong=True)])
    )
    assert shown[1] == "  x: bad"
    assert "name39" in shown[-2]
    assert shown[-1] == "  all of it: -v; names alone: -q; as JSON: --json"


def test_the_json_of_a_list_fits_its_schema():
    entries = [ListEntry(name="a", text="b", more=["c"]), ListEntry(name="x", wrong=True)]
    for result in (b"", b'{"known": 1}'):
        listing = Listing(title="2", entries=entries, notes=["n"], next="go", result=result)
        form = json.loads(write_listing(listing))
        Draft202012Validator(describe_listing_form()).validate(form)
        assert [one["name"] for one in form["entries"]] == ["a", "x"]
        assert form["result"] == (json.loads(result) if result else None)
