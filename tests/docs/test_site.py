"""Test that the reference of the site has every command, option and public name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import serve_eval
from serve_eval.cli._commands import walk

SITE = Path(__file__).resolve().parents[2] / "docs/_site"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", SITE / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_and_public_name(reference: ModuleType) -> None:
    pages = dict(reference.write_pages())
    assert list(pages) == ["commands", "tasks", "scorers", "launchers", "verdicts", "library"]
    for words, _ in walk():
        assert f"\n## {' '.join(words)}\n" in pages["commands"]
    for name in serve_eval.__all__:
        assert f"\n## {name}\n" in pages["library"]


def test_the_help_of_a_command_is_whole(reference: ModuleType) -> None:
    texts = dict(reference.list_commands())
    assert "--write-job" in texts["run"]
    assert "--hardware" in texts["references register"]
    assert "All 1" not in texts["run"]
