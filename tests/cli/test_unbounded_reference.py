"""A task whose scores have no bounds gets a reference without a score per sample."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import serve_eval


def test_a_perplexity_is_taken_and_judges_the_next_run(tmp_path: Path) -> None:
    asked = ("-t", "word_problems_perplexity", "--launcher", "embedded")
    found = ("--references-dir", tmp_path / "refs")
    taken = serve_eval("references", "take", *asked, *found, "--runs", "1", "-o", tmp_path / "t")
    assert taken.returncode == 0, taken.stderr
    entry = (tmp_path / "refs/word_problems_perplexity.yaml").read_text()
    assert "sigma: " in entry
    assert "runs:" not in entry
    done = serve_eval("run", *asked, *found, "-o", tmp_path / "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
