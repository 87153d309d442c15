"""Test that pytest reads what was compiled before, and that changed files are compiled again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, get_cache_dir

from tests.compiled_once import ROOT, compile_files


def test_pytest_reads_what_was_compiled_until_the_file_changes(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    assert 1 + 1 == 2\n")
    cached = get_cache_dir(file) / f"test_one{PYC_TAIL}"
    compile_files([file], pytestconfig)
    assert _read_pyc(file, cached) is not None
    written = cached.stat().st_mtime_ns
    compile_files([file], pytestconfig)
    assert cached.stat().st_mtime_ns == written
    file.write_text("def test_one():\n    assert 1 + 1 == 3\n")
    os.utime(file, ns=(written + 10**9, written + 10**9))
    assert _read_pyc(file, cached) is None
    compile_files([file], pytestconfig)
    assert _read_pyc(file, cached) is not None


def test_make_test_uses_the_plugin_and_ci_leaves_the_sandbox_to_its_own_target() -> None:
    assert " -p tests.compiled_once " in (ROOT / "Makefile").read_text(encoding="utf-8")
    steps = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert 'make test TESTS="tests --ignore=tests/sandbox"' in steps
    assert any(step.startswith("make test-sandbox ") for step in steps)
