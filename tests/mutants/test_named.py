"""Test that the named changes are bound to code and tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.named import Named, listed

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("one", listed(), ids=lambda one: one.name)
def test_a_named_change_replaces_what_its_file_holds_once(one: Named) -> None:
    source = (ROOT / one.file).read_text(encoding="utf-8")
    assert source.count(one.old) == 1, "the code has changed: change the entry of named.toml"
    changed = source.replace(one.old, one.new)
    assert changed != source
    compile(changed, one.file, "exec")
    for test in one.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert (
            f"def {function.split('[')[0]}(" in (ROOT / file).read_text("utf-8")
            if function
            else True
        )
