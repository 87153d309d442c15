"""Runs of a suite that asks with several efforts share a column, with a row for each effort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

SUITE = """
defaults: {model: org/m, launcher: simulated, no_reference: true, limit: 20, repeats: 2,
  preset: qwen3-thinking, protocol: {max_tokens: 64, thinking: null}, tasks: [passkey_short]}
matrix: {effort: [none, high]}
"""


def _export(*more: str | Path) -> str:
    done = serve_eval("runs", "export", *more, "--format", "table")
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_efforts_are_rows_of_one_column_and_can_be_compared(tmp_path: Path) -> None:
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(SUITE)
    done = serve_eval("run", file, "-o", out)
    assert done.returncode == 3, done.stdout + done.stderr
    said = _export(out)
    assert "run effort passkey_short n 20 x 2 effort-" in said
    assert "effort-none none " in said
    assert "effort-high high " in said
    assert "cannot be compared" not in said
    assert "not run in this way" not in said
    # Runs that began within one second are in the order of their folders.
    orders = (
        f"rows differ in the effort ({both}), which sets" for both in ("none, high", "high, none")
    )
    assert any(f"{words} temperature, top_p" in said for words in orders)
    apart = _export(out, "--differences", "--baseline", "effort-none")
    assert "1 test by Holm, two-sided; with repeats on both sides, an interval is of these" in apart


def test_a_setting_of_the_user_keeps_runs_in_columns_of_their_own(tmp_path: Path) -> None:
    for effort, temperature in (("none", "0.2"), ("high", "0.3")):
        done = serve_eval(
            "run", "--launcher", "simulated", "-m", "org/m", "-t", "passkey_short",
            "--no-reference", "--limit", "20", "--preset", "qwen3-thinking",
            "--set", f"effort={effort}",
            "--set", f"passkey_short.temperature={temperature}", "--max-tokens", "64",
            "--set", "passkey_short.thinking=null", "-o", tmp_path / effort,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
    assert "2 columns, whose values cannot be compared: temperature differ" in _export(tmp_path)
