"""The first screen of documents that have more to show than it holds."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from serve_eval.report.document import Block, Conclusion, Depth, Document, Statement, print_document
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, Facts
from serve_eval.report.pictures.picture import Ruler, RulerRow
from serve_eval.schema import ResultHeader


def _print(document: Document, *, columns: int = 80, terminal: bool = True, **more: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=columns, force_terminal=terminal, color_system=None)
    print_document(document, console, **more)
    return out.getvalue()


def _make(**more: object) -> Document:
    conclusion = Conclusion(name="gsm8k", outcome="FAIL", figures="52.1 against 59.3")
    filled = {
        "story": "run",
        "command": "serve-eval run",
        "header": ResultHeader(started_at="", wall_s=0.0, exit_code=1),
    }
    return Document(**{"conclusions": [conclusion], **filled, **more})  # type: ignore[arg-type]


def _tabulate(rows: int) -> DataTable:
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
def test_no_document_is_longer_than_a_screen(
    texts: list[str], warnings: list[str], rows: int, conclusions: int, columns: int
) -> None:
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
    lines = _print(document, columns=columns).splitlines()
    assert len(lines) <= 22
    assert lines[0].startswith(" FAIL " if conclusions > 1 else " PASS ")
    assert [line for line in lines if "a fourth" in line] == []
    assert any("serve-eval compare" in line for line in lines)
    hidden = any("with -v" in line or "-v adds" in line for line in lines)
    whole = _print(document, columns=columns, verbose=True)
    assert hidden or len(whole.splitlines()) <= len(lines) + 4


def test_the_worst_conclusion_comes_first_and_those_that_passed_need_no_words() -> None:
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
    assert _print(document).splitlines() == [
        " FAIL   2 tasks: 1 FAIL, 1 PASS",
        " outcome  task   value",
        " FAIL     gsm8k  52.1",
        " PASS     mmlu   60.1",
        " why      gsm8k: int4",
        " warning  mmlu: cut",
        " more     -v adds 1 more fact",
    ]
    assert document.make_line().others == "of 2 tasks: 1 FAIL, 1 PASS"
    assert " value    mmlu: 59 to 61\n" in _print(document, verbose=True)


def test_a_long_statement_is_cut_on_the_first_screen_only() -> None:
    document = _make(statements=[Statement(label="note", text="word " * 100)])
    first, whole = _print(document), _print(document, verbose=True)
    assert (first.count("word"), whole.count("word")) == (41, 100)
    assert " ...\n more     -v adds 1 more fact\n" in first


def test_anywhere_but_on_a_terminal_a_statement_is_one_line() -> None:
    document = _make(statements=[Statement(label="note", text="word " * 20)])
    assert f" note     {'word ' * 20}".rstrip() in _print(document, terminal=False).splitlines()


def test_a_cause_may_be_longer_than_other_statements() -> None:
    conclusion = Conclusion(name="gsm8k", outcome="FAIL", cause="word " * 60)
    assert _print(_make(conclusions=[conclusion])).count("word") == 60


def test_the_words_of_a_last_column_go_on_below_themselves_on_a_terminal() -> None:
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
    lines = _print(document, verbose=True).splitlines()
    assert all(len(line) <= 80 for line in lines)
    first = next(i for i, line in enumerate(lines) if line.startswith(" chat   1  word word"))
    assert lines[first + 1].startswith(" " * 11 + "word word")
    assert sum(line.count("word") for line in lines) == 30
    assert sum(line.count("x") for line in lines) == 200
    piped = _print(document, verbose=True, terminal=False).splitlines()
    assert f" chat   1  {'word ' * 30}".rstrip() in piped
    assert f" stop   2  {'x' * 200}" in piped


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", "●"), ("ascii", "o")])
def test_a_ruler_is_drawn_with_marks_that_the_output_can_show(encoding: str, mark: str) -> None:
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
def test_a_brief_result_is_its_whole_verdict_on_one_line(notice: str) -> None:
    one = Conclusion(name="gsm8k", outcome="FAIL", figures="52.1 against 59.3, " * 4 + "why")
    *before, line = _print(
        _make(conclusions=[one], notice=notice), columns=40, brief=True
    ).splitlines()
    assert before == [notice] * bool(notice)
    assert line == f" FAIL   gsm8k  {one.figures}"


def test_the_last_lines_of_a_text_are_kept_on_the_first_screen() -> None:
    text = "\n".join(f"line {i}" for i in range(30))
    document = _make(statements=[Statement(label="prompt", text=text, last=3, mark=(0, 4))])
    for terminal in (True, False):
        shown = _print(document, terminal=terminal).splitlines()
        assert shown[1] == " prompt   ... line 27"
        assert [line.strip() for line in shown[2:4]] == ["line 28", "line 29"]
        assert shown[-1] == " more     -v adds 1 more fact"
        whole = _print(document, terminal=terminal, verbose=True)
        assert [line.split()[-1] for line in whole.splitlines()[1:]] == list(map(str, range(30)))


def test_facts_of_a_block_come_with_v() -> None:
    facts = Facts(title="one of them", rows=[Fact(label="answer", text="a\nb")])
    document = _make(blocks=[Block(section=facts)])
    assert _print(document).endswith("-v adds 1 more fact\n")
    assert " one of them\n answer   a\n          b\n" in _print(document, verbose=True)


def test_a_long_table_is_counted_as_a_whole() -> None:
    shown = _print(_make(blocks=[Block(section=_tabulate(5000), depth=Depth.FIRST)]))
    assert len(shown.splitlines()) <= 22
    [count] = re.findall(r"and (\d+) more rows with -v", shown)
    assert f"row {5000 - int(count) - 1} " in shown


def test_the_part_of_a_text_that_decides_is_highlighted() -> None:
    document = _make(statements=[Statement(label="answer", text="so it is 42.", mark=(9, 11))])
    out = io.StringIO()
    print_document(
        document, Console(file=out, width=80, force_terminal=True, color_system="standard")
    )
    assert "so it is \x1b[1;7m42\x1b[0m." in out.getvalue()
