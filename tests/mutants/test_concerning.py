"""Test that the tests of each part of the core are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.concerning import CONCERNING
from tests.mutants.drawing import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_files_of_a_part_and_of_its_tests_are_there(package: str) -> None:
    assert [path for path in CONCERNING[package] if not (ROOT / path).exists()] == []
    assert [pattern for pattern in PACKAGES[package] if not list(ROOT.glob(pattern))] == []
