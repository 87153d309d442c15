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
        ("40", ("--strict", "--max-detects", "28"), 0, ""),
        ("40", ("--strict", "--max-detects", "27"), 1, "above max_detects = 27"),
    ],
)
def test_a_pass_that_detects_nothing_is_not_green(
    tmp_path: Path, limit: str, more: tuple[str, ...], code: int, told: str
) -> None:
    """The classic rule detects drops of 27.8 points with 40 samples."""
    asked = ("-t", "word_problems", "--launcher", "embedded", "--limit", limit)
    done = serve_eval("run", *asked, *more, "-o", tmp_path / "run")
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert ("--strict:" in done.stderr) == bool(told)
