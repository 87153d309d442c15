"""Test waivers in the form of TensorRT-LLM's waives.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.pytest_plugin.waivers import WaivedTest, read_waivers
from tests.pytest_plugin.run_pytest import run_pytest
from tests.standin.process import free_port

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


TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 30}
    def test_bad(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    def test_dead(self): self.evaluate("word_problems", base_url="localhost:DEAD")
    @pytest.mark.serve_eval(base_url="localhost:DEAD")
    def test_endpoint(self, serve_eval_endpoint): pass
    def test_no_reference(self): self.evaluate("word_problems", model_name="no-such-model")
    def test_own(self, serve_eval): assert serve_eval is None
@pytest.mark.parametrize("n", [1, 2])
def test_plain(n): raise ValueError
"""


@pytest.mark.slow
def test_xfail_covers_a_regression_and_no_infrastructure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS.replace("DEAD", str(free_port())))
    (tmp_path / "waives.txt").write_text("test_it.py XFAIL (bug)\n")
    done = run_pytest(tmp_path, "-rA", "--serve-eval-waivers", "waives.txt")
    assert "4 xfailed, 3 errors" in done.stdout.splitlines()[-1], done.stdout
    assert done.returncode == 1
    for name in ("TestIt::test_dead", "TestIt::test_endpoint", "TestIt::test_no_reference"):
        assert f"ERROR test_it.py::{name} - " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        ((), True),
        (("test_it.py",), True),
        (("-n", "2"), True),
        (("-k", "test"), False),
        (("-m", "not slow"), False),
        (("test_it.py::test_a",), False),
        (("--deselect", "test_it.py::test_b[1]"), False),
        (("--ignore", "test_it.py"), False),
    ],
)
def test_a_waiver_without_a_test_is_warned_of_once(
    tmp_path: Path, arguments: tuple[str, ...], warned: bool
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\n"
        "@pytest.mark.parametrize('n', [1])\ndef test_b(n): pass\n"
    )
    (tmp_path / "test_other.py").write_text("def test_c(): pass\n")
    (tmp_path / "waives.txt").write_text(
        "test_it.py::test_b[1] SKIP (right)\ntest_it.py::test_gone SKIP (old)\n"
        "test_it.py::test_b[2] XFAIL (old)\nelsewhere/test_x.py::test_d SKIP (not here)\n"
        "full:NO_SUCH_GPU/test_it.py::test_away SKIP (not here)\n"
    )
    done = run_pytest(tmp_path, "--serve-eval-waivers", "waives.txt", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, test in ((2, "test_it.py::test_gone"), (3, "test_it.py::test_b[2]")):
        said = f"waives.txt:{number}: AccuracyWarning: waiver of {test}: its file was collected"
        assert done.stdout.count(said) == warned, done.stdout
    assert ("2 warnings" in done.stdout.splitlines()[-1]) is warned
    if not arguments:
        done = run_pytest(tmp_path, "--serve-eval-waivers", "waives.txt", "-W", "error")
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert "test_gone" in done.stderr
