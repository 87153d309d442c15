"""A folder of runs in a browser: from the index to a run, to two runs, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from serve_eval.report.page.writer import render_page
from serve_eval.workflows.view.server import ViewServer, serve_folder
from tests.page.conftest import READY, MadeRuns

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
