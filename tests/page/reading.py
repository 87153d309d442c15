"""Read a page as a reader does, and the data of its file."""

from __future__ import annotations

import base64
import gzip
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from playwright.sync_api import Page


def read_data(file: Path) -> dict[str, Any]:
    """Return the data of the samples in a page."""
    found = re.search(r'id="samples-data">([^<]*)<', file.read_text())
    assert found is not None
    data: dict[str, Any] = msgspec.json.decode(gzip.decompress(base64.b64decode(found[1])))
    parts, rows = data["prompts"]["parts"], data["prompts"]["rows"]
    used = Counter(part for row in rows for part in set(row or ()))
    data["prompts"]["own"] = [
        "".join(parts[part] for part in row if used[part] == 1) if row else None for row in rows
    ]
    return data


def count_shown(page: Page) -> int:
    """Return how many samples the table has, in sight or not."""
    rows = page.locator("table.samples").get_attribute("aria-rowcount")
    return int(rows or 0) - 1


def wait_for_rows(page: Page, rows: int) -> None:
    """Wait until the table has a number of samples, since the search waits for the next key."""
    page.wait_for_selector(f"table.samples[aria-rowcount='{rows + 1}']", state="attached")


def list_facts(page: Page, place: str) -> dict[str, str]:
    """Return the labels and texts of a list; of equal labels, the last one counts."""
    facts = page.locator(f"{place} .fact")
    return dict(
        zip(
            facts.locator("dt").all_inner_texts(),
            facts.locator("dd").all_inner_texts(),
            strict=True,
        )
    )


def list_rows(page: Page, caption: str) -> list[list[str]]:
    """Return the cells of the table below a title that begins so, which is opened if folded."""
    name = re.compile(rf"^{re.escape(caption)}(:|$)")
    section = page.locator("section.block", has=page.get_by_role("heading", name=name))
    for folded in section.locator("details:not([open]) > summary").all():
        folded.click()
    return [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]
