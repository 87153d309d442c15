"""Test that relative paths in tests and plans are below rootdir, wherever pytest is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest

TESTS = """
import os
import pytest

embedded = pytest.mark.serve_eval("word_problems", launcher="embedded", model_name="embedded")

@embedded
def test_plan(serve_eval):
    here = os.getcwd()
    assert serve_eval.evaluate().tasks[0].verdict.reference == 1.0
    assert os.getcwd() == here

@pytest.mark.serve_eval(references_dir="ci/other")
@embedded
def test_marker(serve_eval):
    assert serve_eval.evaluate().tasks[0].verdict.reference == 2.0

def test_server(serve_eval_server):
    assert serve_eval_server(plan="ci/server.yaml").base_url

@embedded
def test_absent(serve_eval): serve_eval.evaluate(references_dir="references")
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", [".", "ci", "ci/tests"])
def test_paths_are_below_rootdir(tmp_path: Path, start: str) -> None:
    for name, accuracy in (("references", 1), ("other", 2)):
        (tmp_path / "ci" / name).mkdir(parents=True)
        row = f"embedded:\n  - accuracy: {accuracy}\n"
        (tmp_path / "ci" / name / "word_problems.yaml").write_text(row)
    (tmp_path / "ci/tests").mkdir()
    (tmp_path / "ci/tests/test_it.py").write_text(TESTS)
    (tmp_path / "ci/plan.yaml").write_text("references_dir: ci/references\nlimit: 2\n")
    (tmp_path / "ci/server.yaml").write_text("launcher: embedded\nmodel: embedded\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nserve_eval_plan = ci/plan.yaml\n")
    done = run_pytest(tmp_path / start, "-W", "ignore")
    assert "3 passed, 1 error" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert f"references_dir: {tmp_path}/references is not a folder" in done.stdout


def test_the_command_line_names_the_path_that_it_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--base-url", "localhost:9", "-t", "word_problems")
    done = serve_eval("run", *asked, "--references-dir", "refs")
    assert done.returncode == 2
    told = "".join(done.stderr.split())
    assert f"{os.path.realpath(tmp_path)}/refsisnotafolder" in told, done.stderr
