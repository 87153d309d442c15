"""Test the recipe of docs/pytest.md that compares two deployments in a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pytest_plugin.run_pytest import ROOT, run_pytest
from tests.standin.process import free_port

PAGE = (ROOT / "docs/pytest.md").read_text()


def _write_recipe(folder: Path, *, damage: str, name: str = "embedded") -> None:
    [block] = re.findall(r"^```python\n(import asyncio\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    launcher = f'Spec(name="{name}", options={{{damage}}})'
    text, changed = re.subn(r'Spec\(name="embedded", options=.*\)', launcher, block)
    assert changed == 1
    (folder / "test_it.py").write_text(text)


@pytest.mark.slow
def test_a_drop_fails_with_the_line_of_the_verdict(tmp_path: Path) -> None:
    _write_recipe(tmp_path, damage='"damage": "int3"')
    done = run_pytest(tmp_path, "-ra", "--junitxml", "j.xml")
    assert "1 failed" in done.stdout.splitlines()[-1], done.stdout
    assert re.search(
        r"^FAIL word_problems m: B [\d.]+ against A [\d.]+ \(drop [\d.]+ \[[\d., ]+\]\); 200 asked",
        done.stdout,
        re.MULTILINE,
    )
    assert '<failure message="FAIL word_problems m: B' in (tmp_path / "j.xml").read_text()


def test_a_side_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    address = f'"base_url": "http://127.0.0.1:{free_port()}/v1"'
    _write_recipe(tmp_path, damage=address, name="external")
    done = run_pytest(tmp_path, "-ra")
    assert "1 error" in done.stdout.splitlines()[-1], done.stdout
    assert "does not answer" in done.stdout


@pytest.mark.slow
def test_a_sound_side_passes(tmp_path: Path) -> None:
    _write_recipe(tmp_path, damage="")
    done = run_pytest(tmp_path, "-ra")
    assert "1 passed" in done.stdout.splitlines()[-1], done.stdout
