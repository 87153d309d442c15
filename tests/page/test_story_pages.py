"""Test the pages of stories and folders in a browser: quiet and accessible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve_eval.report.document import make_page
from serve_eval.report.page.writer import render_page, save_page
from serve_eval.workflows.view.server import ViewServer, serve_folder
from tests.page.conftest import NARROW, READY, MadeRuns, Open
from tests.report.document.stories import HOSTILE, STORIES, make_documents, make_story_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser


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


FOREIGN = """<!DOCTYPE html><title>x</title><script>
let storage = "none";
try { localStorage.setItem("a", "b"); storage = "some"; } catch { }
const tell = (word) => () => { document.title = `${word}, storage ${storage}`; };
fetch("../report.json").then(tell("read"), tell("kept"));
</script>"""


@pytest.fixture(scope="module")
def server(runs: MadeRuns) -> Iterator[ViewServer]:
    (runs.run.parent / "foreign").mkdir()
    (runs.run.parent / "foreign/page.html").write_text(FOREIGN)
    with serve_folder(runs.run.parent, render_page) as found:
        yield found


def test_the_index_leads_to_a_run_and_to_two_runs_without_a_complaint(
    server: ViewServer, browser: Browser
) -> None:
    said: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda asked: said.append(asked.url))
    page.goto(server.url)
    assert page.locator("figure svg[role=img]").count() == page.locator("figure").count() > 0
    page.locator("table.marks tbody a").first.click()
    page.wait_for_selector(READY, state="attached")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.goto(server.url)
    page.get_by_role("link", name="compare with ...").first.click()
    page.locator("table.data tbody a").first.click()
    assert "differ" in page.locator("main").inner_text()
    assert [one for one in said if not one.startswith(server.url)] == []
    page.close()


def test_a_page_of_another_user_reads_no_other_page(server: ViewServer, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(f"{server.url}foreign/page.html")
    page.wait_for_function("document.title != 'x'")
    assert page.title() == "kept, storage none"
    page.goto("about:blank")
    page.close()
