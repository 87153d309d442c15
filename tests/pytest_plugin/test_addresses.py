"""Test which tests ask the address of the command line, and what is said where none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.pytest_plugin.options import NO_ADDRESS
from serve_eval.pytest_plugin.plugin import UNUSED_ADDRESS
from tests.pytest_plugin.run_pytest import run_pytest
from tests.scripted_server import ScriptedServer, answer, models
from tests.standin.process import free_port

TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_call(self): self.evaluate("word_problems", launcher=None)
    @pytest.mark.serve_eval(launcher=None)
    def test_marker(self): self.evaluate("word_problems")
    def test_own(self): self.evaluate("word_problems", base_url="localhost:PORT")
def test_other(): pass
"""
NO_VARIABLES = {"SERVE_EVAL_BASE_URL": "", "OPENAI_BASE_URL": ""}


def _write(folder: Path) -> int:
    port = free_port()
    (folder / "test_it.py").write_text(TESTS.replace("PORT", str(port)))
    return port


@pytest.mark.parametrize(("strict", "ended"), [((), "skipped"), (("--serve-eval-strict",), "err")])
def test_a_test_that_takes_back_its_launcher_needs_an_address(
    tmp_path: Path, strict: tuple[str, ...], ended: str
) -> None:
    _write(tmp_path)
    done = run_pytest(tmp_path, *strict, "-ra", "-k", "call or marker", **NO_VARIABLES)
    assert f"2 {ended}" in done.stdout.splitlines()[-1], done.stdout
    assert NO_ADDRESS.partition(":")[0] in done.stdout


@pytest.mark.parametrize("flags", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_an_address_of_the_command_line_that_no_test_asked_is_told(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    port = _write(tmp_path)
    address = ("--serve-eval-base-url", f"localhost:{port}")
    done = run_pytest(tmp_path, *flags, *address, "-k", "own", **NO_VARIABLES)
    assert done.stdout.splitlines().count(UNUSED_ADDRESS) == 1, done.stdout
    done = run_pytest(tmp_path, *flags, *address, "-k", "call or own", **NO_VARIABLES)
    assert UNUSED_ADDRESS not in done.stdout
    assert f"localhost:{port}" in done.stdout  # both tests asked it
    assert "2 errors" in done.stdout.splitlines()[-1], done.stdout
    done = run_pytest(tmp_path, *flags, "-k", "own", **NO_VARIABLES)
    assert UNUSED_ADDRESS not in done.stdout


SEVERAL = """
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "sound"
    OPTIONS = {"limit": 5, "no_reference": True}
    def test_name(self):
        assert self.evaluate("word_problems").plan.model == "sound"
    def test_endpoint(self, serve_eval_endpoint):
        assert serve_eval_endpoint.model == "sound"
    def test_other(self): self.evaluate("word_problems", model_name="other")
    def test_chosen(self):
        assert self.evaluate("word_problems", model="bad").plan.model == "bad"
"""


def test_of_several_models_that_of_the_class_is_asked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SEVERAL)
    server = ScriptedServer(
        lambda request: answer("4"), routes={"/v1/models": models("sound", "bad")}
    )
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, **{**NO_VARIABLES, "SERVE_EVAL_BASE_URL": url})
    assert "3 passed, 4 warnings, 1 error" in done.stdout, done.stdout
    assert "EndpointError: the endpoint serves 2 models: sound, bad" in done.stdout
    assert "Choose one with model=." in done.stdout
