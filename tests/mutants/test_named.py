"""Test that the named changes are bound to code and tests that are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.named import LATE, MOST_S, Named, is_noticed, listed

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


@pytest.mark.parametrize(
    ("script", "noticed"),
    [
        ([(True, "")], False),
        ([(False, "FAILED tests/test_a.py")], True),
        ([(False, LATE), (True, "")], True),
        ([(False, LATE), (False, LATE)], False),
    ],
)
def test_tests_that_are_late_notice_a_change_only_if_they_pass_without_it(
    tmp_path: Path, script: list[tuple[bool, str]], noticed: bool
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    seen = []

    def passes(copy: Path, tests: Sequence[str], limit_s: float) -> tuple[bool, str]:
        assert tests == ("tests/test_a.py",)
        seen.append(((copy / "a.py").read_text(encoding="utf-8"), limit_s))
        return script[len(seen) - 1]

    one = Named("one more", "a.py", "x = 1", "x = 2", ("tests/test_a.py",))
    assert is_noticed(tmp_path, one, passes) is noticed
    assert seen == [("x = 2\n", MOST_S), ("x = 1\n", MOST_S / 2)][: len(script)]
