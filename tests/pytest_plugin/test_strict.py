"""Test that nothing is green that measured nothing or could decide nothing."""

import re

import pytest
from junitparser import Error, JUnitXml, Skipped

from serve_eval.pytest_plugin.options import NO_ADDRESS
from tests.pytest_plugin.run_pytest import ROOT, run_pytest
from tests.scripted_server import ScriptedServer, answer, fail, models

WITHOUT = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    @pytest.mark.parametrize("n", [1, 2])
    def test_words(self, n): self.evaluate("word_problems")
def test_endpoint(serve_eval_endpoint): raise AssertionError
def test_other(): pass
"""
SMALL = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_one(self): self.evaluate("word_problems", limit=1)
    def test_forty(self): self.evaluate("word_problems", limit=40, verdict="classic")
    def test_paired(self): self.evaluate("word_problems", limit=40, verdict="paired")
"""
NOTHING = "serve-eval: no accuracy test measured anything: 3 skipped, no address"


@pytest.mark.parametrize("how", ["flag", "ini"])
def test_under_strict_a_test_without_an_address_is_an_error(tmp_path, how):
    (tmp_path / "test_it.py").write_text(WITHOUT)
    ini = "serve_eval_strict = true\n" if how == "ini" else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{ini}")
    flags = ("--serve-eval-strict",) if how == "flag" else ()
    done = run_pytest(
        tmp_path, *flags, "--junitxml", "j.xml", SERVE_EVAL_BASE_URL="", OPENAI_BASE_URL=""
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 passed, 3 errors" in done.stdout.splitlines()[-1]
    assert NOTHING not in done.stdout
    cases = [case for suite in JUnitXml.fromfile(str(tmp_path / "j.xml")) for case in suite]
    errors = [one for case in cases for one in case.result if isinstance(one, Error)]
    assert len(errors) == 3
    assert all(NO_ADDRESS in one.message for one in errors)


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow), ("-q", "--no-summary")]
)
def test_a_session_that_measured_nothing_says_so(tmp_path, flags):
    (tmp_path / "test_it.py").write_text(WITHOUT)
    line = ("--serve-eval-notify", "line.txt")
    done = run_pytest(tmp_path, *flags, *line, SERVE_EVAL_BASE_URL="", OPENAI_BASE_URL="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines().count(NOTHING) == 1, done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("no accuracy test measured anything: SKIPPED test_it.py::")
    assert "of 3 tests: 3 SKIPPED" in told
    done = run_pytest(tmp_path, *flags, "-k", "other")
    assert "serve-eval:" not in done.stdout


@pytest.mark.slow
def test_a_pass_that_nothing_could_fail_does_not_decide_and_the_power_is_a_property(
    tmp_path,
):
    (tmp_path / "test_it.py").write_text(SMALL)
    done = run_pytest(tmp_path, "--serve-eval-strict", "-ra", "--junitxml", "j.xml")
    assert "1 failed, 2 passed" in done.stdout.splitlines()[-1], done.stdout
    assert "does not decide: word_problems: no value could FAIL: ask more samples" in done.stdout
    assert "FAILED test_it.py::TestSmall::test_one - does not decide" in done.stdout
    assert done.stdout.count(" asked    1 sample: 0 failed") == 1  # the summary stands once
    detects = {}
    for case in next(iter(JUnitXml.fromfile(str(tmp_path / "j.xml")))):
        figures = {one.get("name"): one.get("value") for one in case._elem.iter("property")}
        detects[case.name] = float(figures["word_problems.detects"])
    # the classic formula: (1.645 + .842) * sqrt(2 * 50^2 / n)
    assert detects["test_one"] == pytest.approx(175.8, abs=0.1)
    assert detects["test_forty"] == pytest.approx(27.8, abs=0.1)
    assert 5.0 < detects["test_paired"] < detects["test_forty"]
    done = run_pytest(tmp_path, "-k", "one")
    assert "1 passed" in done.stdout.splitlines()[-1], done.stdout


UNDECIDED = """
from serve_eval.pytest_plugin import AccuracyTests

class TestTwo(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 60}
    def test_a_sound(self): self.evaluate("word_problems")
    def test_b_damaged(self):
        self.evaluate("word_problems", launcher_options={"damage": "int3"})
"""
FILES = ("--serve-eval-notify", "line.txt", "--serve-eval-strict")


@pytest.mark.slow
def test_a_regression_speaks_before_a_pass_that_does_not_decide(tmp_path):
    (tmp_path / "test_it.py").write_text(UNDECIDED)
    given = (*FILES, "--serve-eval-max-detects", "10")
    for chosen, outcome, begins in (
        ("sound or damaged", "FAIL", "FAIL word_problems embedded (test_it.py::TestTwo::test_b"),
        ("sound", "INCONCLUSIVE", "does not decide: PASS word_problems embedded (test_it.py::T"),
    ):
        (tmp_path / "summary.md").write_text("")
        done = run_pytest(
            tmp_path, *given, "-k", chosen, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
        )
        line = (tmp_path / "line.txt").read_text()
        assert line.startswith(begins), line
        summary = (tmp_path / "summary.md").read_text()
        assert summary.startswith(begins[:19]), summary
        assert f"### {outcome}: pytest" in summary
        assert "::error title=serve-eval%3A test_it.py%3A%3ATestTwo%3A%3Atest_a_sound::does" in (
            done.stdout
        ), done.stdout
        assert "above max_detects = 10" in line or outcome == "FAIL"


def test_under_strict_a_session_that_measured_nothing_is_not_green(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from serve_eval.pytest_plugin import AccuracyTests\n"
        "class TestLarge(AccuracyTests):\n"
        "    MODEL_NAME, LAUNCHER = 'm', 'trtllm'\n"
        "    OPTIONS = {'launcher_options': {'tp': 64}}\n"
        "    def test_words(self): self.evaluate('word_problems')\n"
    )
    for strict in (False, True):
        done = run_pytest(tmp_path, *(FILES if strict else ()))
        assert "1 skipped" in done.stdout, done.stdout
        why = "serve-eval: no accuracy test measured anything: 1 skipped, launcher trtllm needs 64"
        assert why in done.stdout
        assert done.returncode == int(strict), done.stdout
        assert ("error: --serve-eval-strict: a session that" in done.stdout) is strict


TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

of_nothing = pytest.mark.serve_eval("word_problems", launcher="embedded", model_name="embedded")

@of_nothing
def test_marker_without_fixture(): pass
@of_nothing
def test_fixture_not_called(serve_eval): assert serve_eval
def test_fixture_alone(serve_eval): pass
@pytest.fixture
def evaluator(serve_eval): return serve_eval
def test_fixture_of_a_fixture(evaluator): assert evaluator.evaluate

class TestOfAClass(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_without_parentheses(self): self.evaluate

def test_not_today(serve_eval): pytest.skip("not today")
def test_other(): pass
@pytest.mark.serve_eval(gpus=0)
def test_no_task(): pass
def test_server(serve_eval_server): assert serve_eval_server
"""
SAID = "measured nothing: the test ended without a call of evaluate() or compare()"


@pytest.mark.parametrize("strict", [False, True])
def test_a_test_that_measured_nothing_does_not_pass(tmp_path, strict):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "summary.md").touch()
    given = ("--serve-eval-notify", "line.txt", "--junitxml", "junit.xml", "-ra")
    flags = ("--serve-eval-strict",) if strict else ()
    done = run_pytest(
        tmp_path, *given, *flags, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
    )
    assert done.returncode == int(strict), done.stdout + done.stderr
    counts = "3 passed, 1 skipped, 5 errors" if strict else "3 passed, 6 skipped, 5 warnings"
    assert counts in done.stdout, done.stdout
    line = (tmp_path / "line.txt").read_text()
    assert (f"no result; {SAID}; of 7 tests: " in line) is strict, line
    outcome = "ERROR" if strict else "SKIPPED"
    assert ("5 ERROR, 1 PASS, 1 SKIPPED" if strict else "1 PASS, 6 SKIPPED") in line
    summary = (tmp_path / "summary.md").read_text()
    assert f"| **{outcome}** | test\\_it.py::test\\_marker\\_without\\_fixture |" in summary, (
        summary
    )
    kind = Error if strict else Skipped
    cases = next(iter(JUnitXml.fromfile(str(tmp_path / "junit.xml"))))
    ends = {case.name: [one.message for one in case.result if isinstance(one, kind)]
            for case in cases}  # fmt: skip
    unmeasured = [name for name, said in ends.items() if any(SAID in one for one in said)]
    assert len(unmeasured) == 5, ends
    assert ends["test_server"] == ends["test_other"] == ends["test_no_task"] == []


def test_the_warning_names_the_test(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-k", "fixture_alone")
    assert f"AccuracyWarning: {SAID}" in done.stdout, done.stdout
    assert f"serve-eval: no accuracy test measured anything: 1 skipped, {SAID}" in done.stdout


TESTS_DECIDING = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_three(self): self.evaluate("word_problems", limit=3)
    def test_paired(self): self.evaluate("word_problems", limit=3, verdict="paired")
    def test_forty(self): self.evaluate("word_problems", limit=40, verdict="classic")
"""
BLIND = "does not decide: word_problems: detects only drops of 101.5 points or more, and"


def test_a_sample_that_detects_no_possible_drop_does_not_decide(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS_DECIDING)
    done = run_pytest(tmp_path, "--serve-eval-strict", "-ra")
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert BLIND in done.stdout
    assert "INCONCLUSIVE word_problems embedded: 100.0 against 100.0" in done.stdout
    assert "FAILED test_it.py::TestSmall::test_three - does not decide" in done.stdout


@pytest.mark.parametrize(("points", "counts"), [("27", "1 failed"), ("28", "1 passed")])
def test_the_largest_drop_that_may_go_unseen_is_an_option(tmp_path, points, counts):
    """The classic rule detects drops of 27.8 points with 40 samples."""
    (tmp_path / "test_it.py").write_text(TESTS_DECIDING)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nserve_eval_max_detects = {points}\n")
    done = run_pytest(tmp_path, "--serve-eval-strict", "-k", "forty")
    assert counts in done.stdout.splitlines()[-1], done.stdout
    assert ("above max_detects = 27" in done.stdout) is (points == "27")


@pytest.mark.parametrize("points", ["few", "-1", "inf"])
def test_points_that_are_none_are_a_usage_error(tmp_path, points):
    done = run_pytest(tmp_path, f"--serve-eval-max-detects={points}")
    assert done.returncode == 4
    assert f"serve_eval_max_detects: {points}: expected a number of points" in done.stderr


TESTS_OWN_FLOOR = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "of-no-reference"
    LAUNCHER = {"name": "simulated", "accuracy": 0.7, "seed": 1}
    OPTIONS = {"limit": 50}

    def check(self, floor, **options):
        report = self.evaluate("word_problems", no_reference=True, **options)
        accuracy = report.tasks[0].result.value
        assert accuracy >= floor, str(report)
    def test_above(self): self.check(40.0)
    def test_below(self): self.check(90.0)
    def test_missing(self):
        self.check(0.0, launcher_options={"failure_rate": 0.2}, max_error_rate=1.0)
    def test_verdict(self): self.check(0.0, verdict="classic")
    @pytest.mark.serve_eval("word_problems", no_reference=True)
    def test_marker(self, serve_eval):
        assert serve_eval.evaluate().tasks[0].result.scored == 50
"""


@pytest.mark.slow
@pytest.mark.parametrize("strict", [False, True])
def test_a_floor_of_ones_own_is_asserted_where_no_reference_is_wanted(tmp_path, strict):
    (tmp_path / "test_it.py").write_text(TESTS_OWN_FLOOR)
    flags = ("--serve-eval-strict",) if strict else ()
    line = ("--serve-eval-notify", "line.txt", "--serve-eval-output", "runs")
    done = run_pytest(tmp_path, *flags, *line, "-ra", "--tb=line")
    counts = "2 failed, 2 passed" if strict else "1 failed, 2 passed, 1 skipped"
    assert counts in done.stdout.splitlines()[-1], done.stdout
    assert "1 error" in done.stdout.splitlines()[-1]
    assert "ERROR test_it.py::TestIt::test_missing - ERROR word_problems" in done.stdout
    assert "FAILED test_it.py::TestIt::test_below - AssertionError" in done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("FAIL word_problems of-no-reference (test_it.py::"), told
    assert "runs/test_it.py/TestIt/test_below/" in told


def test_a_run_without_a_reference_returns_its_report(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS_OWN_FLOOR)
    done = run_pytest(tmp_path, "-k", "above or below", "--serve-eval-strict")
    assert "1 failed, 1 passed" in done.stdout.splitlines()[-1], done.stdout
    assert ">= 90.0" in done.stdout
    line = r"AssertionError: NO REFERENCE word_problems of-no-reference: [\d.]+; 50 asked, .*"
    assert re.search(rf"^E +{line}/test_it.py/TestIt/test_below/\d+_\d+$", done.stdout, re.M)


def test_the_floor_of_the_page_fails_without_reprs(tmp_path):
    page = (ROOT / "docs/ci.md").read_text()
    [block] = re.findall(r"^```python\n(def test_floor[\s\S]*?)^```", page, re.MULTILINE)
    simulated = 'no_reference=True, model="m", launcher={"name": "simulated", "accuracy": 0.3}'
    (tmp_path / "test_it.py").write_text(block.replace("no_reference=True", simulated))
    done = run_pytest(tmp_path)
    assert "1 failed" in done.stdout.splitlines()[-1], done.stdout
    told = [line for line in done.stdout.splitlines() if line.startswith("E ")]
    assert len(told) == 2, done.stdout
    assert told[0].startswith("E       AssertionError: NO REFERENCE word_problems m: "), told
    assert re.fullmatch(r"E       assert [\d.]+ >= 70\.0", told[1]), told


def test_a_green_session_does_not_say_that_there_is_no_reference(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS_OWN_FLOOR)
    done = run_pytest(tmp_path, "-k", "above", "--serve-eval-notify", "line.txt")
    assert "1 passed" in done.stdout.splitlines()[-1], done.stdout
    told = (tmp_path / "line.txt").read_text()
    assert told.startswith("PASS word_problems of-no-reference (test_it.py::TestIt::test_above)")
    assert "NO REFERENCE" not in told


REFUSING = """
def test_it(serve_eval):
    serve_eval.evaluate("word_problems", limit=100, no_reference=True, model="m")
"""


def test_an_error_advises_with_keywords(tmp_path):
    (tmp_path / "test_it.py").write_text(REFUSING)

    def act(request):
        return answer("4") if len(request.prompt) % 3 else fail(400, "not this one")

    server = ScriptedServer(act, routes={"/v1/models": models("m")})
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, SERVE_EVAL_BASE_URL=url)
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout
    assert "then run the test again. max_error_rate=SHARE allows more." in done.stdout
    assert "--max-error-rate" not in done.stdout
    assert "--set" not in done.stdout
    assert "limits" not in done.stdout
    assert "resume the run" not in done.stdout


TESTS_WARNINGS = """
from serve_eval.pytest_plugin import AccuracyTests

class TestSmall(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"

    def test_few(self): self.evaluate("word_problems", limit=6)
    def test_damaged(self):
        self.evaluate("word_problems", limit=60, launcher_options={"damage": "int3"})
    def test_stopped(self):
        self.evaluate("word_problems", limit=6, model_name="no-such-model")
"""
POWER = "the classic rule detects only drops of 71.8 points or more, with 80% probability"
CATEGORY = "serve_eval.pytest_plugin.AccuracyWarning"


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-rP",), ("-n", "1")])
def test_warnings_of_green_tests_are_shown_once(tmp_path, flags):
    (tmp_path / "test_it.py").write_text(TESTS_WARNINGS)
    done = run_pytest(tmp_path, "-k", "few", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(POWER) == 1, done.stdout
    assert f"AccuracyWarning: word_problems: {POWER}" in done.stdout
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert "warnings" in done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_filters_name_the_class_of_the_warnings(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS_WARNINGS)
    done = run_pytest(tmp_path, "-k", "few", "-W", f"ignore::{CATEGORY}")
    assert done.returncode == 0
    assert POWER not in done.stdout
    done = run_pytest(tmp_path, "-k", "few", "-W", f"error::{CATEGORY}")
    assert done.returncode == 1
    assert "1 failed" in done.stdout


@pytest.mark.slow
def test_a_red_test_says_how_to_keep_its_folder_and_its_warnings_are_not_repeated(
    tmp_path,
):
    (tmp_path / "test_it.py").write_text(TESTS_WARNINGS)
    done = run_pytest(tmp_path, "-k", "damaged")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    [at] = [n for n, line in enumerate(lines) if line.startswith(" kept     pytest deletes this")]
    assert "--serve-eval-output DIR" in lines[at + 1]
    assert "serve_eval_output" in lines[at + 1]
    assert any(line.startswith(" next     serve-eval diagnose ") for line in lines[at - 5 : at])
    assert all(len(line) <= 80 for line in lines[at : at + 2])
    assert "AccuracyWarning" not in done.stdout
    (tmp_path / "pytest.ini").write_text("[pytest]\nserve_eval_output = runs\n")
    done = run_pytest(tmp_path, "-k", "damaged")
    assert " next     serve-eval diagnose runs/test_it.py" in done.stdout
    assert "pytest deletes this" not in done.stdout
