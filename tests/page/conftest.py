"""Pages of a run and of a comparison, opened in a headless Chromium.

The browser is closed before other tests of this process run: its event loop would be in their way.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import serve_eval

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WIDE, NARROW = 1280, 390
DRAWN = {"SERVE_EVAL_NO_PICTURES": ""}
"""The environment of commands whose pages have pictures."""
READY = "#samples[data-ready]"
"""The selector of an element that exists once the scripts of a page with samples have run."""


def pytest_collection_modifyitems(items):
    """Mark these tests, and skip them with the reason where there is no browser."""
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:  # those of all folders
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.page)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="needs Debian's package chromium"))


@dataclass(frozen=True)
class MadeRuns:
    """Folders with pages: two runs of one task, their comparison, and one with repeats."""

    run: Path
    other: Path
    comparison: Path
    repeated: Path


@pytest.fixture(scope="package")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = MadeRuns(*(folder / name for name in ("run", "other", "comparison", "repeated")))
    flags = "--launcher simulated -m embedded --tasks word_problems"
    for out, accuracy, more in (
        (made.run, "0.6", "--limit 60"),
        (made.other, "0.9", "--limit 60 --set launcher.damage=0.1"),
        (made.repeated, "0.5", "--limit 3 --repeats 3 --set no_prompts=true"),
    ):
        accurate = f"--set launcher.accuracy={accuracy}"
        done = serve_eval(f"run -o {out} {flags} {accurate} {more}", **DRAWN)
        assert (out / "report.html").exists(), done.stderr
    serve_eval(f"compare {made.other} {made.run} -o {made.comparison}", **DRAWN)
    assert (made.comparison / "report.html").exists()
    return made


@pytest.fixture(scope="package")
def browser(runs):
    """A browser, started after the runs, which need an event loop of their own."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield found
        found.close()


@dataclass
class OpenedPage:
    """A page with everything that it wrote on the console or requested."""

    page: Page
    said: list[str] = field(default_factory=list)


@pytest.fixture
def open_page(browser):
    """Return a function that opens a file; afterwards, no page may have complained or requested."""
    opened = []

    def open_file(file, fragment="", ready=READY, **options):
        viewport = {"width": options.pop("width", WIDE), "height": 800}
        page = browser.new_page(viewport=viewport, **options)
        one = OpenedPage(page)
        address = file.absolute().as_uri()
        page.on("console", lambda message: one.said.append(message.text))
        page.on("pageerror", lambda error: one.said.append(str(error)))
        page.on("request", lambda asked: one.said.append(asked.url))
        opened.append(one)
        page.goto(f"{address}{fragment}")
        page.wait_for_selector(ready, state="attached")
        return page

    yield open_file
    for one in opened:
        others = [said for said in one.said if not said.startswith(("file://", "blob:"))]
        assert others == []
        assert len([said for said in one.said if said.startswith("file://")]) == 1
        one.page.close()
