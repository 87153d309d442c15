"""The pages of stories in a browser: quiet, accessible, and within a narrow screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.report.document import make_page
from serve_eval.report.page.writer import save_page
from tests.page.conftest import NARROW, Open
from tests.page.stories import HOSTILE, STORIES, make_story_page
from tests.report.document.stories import make_documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("stories")
    for story in STORIES:
        save_page(make_story_page(story), top / f"{story}.html")
    return top


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("story", STORIES)
def test_axe_finds_nothing_and_nothing_of_a_model_runs(
    story: str, theme: str, folder: Path, open_page: Open
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(folder / f"{story}.html", ready="main", color_scheme=theme)
    for summary in page.locator("main summary").all():
        summary.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("window.hit") is None


@pytest.mark.parametrize("story", STORIES)
def test_a_narrow_screen_shows_it_without_moving_sideways(
    story: str, folder: Path, open_page: Open
) -> None:
    page = open_page(folder / f"{story}.html", ready="main", width=NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW
    pictures = page.locator("figure svg[role=img]")
    assert pictures.count() == page.locator("figure").count()
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_function(
        """() => [...document.querySelectorAll(".scroll")].every((one) =>
            (one.scrollWidth > one.clientWidth + 1) ===
            (getComputedStyle(one, "::before").content.includes("Scrolls sideways")))"""
    )


def test_the_map_of_nights_begins_at_the_newest_on_a_narrow_screen(
    tmp_path: Path, open_page: Open
) -> None:
    file = tmp_path / "view.html"
    save_page(make_page(make_documents("view", HOSTILE)["FAIL"]), file)
    page = open_page(file, ready="main", width=NARROW)
    frame = page.locator(".scroll:has(table.marks)")
    assert frame.evaluate("one => one.scrollWidth > one.clientWidth && one.scrollLeft > 0")
    box = page.locator("table.marks thead th").last.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= NARROW
    name = page.locator("table.marks tbody th").first.bounding_box()
    assert name is not None
    assert name["x"] >= 0
