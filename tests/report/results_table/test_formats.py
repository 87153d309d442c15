"""Test the formats of the table of deployments, narrow or with empty cells too."""

import csv
import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from serve_eval.report.results_table import (
    FORMATS,
    DeploymentRow,
    ResultCell,
    ResultsTable,
    TaskColumn,
    write_table,
    write_text,
)
from serve_eval.report.results_table.cell import name_outcome
from serve_eval.report.results_table.fitted import fit_names, make_ruler
from serve_eval.report.results_table.formats import FIGURES as CSV_FIGURES
from serve_eval.report.results_table.formats import escape_latex
from serve_eval.report.text import clean
from serve_eval.schema import Metric, VerdictOutcome

HOSTILE = (
    "a&b % _ # $ { } ~ ^ \\ | `x` <i> \"q\" 'p' [z] * -- \n\r\t\x1b[31m\u202e é 模 \ud800 x{{1}}"
)
TEXTS = st.text(max_size=40) | st.sampled_from([HOSTILE, "=1+1", "@x", "[a]*", "\\", "`", "]]>"])
SVG = "{http://www.w3.org/2000/svg}"


def _cell(value=65.0, **more):
    kept = {
        "value": value,
        "interval": (40.78, 84.56),
        "outcome": VerdictOutcome.PASS,
        "scored": 20,
        "planned": 20,
        "run": "outputs/a",
    }
    return ResultCell(**{**kept, **more})


def _table(names, cells, task="gsm8k"):
    column = TaskColumn(task=task, heading=task, metric=Metric(), planned=20)
    rows = [
        DeploymentRow(model="org/m", attributes={"run": name}, cells=[cell])
        for name, cell in zip(names, cells, strict=True)
    ]
    return ResultsTable(columns=[column], rows=rows, shown=["run"])


MARKED = _table(
    ["a", "b", "c", "d", "e", "f"],
    [
        _cell(),
        _cell(outcome=VerdictOutcome.FAIL, waived=True),
        _cell(outcome=VerdictOutcome.INCONCLUSIVE, failed=3, repaired=2),
        _cell(64.1, interval=None, estimate=True, scored=11),
        _cell(None, interval=None, outcome=VerdictOutcome.UNSUPPORTED, reason="no guided decoding"),
        None,
    ],
)
FIGURES = ["65.0 [40.8, 84.6] P", "F w", "I f3 r2", "~64.1", "e11", "- U"]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "csv"])
def test_marks_and_their_meaning_are_in_every_format(name):
    written = write_table(MARKED, name).replace("\\textasciitilde{}", "~")
    text = re.sub(r"[{}\\]", "", written).replace("Fw", "F w").replace(" & ", " ")
    for figure in (*FIGURES[:4], "e11"):
        assert figure in " ".join(text.split()), figure
    assert re.search(r"- +U\b", text)
    for meaning in ("P: PASS", "F: FAIL", "w: a waived FAIL", "I: INCONCLUSIVE", "U: UNSUPPORTED"):
        assert meaning in text
    for meaning in ("f: number of failed", "r: number of", "e: number of", "-: not run in"):
        assert meaning in " ".join(text.split())
    assert "e: gsm8k: no value: UNSUPPORTED: no guided decoding" in text
    assert "n 20" in text
    assert "points" in text


def test_csv_has_every_figure_unrounded_and_says_why_one_is_missing():
    rows = list(csv.DictReader(io.StringIO(write_table(MARKED, "csv"), newline="")))
    first, waived, inconclusive, early, unsupported, missing = rows
    assert (first["gsm8k value"], first["gsm8k low"], first["gsm8k high"]) == (
        "65",
        "40.78",
        "84.56",
    )
    assert (waived["gsm8k verdict"], waived["gsm8k waived"]) == ("FAIL", "yes")
    assert (inconclusive["gsm8k failed"], inconclusive["gsm8k repaired"]) == ("3", "2")
    assert (early["gsm8k estimate"], early["gsm8k scored"]) == ("yes", "11")
    assert unsupported["gsm8k no value because"] == "no guided decoding"
    assert missing["gsm8k no value because"].startswith("not run")
    assert missing["gsm8k value"] == ""


# The escapes of LaTeX as a reader of TeX sees them: what is left may not be a sign that it runs.
_COMMANDS = {
    "\\textbackslash{}": "\\",
    "\\textasciitilde{}": "~",
    "\\textasciicircum{}": "^",
    "\\textless{}": "<",
    "\\textgreater{}": ">",
    "\\textbar{}": "|",
    "\\textasciigrave{}": "`",
    "{[}": "[",
    "{]}": "]",
    "{*}": "*",
    "{}": "",
    **{f"\\{sign}": sign for sign in "%_#$&{}"},
}
_TOKEN = re.compile(
    "|".join([r"\\otherchar\{([0-9A-F]+)\}", *map(re.escape, _COMMANDS), r"[^\\{}%_#$&~^`*\[\]]"])
)


def _read_latex(text):
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token is not None, text[at:]
        shown = token[0]
        found.append(chr(int(token[1], 16)) if token[1] else _COMMANDS.get(shown, shown))
        at = token.end()
    return "".join(found)


@given(TEXTS)
@settings(max_examples=80, deadline=None)
def test_latex_prints_any_name_as_it_is(text):
    flat = " ".join(clean(text.encode(errors="replace").decode()).split())
    written = escape_latex(text)
    assert written.isascii()
    assert _read_latex(written) == flat.replace('"', "''")
    assert not re.search("--|''|,,", written)


@given(st.lists(TEXTS, min_size=1, max_size=4), TEXTS)
@settings(max_examples=50, deadline=None)
def test_no_name_changes_the_shape_of_a_table(names, task):
    table = _table(names, [_cell() for _ in names], task)
    lines = write_table(table, "latex").splitlines()
    start, end = lines.index("\\midrule"), lines.index("\\bottomrule")
    body = lines[start + 1 : end]
    assert len(body) == len(names)
    for line in body:
        assert line.endswith(" \\\\")
        assert len(re.findall(r"(?<!\\)&", line)) == 3  # value, interval and marks are apart
    rows = [x for x in write_table(table, "markdown").splitlines() if x.startswith("| ")]
    assert len(rows) == len(names) + 2
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)
    read = list(csv.reader(io.StringIO(write_table(table, "csv"), newline="")))
    assert {len(row) for row in read} == {2 + len(CSV_FIGURES)}
    assert len(read) == len(names) + 1
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in read for cell in row[:2])
    root = ElementTree.fromstring(write_table(table, "svg"))
    assert len(root.findall(f".//{SVG}circle")) == len(names)
    assert root.find(f"{SVG}title") is not None


@given(
    st.lists(st.text("abcdefgh-模", min_size=1, max_size=60), min_size=1, max_size=4, unique=True),
    st.integers(1, 6),
    st.integers(40, 160),
)
@settings(max_examples=50, deadline=None)
def test_no_line_of_the_table_is_wider_than_asked(names, tasks, width):
    columns = [
        TaskColumn(task=f"task{i}", heading=f"task{i}", metric=Metric(), planned=20)
        for i in range(tasks)
    ]
    rows = [
        DeploymentRow(model="org/m", attributes={"run": name}, cells=[_cell()] * tasks)
        for name in names
    ]
    text = write_text(ResultsTable(columns=columns, rows=rows, shown=["run"]), width)
    assert all(cell_len(line) <= width for line in text.splitlines()[2:])
    assert text.count("65.0 [40.8, 84.6] P") == tasks * len(names)


def test_a_panel_of_the_picture_has_one_task_on_its_own_axis():
    columns = [
        TaskColumn(task="a", heading="a", metric=Metric(), planned=20),
        TaskColumn(task="b", heading="b", metric=Metric(name="ppl", scale=1.0, hi=None), planned=9),
    ]
    cells = [_cell(), _cell(7.5, interval=(7.1, 8.2))]
    row = DeploymentRow(model="m", attributes={}, cells=cells)
    root = ElementTree.fromstring(
        write_table(ResultsTable(columns=columns, rows=[row], shown=[]), "svg")
    )
    said = [text.text for text in root.iter(f"{SVG}text")]
    assert {"points", "ppl", "40", "90", "7", "8.5"} <= set(said)
    assert "b: m: 7.500 [7.100, 8.200] P" in (root.findtext(f"{SVG}desc") or "")


@given(st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=5))
def test_the_axis_holds_every_value(values):
    ruler = make_ruler([_cell(value, interval=None) for value in values])
    assert ruler.low <= min(values) <= max(values) <= ruler.high
    assert 2 <= len(ruler.ticks) <= 9


CELL = ResultCell(
    value=65.0, interval=(40.78, 84.56), outcome=VerdictOutcome.PASS, scored=20, planned=20
)
ADDRESS = "http://gpu-node-{}.cluster.example.org:8000/v1"


def _make(*rows):
    return ResultsTable(
        columns=[TaskColumn(task="gsm8k", heading="gsm8k", metric=Metric(), planned=20)],
        rows=[DeploymentRow(model="org/m", attributes=one, cells=[CELL]) for one in rows],
        shown=list(rows[0]),
    )


ROWS = [
    {"recipe": f"recipe-{i % 2}", "kv": ("auto", "fp8")[i % 2], "endpoint": ADDRESS.format(i)}
    for i in range(4)
]


@pytest.mark.parametrize("width", [60, 70, 80])
def test_what_the_user_said_stays_where_a_shorter_address_is_enough(width):
    text = write_text(_make(*ROWS), width)
    head, _, *rows = text.split("\n\n")[1].splitlines()
    assert head.split()[:3] == ["recipe", "kv", "endpoint"]
    assert len({row.partition("  65.0")[0] for row in rows}) == 4, text
    assert max(map(len, text.splitlines())) <= width


def test_a_sampling_seed_stays_as_long_as_the_time():
    rows = [
        {"recipe": f"recipe-{'x' * 20}-{i // 2}", "sampling seed": str(i % 2 + 1)}
        | {"began": f"2026-11-27 10:00:0{i}"}
        for i in range(4)
    ]
    table = _make(*rows)
    assert fit_names(table, 60).shown == ["recipe", "sampling seed"]
    same = _make(*({**row, "sampling seed": "1"} for row in rows))
    assert "sampling seed" in fit_names(same, 60).shown


def test_a_wide_table_has_the_whole_address():
    assert ADDRESS.format(3) in write_text(_make(*ROWS), 120)


def test_addresses_are_cut_only_as_far_as_they_differ():
    rows = [
        {"recipe": "x" * 30, "endpoint": f"http://{'a' * 20}{i}{'b' * 20}/v1"} for i in range(3)
    ]
    text = write_text(_make(*rows), 70)
    shown = text.split("\n\n")[1].splitlines()[2:]
    assert len(set(shown)) == 3, text


def test_what_tells_no_rows_apart_goes_before_an_address_is_cut():
    rows = [
        {**one, "server": "vLLM 0.11.0 build abcdef", "run": f"r{i}"} for i, one in enumerate(ROWS)
    ]
    text = write_text(_make(*rows), 80)
    assert "not shown here: " in text
    assert "vLLM" not in text
    assert "recipe" in text.split("\n\n")[1].splitlines()[0]


def test_a_reason_of_several_rows_is_one_note():
    lost = ResultCell(
        value=None, interval=None, outcome=VerdictOutcome.ERROR, scored=0, planned=20, reason="dead"
    )
    table = ResultsTable(
        columns=[TaskColumn(task="gsm8k", heading="gsm8k", metric=Metric(), planned=20)],
        rows=[DeploymentRow(model="m", attributes={"run": r}, cells=[lost]) for r in ("a", "b")],
        shown=["run"],
    )
    assert write_text(table).count("dead") == 1
    assert "* a; b: gsm8k: no value: ERROR: dead" in write_text(table)


def test_only_columns_that_are_shown_are_said_to_differ():
    cell = ResultCell(value=50.0, interval=None, outcome=VerdictOutcome.PASS, scored=20, planned=20)
    columns = [
        TaskColumn(task="gsm8k", heading=f"gsm8k (n {n})", metric=Metric(), planned=n)
        for n in (20, 40)
    ]
    table = ResultsTable(
        columns=columns,
        rows=[DeploymentRow(model="m", attributes={"run": "a"}, cells=[cell, cell])],
        shown=["run"],
        differing={"gsm8k": "number of samples"},
    )
    told = "gsm8k: 2 columns, whose values cannot be compared: number of samples differ"
    assert told in list(table.list_notes())
    paired = replace(table, against="b")
    assert "gsm8k: 2 columns, since number of samples differ" in list(paired.list_notes())
    one = replace(table, columns=columns[:1], rows=[replace(table.rows[0], cells=[cell])])
    assert not [note for note in one.list_notes() if "columns" in note]


WHY = "something is the matter"


def _table_no_figure(outcome, *, value, against, why):
    cells = [
        ResultCell(
            value=value,
            interval=None,
            outcome=outcome,
            scored=20,
            planned=20,
            run="a",
            reason=why if value is None else "",
            no_difference=name_outcome(outcome, why),
        ),
        None,
    ]
    columns = [
        TaskColumn(task=name, heading=name, metric=Metric(), planned=20)
        for name in ("gsm8k", "mmlu")
    ]
    row = DeploymentRow(model="org/m", attributes={"run": "a"}, cells=cells)
    return ResultsTable(columns=columns, rows=[row], shown=["run"], against=against)


def _read(text):
    return " ".join(re.sub(r"<[^>]*>|[{}\\]", " ", text).split())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", VerdictOutcome)
@pytest.mark.parametrize("value", [None, 65.0])
def test_a_difference_that_is_missing_has_its_own_reason(name, outcome, value):
    table = _table_no_figure(outcome, value=value, against="the reference", why=WHY)
    text = _read(write_table(table, name))
    assert name_outcome(outcome, WHY) in text
    assert "not run in this way, or not finished" in text
    for other in {one.value for one in VerdictOutcome} - {outcome.value}:
        assert other not in text.replace(outcome.value, "")


@pytest.mark.parametrize("name", ["latex", "svg"])
@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_a_paper_leaves_paths_out_and_not_the_reason(name, outcome):
    table = _table_no_figure(
        outcome, value=None, against="it", why=f"{WHY}; see /etc/x; run serve-eval y"
    )
    text = _read(write_table(table, name))
    assert f"no difference: {name_outcome(outcome, WHY)}" in text
    assert "/etc" not in text
    only = _table_no_figure(outcome, value=None, against="it", why="see /etc/x")
    text = _read(write_table(only, name))
    judged = outcome in (VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE)
    reason = "the runs cannot be paired" if judged else outcome.value
    assert f"no difference: {reason}" in text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("outcome", VerdictOutcome)
def test_a_value_that_is_missing_has_its_reason(name, outcome):
    text = _read(write_table(_table_no_figure(outcome, value=None, against="", why=WHY), name))
    assert WHY in text
    bare = write_table(_table_no_figure(outcome, value=None, against="", why=""), name)
    assert outcome.value in _read(bare)


def test_csv_says_why_there_is_no_difference_next_to_a_value():
    table = _table_no_figure(VerdictOutcome.NO_REFERENCE, value=65.0, against="", why=WHY)
    [row] = csv.DictReader(io.StringIO(write_table(table, "csv"), newline=""))
    assert (row["gsm8k value"], row["gsm8k no value because"]) == ("65", "")
    assert row["gsm8k no difference because"] == f"NO REFERENCE: {WHY}"
