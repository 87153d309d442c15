"""Test the lost samples of a red task by kind: diagnose never has nothing to say of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.report.document import Document
from serve_eval.workflows.diagnose.breakdown import (
    Breakdown,
    describe_kinds,
    describe_misses,
    is_one_edit,
)
from serve_eval.workflows.diagnose.extraction import fold
from serve_eval.workflows.diagnose.story import diagnose
from tests.cli.command import serve_eval
from tests.workflows.diagnose.server import (
    Act,
    Asked,
    Said,
    Server,
    answers_to,
    make_document_of,
    plan_for,
    run,
)

pytestmark = pytest.mark.usefixtures("simulated_here")


def _break_down(act: Act, out: Path) -> tuple[Breakdown | None, Document]:
    plan = plan_for(out)
    run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), out / "out")
    found = diagnose(out / "out")
    [task] = found.runs[0].tasks
    return task.breakdown, make_document_of(out / "out")


def _one_digit_off(asked: Asked) -> Said:
    return Said(text=f"{asked.target}0")


def _stated(asked: Asked) -> Said:
    number = asked.target.rpartition("#### ")[2]
    said = f"All in all, the answer is {number}."
    return Said(text=said if asked.chance("so") < 0.45 else asked.target)


def _mixed(asked: Asked) -> Said:
    chance = asked.chance("kind")
    if chance < 0.3:
        return Said(text="", tokens=1)
    if chance < 0.6:
        return Said(text="hm", tokens=1)
    return Said(text="no", status=400) if chance < 0.9 else Said(text=f"{asked.target}99")


@pytest.mark.parametrize(("act", "name"), [(_one_digit_off, "near"), (_stated, "unread")])
def test_near_misses_and_unread_answers_are_counted(act: Act, name: str, tmp_path: Path) -> None:
    found, said = _break_down(act, tmp_path)
    assert found is not None
    lost = sum(found.kinds.values())
    assert {"near": found.near, "unread": found.unread}[name] == lost > 30
    assert found.reference == 90.0
    assert len(found.examples) == 3
    [conclusion] = said.conclusions
    rows = [(row.label, row.text) for row in conclusion.statements]
    assert [label for label, _ in rows].count("e.g.") == 3
    [kinds] = [text for label, text in rows if label == "lost"]
    assert f"{lost} " in kinds.partition("; ")[2]
    assert any(
        line.startswith("serve-eval show ") and " --capsule " in line for line in said.commands
    )
    assert " against 90.0 " in conclusion.figures


def test_every_lost_sample_has_a_kind(tmp_path: Path) -> None:
    found, _ = _break_down(_mixed, tmp_path)
    assert found is not None
    assert set(found.kinds) == {"unanswered", "unreadable", "empty", "wrong"}
    assert sum(found.kinds.values()) == 100
    assert all(one.answer == f"{one.target}99" for one in found.examples[: found.kinds["wrong"]])


def test_a_green_task_has_no_breakdown(tmp_path: Path) -> None:
    found, said = _break_down(lambda asked: Said(text=asked.target), tmp_path)
    assert found is None
    assert "there is no loss to explain" in [row.text for row in said.conclusions[0].statements]
    assert not said.commands


def test_an_expected_text_keeps_its_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "c:\n"
        "  - {case: a, input: {prompt: x1}, expected: 'red, green'}\n"
        "  - {case: b, input: {prompt: x2}, expected: {answer: '1,234'}}\n"
        "  - {case: c, input: {prompt: x3}, expected: ['a, b', c], scorer: set}\n"
    )
    asked = ("--cases", "c.yaml", "--launcher", "simulated", "--set", "launcher.accuracy=0")
    done = serve_eval("run", *asked, "--model", "m", "--no-reference", "-o", "OUT")
    assert done.returncode == 3, done.stderr
    said = serve_eval("diagnose", "OUT", "-v").stdout
    for shown in ("expected 'red, green'", "expected '1,234'", """expected '["a, b","c"]'"""):
        assert shown in said


@pytest.mark.parametrize(
    ("text", "expected", "folded"),
    [
        ("1,234", "1234", "1234"),
        ("$1,234.", "1,234", "1234"),
        ("1,2", "1,2", "1,2"),
        ("Red, green", "red, blue", "red, green"),
        ("$5, $6", "$5, $7", "$5, $6"),
    ],
)
def test_commas_go_only_where_a_number_is_expected(text: str, expected: str, folded: str) -> None:
    assert fold(text, expected) == folded


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("42", "43", True),
        ("42", "412", True),
        ("412", "42", True),
        ("24", "42", True),
        ("42", "42", False),
        ("42", "4213", False),
        ("142", "241", False),
        ("1234", "1342", False),
        ("", "7", True),
    ],
)
def test_one_edit(a: str, b: str, one: bool) -> None:
    assert is_one_edit(a, b) is one


def test_what_is_absent_is_not_described() -> None:
    found = Breakdown(
        reference=None,
        kinds={"wrong": 1},
        cut={},
        near=0,
        unread=0,
        examples=(),
        judge_errors=("judge j: 2 failed of 4 judgements",),
        next=("serve-eval verify GOOD U",),
    )
    assert describe_kinds(found) == "1 wrong"
    assert list(describe_misses(found)) == []
