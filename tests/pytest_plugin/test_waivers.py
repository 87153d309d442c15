"""Test waivers in the form of TensorRT-LLM's waives.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.pytest_plugin.waivers import WaivedTest, read_waivers

LINES = """
# the whole line is a comment
accuracy/test_a.py::TestA::test_b SKIP (https://nvbugs/1)
accuracy/test_a.py::TestA::test_b[x=1-y#2] SKIP (https://nvbugs/2)   # and the rest of this one
full:GH200/accuracy/test_a.py::TestA::test_c SKIP (on arm (all of them))
accuracy/test_d.py SKIP
accuracy/test_e.py::TestE XFAIL (wrong)
unittest/test_f.py -m "gpu4 and part0" SKIP (https://nvbugs/3)
accuracy/test_g.py::test_g TIMEOUT (90)
"""


def test_every_form_of_a_line_is_read(tmp_path: Path) -> None:
    file = tmp_path / "waives.txt"
    file.write_text(LINES)
    found = [(one.test, one.mark, one.reason, one.gpu) for one in read_waivers(file)]
    assert found == [
        ("accuracy/test_a.py::TestA::test_b", "skip", "waived: https://nvbugs/1", None),
        ("accuracy/test_a.py::TestA::test_b[x=1-y#2]", "skip", "waived: https://nvbugs/2", None),
        ("accuracy/test_a.py::TestA::test_c", "skip", "waived: on arm (all of them)", "GH200"),
        ("accuracy/test_d.py", "skip", "waived: waives.txt:6", None),
        ("accuracy/test_e.py::TestE", "xfail", "waived: wrong", None),
        ('unittest/test_f.py -m "gpu4 and part0"', "skip", "waived: https://nvbugs/3", None),
    ]


def test_lines_that_waive_nothing_are_all_reported(tmp_path: Path) -> None:
    file = tmp_path / "waives.txt"
    file.write_text("test_a.py::test_a\ntest_b.py::test_b SKIP (ok)\ntest_c.py::test_c SKIPPED x\n")
    with pytest.raises(pytest.UsageError) as raised:
        read_waivers(file)
    told = str(raised.value).splitlines()[1:]
    assert [line.partition(": ")[0] for line in told] == [f"{file}:1", f"{file}:3"]
    with pytest.raises(pytest.UsageError, match="No such file"):
        read_waivers(tmp_path / "absent.txt")


@pytest.mark.parametrize(
    ("test", "nodeid", "covered"),
    [
        ("a/test_a.py::T::test_b", "a/test_a.py::T::test_b", True),
        ("a/test_a.py::T::test_b", "tests/a/test_a.py::T::test_b", True),
        ("a/test_a.py::T::test_b", "tests/aa/test_a.py::T::test_b", False),
        ("a/test_a.py::T::test_b", "a/test_a.py::T::test_b[1]", True),
        ("a/test_a.py::T::test_b", "a/test_a.py::T::test_bc", False),
        ("a/test_a.py::T::test_b[1]", "a/test_a.py::T::test_b[1]", True),
        ("a/test_a.py::T::test_b[1]", "a/test_a.py::T::test_b[12]", False),
        ("a/test_a.py::T::test_b[1]", "a/test_a.py::T::test_b", False),
        ("a/test_a.py", "a/test_a.py::T::test_b[1]", True),
        ("a/test_a.py::T", "a/test_a.py::T::test_b", True),
        ("a/test_a.py::T", "a/test_a.py::T2::test_b", False),
        ("a", "a/test_a.py::T::test_b", True),
        ("a/", "a/test_a.py::T::test_b", True),
    ],
)
def test_a_line_covers_what_pytest_would_select_for_it(
    test: str, nodeid: str, covered: bool
) -> None:
    one = WaivedTest(test=test, mark="skip", reason="")
    assert one.covers(nodeid) is covered
