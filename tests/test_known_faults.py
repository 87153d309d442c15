"""The page about known faults names tests that exist, and most of the faults are named."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST_NAMED = 18


def test_each_fault_of_the_page_has_a_test() -> None:
    lines = (ROOT / "docs/known-faults.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line][2:]
    held = [row[3] for row in rows if row[3] != "-"]
    assert len(rows) == 22
    assert len(held) >= LEAST_NAMED
    for name in held:
        file, _, function = name.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE)
