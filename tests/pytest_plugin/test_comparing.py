"""Test `compare` of a test: how it ends, and what it leaves behind."""

import re

import pytest
from junitparser import Error, Failure, JUnitXml

from tests.pytest_plugin.run_pytest import ROOT, run_pytest
from tests.scripted_server import ScriptedServer, answer, models, stall
from tests.standin.deployments import free_port

PAGE = (ROOT / "docs/ci.md").read_text()
KEPT = ("--serve-eval-output", "runs", "--serve-eval-notify", "line.txt", "--junitxml", "j.xml")
ALIKE = {
    *("outcome", "rule", "value", "reference", "interval_95", "drop", "drop_95", "p", "detects"),
    *("samples", "failed", "repaired", "lost_with_server", "truncated"),
}
"""The figures that a run and a comparison have in common."""
SIMULATED = """
import pytest
from serve_eval import Plan, Spec
from serve_eval.pytest_plugin import AccuracyTests

class TestSides(AccuracyTests):
    MODEL_NAME = "m"
    LAUNCHER = {{"name": "simulated", "accuracy": 0.9, "seed": 1}}
    OPTIONS = {{"limit": 60, "no_reference": True}}
    def test_it(self): {body}
"""


def _list_results(folder):
    cases = [case for suite in JUnitXml.fromfile(str(folder / "j.xml")) for case in suite]
    return [one for case in cases for one in case.result]


@pytest.mark.slow
def test_the_example_of_the_page_fails_and_leaves_everything(tmp_path):
    [block] = re.findall(r"^```python\n((?:(?!```)[\s\S])*self\.compare[\s\S]*?)^```", PAGE, re.M)
    (tmp_path / "test_it.py").write_text(block)
    done = run_pytest(tmp_path, *KEPT, "-ra")
    assert "1 failed" in done.stdout.splitlines()[-1], done.stdout
    line = (
        r"FAIL word_problems m: B [\d.]+ against A [\d.]+ \(drop [\d.]+ \[[\d., ]+\]\); 200 asked"
    )
    assert re.search(f"^{line}", done.stdout, re.MULTILINE)
    [folder] = (tmp_path / "runs/test_it.py/TestQuantised/test_int3_is_as_good").iterdir()
    assert (folder / "comparison.json").exists()
    here = folder.relative_to(tmp_path)
    assert f" next     serve-eval diagnose {here}\n" in done.stdout
    assert (tmp_path / "line.txt").read_text().startswith("FAIL word_problems m (test_it.py::")
    junit = (tmp_path / "j.xml").read_text()
    assert re.search(f'<failure message="{line}', junit)
    found = dict(re.findall(r'<property name="([^"]+)" value="([^"]*)"', junit))
    names = {name.removeprefix("word_problems.") for name in found}
    assert {"run_folder", "next", *ALIKE, "A", "B", "fell", "rose", "likely"} <= names
    assert found["next"] == f"serve-eval diagnose {here}"
    assert found["word_problems.value"] == found["word_problems.B"]
    assert found["word_problems.reference"] == found["word_problems.A"]
    drop = float(found["word_problems.A"]) - float(found["word_problems.B"])
    assert float(found["word_problems.drop"]) == pytest.approx(drop)
    low, high = map(float, found["word_problems.drop_95"].split())
    assert low < drop < high


BOTH = """
from serve_eval.pytest_plugin import AccuracyTests

class TestBoth(AccuracyTests):
    MODEL_NAME = "m"
    LAUNCHER = {"name": "simulated", "accuracy": 0.9, "seed": 1}
    OPTIONS = {"limit": 60, "references_dir": "refs"}
    def test_run(self): self.evaluate("word_problems")
    def test_sides(self):
        self.compare({}, {"launcher_options": {"seed": 2}}, "word_problems")
"""


def test_run_and_compare_have_the_same_properties(tmp_path):
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/word_problems.yaml").write_text("m:\n  - accuracy: 88.0\n    source: us\n")
    (tmp_path / "test_it.py").write_text(BOTH)
    done = run_pytest(tmp_path, *KEPT)
    assert "1 passed, 1 skipped" in done.stdout.splitlines()[-1], done.stdout
    cases = (tmp_path / "j.xml").read_text().split("<testcase ")[1:]
    assert len(cases) == 2
    for case in cases:
        found = set(re.findall(r'<property name="word_problems\.([^"]+)"', case))
        assert ALIKE - {"p", "detects"} <= found, case


@pytest.mark.parametrize(
    ("body", "end", "told"),
    [
        (
            'assert self.compare({}, {}, "word_problems", ask_twice=0).exit_code == 0',
            "1 passed",
            "",
        ),
        (
            'self.compare({}, {"launcher_options": {"accuracy": 0.2}}, "word_problems",'
            " ask_twice=0, show_flips=0)",
            "1 failed",
            "FAILED test_it.py::TestSides::test_it - FAIL word_problems m: B ",
        ),
        (
            'self.compare("h:1", {"base_url": "h:2", "launcher_options": {"accuracy": 0.2}},'
            ' "word_problems", model="m")',
            "1 error",
            "launcher_options: no launcher is named that takes accuracy: the address h:2 decides",
        ),
        ('self.compare({}, {}, "word_problems", verdict="classic")', "1 error", "compare pairs"),
        ('self.compare({}, 5, "word_problems")', "1 error", "5: neither an endpoint, a plan"),
        (
            'self.compare("h:1", "h:1/v1", "word_problems", model="m")',
            "1 error",
            "A and B are the same server: http://h:1/v1 and http://h:1/v1",
        ),
        (
            'self.compare({}, Plan(model="m", launcher=Spec(name="simulated", options={"accuracy":'
            ' 0.2}), tasks=(Spec(name="word_problems"),)))',
            "1 failed",
            "FAILED test_it.py::TestSides::test_it - FAIL word_problems m: B ",
        ),
        (
            'report = self.evaluate("word_problems"); import pathlib;'
            ' [run] = pathlib.Path("runs").glob("*/*/*/*");'
            ' self.compare(run, {"launcher_options": {"accuracy": 0.2}})',
            "1 failed",
            "FAILED test_it.py::TestSides::test_it - FAIL word_problems m: B ",
        ),
        (
            'report = self.evaluate("word_problems"); import pathlib;'
            ' [run] = pathlib.Path("runs").glob("*/*/*/*"); self.compare(run, str(run))',
            "1 passed",
            "",
        ),
    ],
)
def test_a_comparison_ends_as_an_evaluation(tmp_path, body, end, told):
    (tmp_path / "test_it.py").write_text(SIMULATED.format(body=body))
    done = run_pytest(tmp_path, *KEPT, "-ra", "--serve-eval-strict", COLUMNS="200")
    assert end in done.stdout.splitlines()[-1], done.stdout
    assert told in done.stdout, done.stdout


def test_a_side_that_does_not_answer_is_an_error(tmp_path):
    body = f'self.compare({{}}, "127.0.0.1:{free_port()}", "word_problems")'
    (tmp_path / "test_it.py").write_text(SIMULATED.format(body=body))
    done = run_pytest(tmp_path, *KEPT, "-ra")
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout
    assert "does not answer" in done.stdout
    assert [type(one) for one in _list_results(tmp_path)] == [Error]


def test_without_an_address_a_comparison_is_skipped_or_an_error(tmp_path):
    text = 'def test_it(serve_eval): serve_eval.compare({}, "h:1", "word_problems")'
    (tmp_path / "test_it.py").write_text(text)
    for flags, end in (((), "1 skipped"), (("--serve-eval-strict",), "1 error")):
        done = run_pytest(tmp_path, *flags, SERVE_EVAL_BASE_URL="", OPENAI_BASE_URL="")
        assert end in done.stdout.splitlines()[-1], done.stdout


def test_a_time_limit_in_a_comparison_is_an_error_with_what_was_answered(tmp_path):
    asked = 0

    def act(request):
        nonlocal asked
        asked += 1
        return answer("4") if asked <= 12 else stall()

    routes = {"/v1/models": models("m")}
    (tmp_path / "test_it.py").write_text(
        """
import signal, pytest
def test_it(serve_eval):
    def end(number, frame): pytest.fail("Timeout")
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 4)
    serve_eval.compare(URLS[0], URLS[1], "word_problems", limit=40, concurrency=4)
"""
    )
    servers = ScriptedServer(act, routes=routes), ScriptedServer(act, routes=routes)
    with servers[0].serve_in_thread() as a, servers[1].serve_in_thread() as b:
        with (tmp_path / "test_it.py").open("a") as file:
            file.write(f"URLS = {[a, b]}\n")
        done = run_pytest(tmp_path, *KEPT)
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout
    [result] = _list_results(tmp_path)
    assert isinstance(result, Error)
    assert not isinstance(result, Failure)
    told = str(result.text)
    assert re.search(r"answered so far by A: \d+ of 40 of word_problems", told), told
    assert re.search(r"answered so far by B: \d+ of 40 of word_problems", told), told
    assert "run folder: runs/test_it.py/test_it/" in told
