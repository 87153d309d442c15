"""Test how a test ends by its run, a waiver, a rehearsal or a foreign exception."""

import os
import signal
from contextlib import suppress

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from serve_eval.errors import ServerEndedError
from serve_eval.pytest_plugin import AccuracyNotMeasured, AccuracyRegression, AccuracyUndecided
from serve_eval.pytest_plugin.plugin import WaivedTest, read_waivers
from serve_eval.pytest_plugin.results import EvaluatedTest, conclude, describe_error, end_test
from serve_eval.report.ci_result import CiCase, CiState
from serve_eval.schema import REHEARSED
from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.scripted_server import ScriptedServer, answer, models, stall
from tests.standin.deployments import free_port


@pytest.mark.parametrize(
    ("state", "strict", "ending", "text"),
    [
        (CiState.FAILURE, False, AccuracyRegression, "summary"),
        (CiState.ERROR, False, AccuracyNotMeasured, "summary"),
        (CiState.SKIPPED, False, pytest.skip.Exception, "reason"),
        (CiState.SKIPPED, True, AccuracyUndecided, "summary"),
        (CiState.PASSED, True, None, ""),
    ],
)
def test_a_test_ends_as_its_worst_verdict(state, strict, ending, text):
    result = EvaluatedTest(state=state, text="summary", reason="reason", properties={})
    assert result.passed is (ending is None)
    if ending is None:
        end_test(result, strict=strict)
        return
    with pytest.raises(ending) as raised:
        end_test(result, strict=strict)
    assert str(raised.value) == text
    assert type(raised.value) is ending


def test_a_part_of_the_path_without_evidence_is_undecided_and_not_skipped():
    part = CiCase(group="path", name="kv_transfer", state=CiState.SKIPPED, message="no evidence")
    given = {"kept": True, "properties": {}, "warnings": (), "undecided": "", "rehearsal": False}
    result = conclude([part], "summary", **given)
    with pytest.raises(AccuracyUndecided) as raised:
        end_test(result, strict=True)
    assert raised.value.line == "INCONCLUSIVE kv_transfer; no evidence"


LIMITED = """
import os, pathlib, signal
import pytest

@pytest.fixture(autouse=True)
def _limit():
    def end(number, frame): {raises}
    signal.signal(signal.SIGALRM, end)
    signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.65))
    pathlib.Path("limited").write_text(str(os.getpid()))
    yield
    pathlib.Path("limited").unlink(missing_ok=True)
    signal.setitimer(signal.ITIMER_REAL, 0)

@pytest.mark.serve_eval("word_problems", limit=40, concurrency=4, no_reference=True, model="m")
@pytest.mark.parametrize("n", [1, 2])
def test_it(serve_eval, n): serve_eval.evaluate()
"""
RAISES = {
    "Failed": 'pytest.fail("Timeout (>4.0s) from pytest-timeout.")',
    "TimeoutError": 'raise TimeoutError("too slow")',
}


def hang(folder):
    """Answer nothing; the time limit of the test that runs in a folder is then soon reached.

    The upkeep of the run wakes each quarter of a second from about now: the limit is between two.
    """
    limited = folder / "limited"
    with suppress(FileNotFoundError):
        process = int(limited.read_text())
        limited.unlink()
        os.kill(process, signal.SIGUSR1)
    return stall()


@pytest.mark.parametrize("name", RAISES)
def test_a_server_that_hangs_is_an_error(tmp_path, name):
    """It answers some samples and then none, until the time limit of the test."""
    answered = 0

    def act(request):
        nonlocal answered
        answered += 1
        return answer("4") if answered <= 10 else hang(tmp_path)

    server = ScriptedServer(act, routes={"/v1/models": models("m")})
    (tmp_path / "test_it.py").write_text(LIMITED.format(raises=RAISES[name]))
    with server.serve_in_thread() as url:
        done = run_pytest(
            tmp_path, "--junitxml", "j.xml", "--serve-eval-output", "runs", "-ra",
            "--serve-eval-notify", "line", SERVE_EVAL_BASE_URL=url,
        )  # fmt: skip
    assert "2 errors" in done.stdout.splitlines()[-1], done.stdout
    cases = [case for suite in JUnitXml.fromfile(str(tmp_path / "j.xml")) for case in suite]
    results = [one for case in cases for one in case.result]
    assert [type(one) for one in results] == [Error, Error]
    assert not any(isinstance(one, Failure) for one in results)
    for number, case in enumerate(cases, 1):
        known = {one.get("name"): one.get("value") for one in case._elem.iter("property")}
        assert f"/runs/test_it.py/test_it-{number}-" in known["run_folder"]
    told = str(results[0].text)
    assert told.startswith(f"{name}: ")
    assert " of 40 of word_problems" in told
    assert "run folder: runs/test_it.py/test_it-1-" in told
    assert "sample_timeout_s=" in told
    assert (tmp_path / "line").read_text().startswith("ERROR")


def test_ctrl_c_still_ends_the_session(tmp_path):
    server = ScriptedServer(lambda _: hang(tmp_path), routes={"/v1/models": models("m")})
    (tmp_path / "test_it.py").write_text(LIMITED.format(raises="raise KeyboardInterrupt"))
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, SERVE_EVAL_BASE_URL=url)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout


def test_a_server_that_ended_is_told_with_the_answers_so_far(tmp_path):
    asked = "--launcher simulated -t word_problems --limit 5 --no-reference"
    serve_eval(f"run -o {tmp_path}/run {asked}")
    told = describe_error(ServerEndedError("no server listens any more"), tmp_path / "run")
    assert "\nanswered so far: 5 of 5 of word_problems\nrun folder: " in told, told


TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "m"
    LAUNCHER = "rehearsal"
    OPTIONS = {"limit": 10}

    def check(self, floor):
        report = self.evaluate("word_problems", no_reference=True)
        with open("text", "a") as file: print(report, file=file)
        assert report.tasks[0].result.value >= floor, "too low"
    def test_above(self): self.check(10)
    def test_below(self): self.check(101)
    def test_no_reference(self): self.evaluate("word_problems")
    def test_typo(self): self.evaluate("word_problems", no_reference=True).no_such
    def test_wrong(self): self.evaluate("word_problems", launcher_options={"of": "vllm"})
    def test_own_requests(self, serve_eval_endpoint): assert serve_eval_endpoint.base_url
"""
FILES = ("--serve-eval-notify", "line.txt", "--junitxml", "junit.xml", "-rA")


def _run(folder, *arguments, tests=TESTS):
    """Return what pytest printed, and each test's element and message in the JUnit file."""
    (folder / "test_it.py").write_text(tests)
    (folder / "summary.md").write_text("")
    done = run_pytest(
        folder, *FILES, *arguments, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="summary.md"
    )
    kinds = {Error: "error", Failure: "failure", Skipped: "skipped"}
    ends = {
        case.name: "; ".join(f"{kinds[type(one)]} {one.message}" for one in case.result).replace(
            'failed on setup with "', ""
        )
        for case in next(iter(JUnitXml.fromfile(str(folder / "junit.xml"))))
    }
    return done.stdout + done.stderr, ends


def test_nothing_that_is_rehearsed_passes_or_fails_by_its_answers(tmp_path):
    printed, ends = _run(tmp_path)
    assert "1 failed, 4 skipped" in printed, printed
    for name in ("test_above", "test_below", "test_no_reference"):
        assert ends[name].startswith(f"skipped {REHEARSED}: NO REFERENCE word_problems m "), ends
    assert ends["test_below"].endswith("; withheld: AssertionError: too low"), ends
    assert ends["test_own_requests"] == f"skipped {REHEARSED}"
    assert ends["test_typo"].startswith(f"failure {REHEARSED}: AttributeError"), ends
    assert ends["test_wrong"].startswith(f"error {REHEARSED}: PlanError: "), ends
    texts = (tmp_path / "text").read_text().splitlines()
    assert len(texts) == 2
    assert all(one.startswith(f"{REHEARSED}: NO REFERENCE word_problems m: ") for one in texts)
    line = (tmp_path / "line.txt").read_text()
    assert line.startswith(f"{REHEARSED}: FAIL "), line
    assert "of 6 tests: 1 FAIL, 1 ERROR, 4 SKIPPED" in line
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith(REHEARSED), summary
    assert "PASS" not in summary
    notes = [one for one in printed.splitlines() if one.startswith("::")]
    assert notes[0] == f"::warning title=serve-eval::{REHEARSED}"
    assert all(REHEARSED in one for one in notes), notes


def test_a_rehearsal_that_was_left_in_a_test_is_red_under_strict(tmp_path):
    printed, ends = _run(tmp_path, "--serve-eval-strict", "-k", "above")
    assert "1 failed" in printed.splitlines()[-1], printed
    assert ends["test_above"].startswith(f"failure {REHEARSED}: NO REFERENCE word_problems m ")
    assert (tmp_path / "line.txt").read_text().startswith(f"{REHEARSED}: NO REFERENCE ")


MOVED = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestMoved(AccuracyTests):
    MODEL_NAME = "m"
    MODEL_PATH = "/models/absent"
    LAUNCHER = "trtllm"
    OPTIONS = {"limit": 10, OPTIONS}

    @pytest.mark.serve_eval(gpus=4)
    def test_four(self):
        report = self.evaluate("word_problems", launcher_options={"tp": 4})
        assert report.plan.launcher.options["options"] == {"model": "/models/absent", "tp": 4}
    def test_wrong_key(self):
        self.evaluate("word_problems", launcher_options={"config": {"no_such_key": 1}})

class TestDisaggregated(TestMoved):
    LAUNCHER = {"name": "trtllm_disaggregated"}
    def test_four(self):
        self.evaluate("word_problems", launcher_options={"generation_servers": {"tp": 2}})
    def test_wrong_key(self): pytest.skip("once is enough")

class TestElsewhere(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {OPTIONS}
    def test_elsewhere(self): self.evaluate("word_problems")
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["flag", "option"])
def test_a_moved_class_is_rehearsed_with_its_own_launcher(tmp_path, how):
    option = '"rehearse": True' if how == "option" else ""
    flags = ("--serve-eval-rehearse", "--serve-eval-strict") if how == "flag" else ()
    tests = MOVED.replace("OPTIONS}", f"{option}}}")
    printed, ends = _run(tmp_path, *flags, tests=tests)
    counts = "4 skipped, 1 error" if how == "flag" else "3 skipped, 2 errors"
    assert counts in printed.splitlines()[-1], printed
    assert printed.count(f"SKIPPED [1] test_it.py:11: {REHEARSED}: ") == 1, printed
    assert ends["test_four"].startswith(f"skipped {REHEARSED}: NO REFERENCE word_problems m ")
    assert "unknown key no_such_key" in printed
    end = "skipped" if how == "flag" else "error"
    why = "the launcher embedded cannot be rehearsed: it needs no GPU"
    named = "--serve-eval-rehearse" if how == "flag" else "PlanError: rehearse=True"
    assert ends["test_elsewhere"].startswith(f"{end} {named}: {why}"), ends


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


def test_every_form_of_a_line_is_read(tmp_path):
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


def test_lines_that_waive_nothing_are_all_reported(tmp_path):
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
def test_a_line_covers_what_pytest_would_select_for_it(test, nodeid, covered):
    one = WaivedTest(test=test, mark="skip", reason="")
    assert one.covers(nodeid) is covered


TESTS_WAIVERS = """
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
def test_xfail_covers_a_regression_and_no_infrastructure(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS_WAIVERS.replace("DEAD", str(free_port())))
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
def test_a_waiver_without_a_test_is_warned_of_once(tmp_path, arguments, warned):
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
