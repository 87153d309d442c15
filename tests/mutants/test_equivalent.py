"""Test that mutants listed as equivalent are bound to existing lines and have a reason."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.equivalent import listed

ROOT = Path(__file__).resolve().parents[2]


def test_every_explained_mutant_changes_lines_that_are_there() -> None:
    for (file, *diff), reason in listed().items():
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        removed = [line[1:] for line in diff if line.startswith("-")]
        assert removed, file
        assert [line for line in removed if line not in lines] == [], (
            f"{file}: no longer there: remove the entry"
        )
        assert len(reason) > 20, file
