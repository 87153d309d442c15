"""The rules of axe-core hold for each page, light and dark, with a sample open and without."""

from __future__ import annotations

import pytest

from tests.page.conftest import MadeRuns, Open


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_axe_finds_nothing(kind: str, theme: str, runs: MadeRuns, open_page: Open) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(getattr(runs, kind) / "report.html", color_scheme=theme)
    for summary in page.locator("main summary").all():
        summary.click()
    for opened in (False, True):
        if opened:
            page.locator("tr[data-place='0'] a").click()
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
