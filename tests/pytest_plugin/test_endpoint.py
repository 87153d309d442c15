"""Test the fixture serve_eval_endpoint, which resolves the same options as serve_eval."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import run_pytest
from tests.standin.process import free_port

TESTS = """
import urllib.request
import pytest
from serve_eval.pytest_plugin import AccuracyTests

embedded = pytest.mark.serve_eval(launcher="embedded", model_name="embedded")


def check(endpoint):
    with urllib.request.urlopen(f"{endpoint.base_url}/models", timeout=20) as answer:
        assert answer.status == 200
    with open("asked", "a") as file:
        print(endpoint.base_url, endpoint.model, file=file)


@embedded
def test_marker(serve_eval_endpoint):
    check(serve_eval_endpoint)

class TestOfAClass(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_attributes(self, serve_eval_endpoint):
        check(serve_eval_endpoint)
        report = self.evaluate("word_problems", limit=20)
        assert report.endpoint.base_url == serve_eval_endpoint.base_url
    @pytest.mark.serve_eval(launcher="simulated")
    def test_of_one_run(self, serve_eval_endpoint): pass

def test_of_the_plan(serve_eval_endpoint):
    check(serve_eval_endpoint)

@pytest.mark.serve_eval(base_url="localhost:DEAD")
def test_dead(serve_eval_endpoint): pass

@pytest.mark.serve_eval(launcher="embeded")
def test_typo(serve_eval_endpoint): pass

@pytest.mark.serve_eval(gpu=1)
def test_unknown(serve_eval_endpoint): pass

@pytest.mark.serve_eval("word_problems", gpu=1)
def test_unknown_of_serve_eval(serve_eval): serve_eval.evaluate()
"""


def _write(folder: Path) -> int:
    port = free_port()
    (folder / "test_it.py").write_text(TESTS.replace("DEAD", str(port)))
    return port


def _explain(out: str, test: str) -> str:
    """Return what pytest printed about the error of one test."""
    found = re.search(rf"_ ERROR at setup of {test} _+\n(.*?)\n(?:_{{9}}|={{9}})", out, re.DOTALL)
    assert found is not None, out
    return found[1]


@pytest.mark.slow
def test_it_is_the_endpoint_that_an_evaluation_would_ask(tmp_path: Path) -> None:
    port = _write(tmp_path)
    (tmp_path / "all.yaml").write_text("launcher: embedded\nmodel: embedded\n")
    done = run_pytest(tmp_path, "--serve-eval-plan", "all.yaml")
    assert re.search(r"3 passed, \d+ warnings, 5 errors", done.stdout), done.stdout + done.stderr
    [one] = set((tmp_path / "asked").read_text().splitlines())
    assert re.fullmatch(r"http://127.0.0.1:\d+/v1 embedded", one)
    told = _explain(done.stdout, "test_dead")
    assert told.startswith(f"EndpointError: http://localhost:{port}/v1/models does not answer")
    assert "launcher: unknown launcher 'embeded'" in _explain(done.stdout, "test_typo")
    unknown = _explain(done.stdout, "test_unknown")
    assert unknown == _explain(done.stdout, "test_unknown_of_serve_eval")
    assert "gpu" in unknown
    told = _explain(done.stdout, "TestOfAClass.test_of_one_run")
    assert "launcher simulated" in told
    assert "base_url" in told


@pytest.mark.slow
def test_a_wrong_option_is_an_error_whatever_else_is_given(tmp_path: Path) -> None:
    port = _write(tmp_path)
    names = "test_dead or test_typo or test_unknown or test_of_the_plan"
    done = run_pytest(tmp_path, "-k", names)
    assert "1 skipped, 3 deselected, 4 errors" in done.stdout, done.stdout + done.stderr
    done = run_pytest(tmp_path, "-k", names, "--serve-eval-base-url", f"localhost:{port}")
    assert "3 deselected, 5 errors" in done.stdout, done.stdout + done.stderr
