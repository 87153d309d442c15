from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest


def _power(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "serve_eval", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_smallest_n_for_theta_stands_beside_the_row_of_the_table() -> None:
    done = _power("power", "--theta", "3", "--total", "14042")
    assert done.returncode == 0, done.stderr
    assert "theta 3: 3435 samples" in done.stdout
    assert "row of the table: 4096" in done.stdout
    assert "4096      2.747193               -1.817324" in done.stdout


def test_the_three_rules_are_compared_for_a_drop() -> None:
    done = _power("power", "--detect", "1.0", "--power", ".8", "--flip-rate", ".034")
    assert done.returncode == 0, done.stderr
    rules = ("classic", "paired", "noninferiority")
    words = [line.split() for line in done.stdout.splitlines() if line.strip()]
    numbers = {row[0]: int(row[1]) for row in words if row[0] in rules}
    assert numbers["classic"] == 30913
    assert 2200 < numbers["paired"] < 3000
    assert 2000 < numbers["noninferiority"] < 2400
    at_the_drop = next(row for row in words if row[0] == "1")
    assert float(at_the_drop[2]) >= 0.8 > float(at_the_drop[1])


def test_a_runs_own_spread_and_throughput_are_used(data_root: Path, tmp_path: Path) -> None:
    flags = ["run", "--launcher", "simulated", "--tasks", "gsm8k", "--dataset-root", data_root, "--no-reference"]
    assert _power(*flags, "--set", "gsm8k.num_samples=200", "-o", tmp_path / "out").returncode == 3
    done = _power("power", "--from", tmp_path / "out", "--theta", "3", "--detect", "2")
    assert done.returncode == 0, done.stderr
    value = float(done.stdout.split("value ")[1].split(",")[0]) / 100
    sigma = float(done.stdout.split("standard deviation ")[1].split()[0])
    assert sigma == pytest.approx(100 * math.sqrt(value * (1 - value)), abs=0.001)
    assert float(done.stdout.split("(sigma ")[1].split(",")[0]) == pytest.approx(sigma, abs=0.01)
    assert "s at the measured throughput" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what is wanted"),
        (["--total", "0"], "--total must be 1 or more"),
        (["--theta", "-1"], "theta must be a finite number"),
        (["--detect", "0"], ""),
        (["--detect", "1", "--flip-rate", "2"], ""),
        (["--from", "/nowhere"], "has no report"),
    ],
)
def test_what_cannot_be_planned_is_said(arguments: list[str], said: str) -> None:
    done = _power("power", *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr
