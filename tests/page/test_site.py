"""The documentation as a site: its sidebar, its search, its redirects, and a phone's width."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page.conftest import NARROW
from tests.root import ROOT

QUESTIONS = {
    "accuracy drop after an update": ("diagnose", "compare", "recipes"),
    "which worker is bad": ("check", "recipes"),
    "how many samples": ("method", "references"),
    "disaggregated slurm": ("clusters", "recipes"),
    "thinking model repeats": ("recipes", "requests", "method"),
    "exit code pipeline": ("ci",),
}
"""From what a new user types to the pages that answer it, of which one must be among the first."""
FIRST = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Return the folder of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    build = [sys.executable, ROOT / "docs/_site/build.py", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def page(browser):
    opened = browser.new_page()
    yield opened
    opened.close()


def test_the_sidebar_has_four_groups_and_at_most_twenty_pages(site: Path, page):
    page.goto(f"{site.as_uri()}/index.html")
    assert page.locator(".sidebar-tree .caption").count() == 4
    links = page.locator(".sidebar-tree li.toctree-l1 > a")
    assert 15 <= links.count() <= 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_answers_a_new_user(site: Path, page, question: str):
    page.goto(f"{site.as_uri()}/search.html?q={question.replace(' ', '+')}")
    page.wait_for_selector("ul.search li")
    page.wait_for_timeout(300)
    found = [link.get_attribute("href") for link in page.locator("ul.search li > a").all()]
    first = [re.sub(r"\.html.*", "", one.rpartition("site/")[2]) for one in found][:FIRST]
    assert set(first) & set(QUESTIONS[question]), found[:10]


def test_old_pages_lead_to_the_new_ones(site: Path, page):
    page.goto(f"{site.as_uri()}/workers.html")
    page.wait_for_url("**/check.html")
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("name", ["index", "getting-started", "compare", "tasks", "method"])
def test_a_page_of_the_site_reads_on_a_phone(site: Path, page, name: str):
    page.set_viewport_size({"width": NARROW, "height": 800})
    page.goto(f"{site.as_uri()}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
