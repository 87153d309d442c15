"""Test that pytest leaves no rewritten copies of the package, which pip would not remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import run_pytest

TEST = """
def test_it(serve_eval):
    report = serve_eval.evaluate(
        "word_problems", launcher="simulated", model_name="m", limit=2, no_reference=True
    )
    assert report.tasks[0].result.scored == 2
"""


@pytest.mark.slow
def test_a_session_caches_its_own_files_only(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(TEST)
    cache = str(tmp_path / "cache")
    variables = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    done = run_pytest(tmp_path, "-q", "tests", fork=False, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    caches = [str(file) for file in (tmp_path / "cache").rglob("*.pyc")]
    rewritten = [file for file in caches if "-pytest-" in file]
    assert [file for file in rewritten if "test_it" in file]
    assert [file for file in caches if "/serve_eval/" in file and file not in rewritten]
    assert [file for file in rewritten if "/serve_eval/" in file] == []
