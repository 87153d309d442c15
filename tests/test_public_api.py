"""Test that the public API matches docs/python-api.md and imports nothing before its use."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import serve_eval

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/python-api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = re.findall(r"^It prints `([^`]+)`", PAGE, re.MULTILINE)


def test_the_list_is_sorted_and_every_name_is_there() -> None:
    assert serve_eval.__all__ == sorted(serve_eval.__all__)
    assert all(getattr(serve_eval, name) is not None for name in serve_eval.__all__)
    with pytest.raises(AttributeError, match="no attribute 'evaluated'"):
        _ = serve_eval.evaluated  # type: ignore[attr-defined]


def test_importing_it_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import serve_eval; print(*sorted(set(sys.modules) -"
        " before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    others = {name.partition(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert others == {"serve_eval"}
    assert "serve_eval." not in done.stdout


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("".join(EXAMPLES[:3]))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.stdout.splitlines() == PRINTED[:3], done.stderr


def test_the_smoke_example_checks_an_endpoint(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[3])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 4, done.stderr
    assert "FAIL reachable" in done.stdout


def test_one_server_is_not_compared_with_itself(tmp_path: Path) -> None:
    launcher = serve_eval.Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    plan = serve_eval.Plan(model="m", launcher=launcher, tasks=(serve_eval.Spec(name="aime"),))
    with pytest.raises(serve_eval.ServeEvalError, match="A and B are the same server"):
        asyncio.run(serve_eval.compare(plan, plan, tmp_path / "compared"))
    assert not list(tmp_path.iterdir())


def test_the_text_of_a_report_is_one_line_with_its_folder(tmp_path: Path) -> None:
    plan = serve_eval.Plan(
        model="m",
        launcher=serve_eval.Spec(name="simulated", options={"accuracy": 1.0}),
        tasks=(serve_eval.Spec(name="word_problems", options={"num_samples": 5}),),
        no_reference=True,
    )
    folder = tmp_path / "run"
    report = asyncio.run(serve_eval.evaluate(plan, folder))
    assert str(report).startswith("NO REFERENCE word_problems m: 100.0; 5 asked, 0 failed")
    assert str(report).endswith(f"; {folder}")
    assert "\n" not in str(report)
    assert str(replace(report, warnings=("more",))).startswith("NO REFERENCE word_problems m")


@pytest.mark.slow
def test_the_verify_example_finds_other_weights(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[4])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.stdout.splitlines() == PRINTED[3:], done.stderr


@pytest.mark.slow
def test_mypy_knows_the_types_of_the_examples(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("".join(EXAMPLES))
    check = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(script),
    ]
    done = subprocess.run(check, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout
