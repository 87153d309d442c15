"""`--strict` refuses a PASS that decides nothing, as pytest's option does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval

NEVER = "does not decide: word_problems: no value could FAIL: ask more samples"


@pytest.mark.parametrize(
    ("limit", "more", "code", "told"),
    [
        ("1", (), 0, ""),
        ("1", ("--strict",), 1, NEVER),
        ("40", ("--strict", "--set", "run.max_detects=28"), 0, ""),
        ("40", ("--strict", "--set", "run.max_detects=27"), 1, "above max_detects = 27"),
        ("1", ("--strict", "-q"), 1, NEVER),
    ],
)
def test_a_pass_that_detects_nothing_is_not_green(
    tmp_path: Path, limit: str, more: tuple[str, ...], code: int, told: str
) -> None:
    """The classic rule detects drops of 27.8 points with 40 samples."""
    asked = ("-t", "word_problems", "--launcher", "embedded", "--limit", limit)
    done = serve_eval("run", *asked, "--verdict", "classic", *more, "-o", tmp_path / "run")
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert ("--strict:" in done.stderr) == bool(told)


def test_max_detects_needs_strict(tmp_path: Path) -> None:
    asked = ("-t", "word_problems", "--launcher", "embedded", "-o", tmp_path / "run")
    done = serve_eval("run", *asked, "--set", "run.max_detects=20")
    assert done.returncode == 2
    assert "run.max_detects is part of --strict" in done.stderr
    assert not (tmp_path / "run").exists()


SUITE = """
defaults:
  {launcher: {name: embedded}, model: embedded, tasks: [word_problems], verdict: classic}
plans: [{name: one, limit: 1}, {name: forty, limit: 40}]
"""


@pytest.mark.parametrize(("more", "code"), [((), 0), (("--strict",), 1)])
def test_a_suite_with_a_run_that_detects_nothing_is_not_green(
    tmp_path: Path, more: tuple[str, ...], code: int
) -> None:
    (tmp_path / "s.yaml").write_text(SUITE)
    out = tmp_path / "out"
    done = serve_eval("run", tmp_path / "s.yaml", *more, "-o", out)
    assert done.returncode == code, done.stdout + done.stderr
    assert (f"--strict: one: {NEVER}" in " ".join(done.stdout.split())) == bool(more), done.stdout
    assert "--strict: forty" not in done.stdout
    done = serve_eval("judge", out, *more)
    assert done.returncode == code, done.stdout + done.stderr
