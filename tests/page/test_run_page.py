"""Test the pages of a run and of a comparison in a browser, as a reader does."""

import base64
import csv
import gzip
import io
import json
import re
import shlex
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from serve_eval.report.summary.figures import figure, span
from serve_eval.schema import Comparison, Report
from serve_eval.stats.intervals import wilson
from serve_eval.storage.scores import read_scores, read_values
from tests.page.conftest import NARROW
from tests.root import ROOT


def read_data(file):
    """Return the data of the samples in a page."""
    found = re.search(r'id="samples-data">([^<]*)<', file.read_text())
    data = msgspec.json.decode(gzip.decompress(base64.b64decode(found[1])))
    parts, rows = data["prompts"]["parts"], data["prompts"]["rows"]
    used = Counter(part for row in rows for part in set(row or ()))
    data["prompts"]["own"] = [
        "".join(parts[part] for part in row if used[part] == 1) if row else None for row in rows
    ]
    return data


def count_shown(page):
    """Return how many samples the table has, in sight or not."""
    rows = page.locator("table.samples").get_attribute("aria-rowcount")
    return int(rows or 0) - 1


def wait_for_rows(page, rows):
    """Wait until the table has a number of samples, since the search waits for the next key."""
    page.wait_for_selector(f"table.samples[aria-rowcount='{rows + 1}']", state="attached")


def list_facts(page, place):
    """Return the labels and texts of a list; of equal labels, the last one counts."""
    facts = page.locator(f"{place} .fact")
    return dict(
        zip(
            facts.locator("dt").all_inner_texts(),
            facts.locator("dd").all_inner_texts(),
            strict=True,
        )
    )


def list_rows(page, caption):
    """Return the cells of the table below a title that begins so, which is opened if folded."""
    name = re.compile(rf"^{re.escape(caption)}(:|$)")
    section = page.locator("section.block", has=page.get_by_role("heading", name=name))
    for folded in section.locator("details:not([open]) > summary").all():
        folded.click()
    return [row.locator("th, td").all_inner_texts() for row in section.locator("tbody tr").all()]


def _report(run):
    return msgspec.json.decode((run / "report.json").read_bytes(), type=Report)


def test_every_figure_of_the_page_is_that_of_the_report(runs, open_page):
    report = _report(runs.run)
    [task] = report.tasks
    result, verdict, paired = task.result, task.verdict, task.verdict.paired
    assert result.value is not None
    assert verdict.reference is not None
    page = open_page(runs.run / "report.html")
    headline = page.locator(".headline").inner_text()
    assert headline.split() == [
        *(verdict.outcome, "word_problems", figure(result.value, result.metric), "reference"),
        *(f"{verdict.reference:.1f}", f"{result.value - verdict.reference:+.1f}", "margin"),
        *(f"{paired.margin:.1f}", "(paired)"),
    ]
    facts = list_facts(page, ".verdict")
    assert f"{paired.down} turned wrong, {paired.up} turned right" in facts["drop"]
    assert facts["asked"].startswith(f"{result.planned} samples: {result.failed} failed")
    slices = result.breakdown["steps"]
    before = task.reference_breakdown["steps"]
    rows = {row[0]: row[1:] for row in list_rows(page, "By steps")}
    assert rows.keys() == slices.keys()
    for name, (n, value, interval, was, change) in rows.items():
        one, old = slices[name], before[name]["value"]
        low, high = wilson(one["value"] / 100 * one["scored"], one["scored"], 0.05)
        assert (n, value, was) == (str(one["scored"]), f"{one['value']:.1f}", f"{old:.1f}")
        assert (interval, change) == (
            span((100 * low, 100 * high), result.metric),
            f"{one['value'] - old:+.1f}",
        )
    chips = page.locator(".chip").all_inner_texts()
    right, wrong = result.outcomes["correct"], result.outcomes["wrong"]
    assert chips == [f"wrong {wrong}", f"right {right}"]
    page.select_option("label:has-text('against the reference') select", "fell")
    assert count_shown(page) == paired.down
    page.select_option("label:has-text('against the reference') select", "rose")
    assert count_shown(page) == paired.up


def test_filters_are_in_the_address_and_a_link_shows_the_same(runs, open_page):
    wrong = {name for name, one in read_scores(runs.run, "word_problems").items() if not one.value}
    page = open_page(runs.run / "report.html")
    assert count_shown(page) == 60
    first = page.locator("tr[data-place='0']")
    assert "wrong" in first.inner_text()
    page.click(".chip:has-text('wrong')")
    assert count_shown(page) == len(wrong)
    page.locator("summary:has-text('By steps')").click()
    page.get_by_role("link", name="4", exact=True).click()
    assert "f.steps=4" in page.url
    assert page.locator("label:has-text('steps') select").input_value() == "4"
    page.click(".chip:has-text('wrong')")
    steps = count_shown(page)
    again = open_page(runs.run / "report.html", page.url[page.url.index("#") :])
    assert count_shown(again) == steps < len(wrong)
    again.click(".chip:has-text('right')")
    again.go_back()
    assert again.locator(".status").inner_text() == f"{steps} of 60 samples"
    again.click("text=Show all")
    assert count_shown(again) == 60
    again.click("th:has-text('sample') button")
    ids = [cell.inner_text() for cell in again.locator("tr[data-place] th").all()[:5]]
    assert ids == sorted(ids, key=lambda name: int(name.partition("-")[2]))


@pytest.mark.parametrize("where", ["prompt", "answer", "id"])
def test_the_search_reads_every_text(where, runs, open_page):
    page = open_page(runs.run / "report.html", "#sort=sample")
    data = read_data(runs.run / "report.html")
    answers = data["answers"]
    texts = [answers["text"]["values"][code] for code in answers["text"]["codes"]]
    part = texts[0].splitlines()[0].upper()
    found = [row for row, text in zip(answers["row"], texts, strict=True) if part in text.upper()]
    needle, wanted = {
        "prompt": (data["prompts"]["own"][7][10:60].upper(), [7]),
        "answer": (part, found),
        "id": (data["id"][7], [7]),
    }[where]
    assert wanted
    page.get_by_label("Search all texts").fill(needle)
    wait_for_rows(page, len(wanted))
    shown = [row.inner_text() for row in page.locator("tr[data-place] th").all()]
    assert shown == [data["id"][row] for row in wanted][: len(shown)]


def test_a_sample_shows_all_that_is_known_of_it(runs, open_page):
    score = next(one for one in read_scores(runs.run, "word_problems").values() if not one.value)
    page = open_page(runs.run / "report.html")
    page.get_by_role("link", name=score.id, exact=True).click()
    view = page.locator("dialog.drawer")
    assert view.locator("h2").inner_text() == f"wrong {score.id}"
    facts = list_facts(page, "dialog.drawer")
    assert facts["extracted"] == score.answer
    assert facts["outcome"] == "wrong"
    assert facts["score"].startswith("0")
    assert facts["reference's scores"] in ("0, 0, 0", "1, 1, 1")
    assert "finish reason stop" in facts["end"]
    assert "after the first" in facts["time"]
    assert view.locator("mark").inner_text() == score.answer
    assert "Question: " in view.locator(".part:has(h3:text('Prompt')) .text").inner_text()
    page.go_back()
    assert not view.is_visible()


def test_the_curl_line_asks_the_same_again_without_a_key(runs, open_page, monkeypatch):
    data = read_data(runs.run / "report.html")
    page = open_page(runs.run / "report.html", f"#sample=word_problems/{data['id'][3]}")
    page.click("text=Ask this again with curl")
    words = shlex.split(page.locator(".code").inner_text())
    assert words[:3] == ["curl", "-sS", f"{_report(runs.run).endpoint.base_url}/completions"]
    assert "Authorization: Bearer $OPENAI_API_KEY" in words
    body = json.loads(words[words.index("-d") + 1])
    prompts = data["prompts"]["own"]
    assert body["model"] == "embedded"
    assert body["prompt"].endswith(prompts[3])
    assert (body["max_tokens"], body["temperature"]) == (128, 0.0)


def test_the_keyboard_alone_finds_opens_and_leaves_a_sample(runs, open_page):
    page = open_page(runs.run / "report.html")
    view, press = page.locator("dialog.drawer"), page.keyboard.press
    press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("?j")
    assert not page.locator("dialog.help").is_visible()
    page.get_by_label("Search all texts").fill("")
    press("Escape")
    wait_for_rows(page, 60)
    for key in "jjk":
        press(key)
    marked = page.locator("tr[aria-current] th").inner_text()
    assert page.locator("tr[aria-current]").get_attribute("data-place") == "0"
    press("Enter")
    assert view.locator("h2").inner_text().endswith(marked)
    press("j")
    following = view.locator("h2").inner_text()
    assert not following.endswith(f" {marked}")
    assert page.url.endswith(following.split()[-1])
    press("Escape")
    view.wait_for(state="hidden")
    # A browser announces in a later task that a dialog has closed. The address follows that.
    page.wait_for_url(lambda url: "sample=" not in url)
    press("?")
    assert "next and previous sample" in page.locator("dialog.help").inner_text()
    press("Escape")
    press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def test_the_page_is_dark_by_the_system_and_by_its_switch(runs, open_page):
    def background(page):
        shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(shade.removeprefix("rgb(").partition(",")[0])

    for system, dark in (("light", False), ("dark", True)):
        page = open_page(runs.run / "report.html", color_scheme=system)
        switch = page.get_by_label("Switch between light and dark")
        assert (background(page) < 100) is dark
        assert switch.get_attribute("aria-pressed") == str(dark).lower()
        switch.click()
        assert (background(page) < 100) is not dark


def test_only_rows_in_sight_are_in_the_document(runs, open_page):
    page = open_page(runs.run / "report.html", "#sort=sample")
    drawn = page.locator("tr[data-place]")
    assert 10 < drawn.count() < 50
    page.locator(".frame").evaluate("frame => frame.scrollTop = frame.scrollHeight")
    page.wait_for_selector("tr[data-place='59']")
    assert drawn.count() < 50
    assert (
        page.locator("tr[data-place='59'] th").inner_text()
        == read_data(runs.run / "report.html")["id"][59]
    )


def test_what_is_chosen_is_saved_as_csv_and_as_jsonl(runs, open_page):
    page = open_page(runs.run / "report.html", "#outcome=wrong")
    saved = {}
    for name in ("Save CSV", "Save JSONL"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        saved[name] = download.value.path().read_bytes().decode()
    lines = [json.loads(line) for line in saved["Save JSONL"].splitlines()]
    rows = list(csv.DictReader(io.StringIO(saved["Save CSV"], newline="")))
    scores = read_scores(runs.run, "word_problems")
    assert {line["id"] for line in lines} == {n for n, one in scores.items() if not one.value}
    assert [row["id"] for row in rows] == [line["id"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        assert (row["expected"], row["extracted"]) == (line["expected"], line["extracted"])
        assert line["expected"] == scores[line["id"]].target
        assert row["field.steps"] == line["field.steps"]


def test_repeats_are_one_row_with_how_often_each_answer_came(runs, open_page):
    page = open_page(runs.repeated / "report.html", "#sort=sample")
    scores = read_scores(runs.repeated, "word_problems")
    assert len(scores) == 9
    assert count_shown(page) == 3
    for row in page.locator("tr[data-place]").all():
        base = row.locator("th").inner_text()
        answers = [one.answer for name, one in scores.items() if name.partition("#")[0] == base]
        for answer in set(answers):
            assert f"{answer} ×{answers.count(answer)}" in row.inner_text()
    assert "The prompts were not kept in this run folder." in page.locator("#samples").inner_text()
    page.locator("tr[data-place='0'] a").click()
    assert page.locator("dialog.drawer h3").all_inner_texts()[1:4] == [
        f"Answer {n} of 3" for n in (1, 2, 3)
    ]
    assert "Not kept in this run folder." in page.locator("dialog.drawer").inner_text()


def test_nothing_scrolls_sideways_at_the_width_of_a_phone(runs, open_page):
    for folder in (runs.run, runs.comparison, runs.repeated):
        page = open_page(folder / "report.html", width=NARROW)
        for summary in page.locator("main summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW
        page.locator("tr[data-place='0'] a").click()
        body = page.locator(".sample-body")
        assert body.evaluate("one => one.scrollWidth - one.clientWidth") == 0


def test_paper_has_the_samples_and_no_controls(runs, open_page):
    page = open_page(runs.run / "report.html")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("tr[data-place]").count() == 60
    assert page.locator("main details:not([open])").count() == 0
    assert not page.locator(".controls").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("main > section > details[open]").count() == 0


def test_the_cells_of_the_table_choose_the_samples(runs, open_page):
    a, b = (read_values(one, "word_problems") for one in (runs.other, runs.run))
    counts = {
        (x, y): sum(a[name] == x and b[name] == y for name in a) for x in (1, 0) for y in (1, 0)
    }
    page = open_page(runs.comparison / "report.html")
    rows = list_rows(page, "A and B")
    assert rows == [
        ["A right", f"{counts[1, 1]}", f"{counts[1, 0]}"],
        ["A wrong", f"{counts[0, 1]}", f"{counts[0, 0]}"],
    ]
    assert "right" in page.locator("tr[data-place='0'] .col-outcomeA").inner_text()
    assert "wrong" in page.locator("tr[data-place='0'] .col-outcomeB").inner_text()
    page.get_by_role("link", name=f"{counts[1, 0]}", exact=True).first.click()
    assert "a=right" in page.url
    assert count_shown(page) == counts[1, 0]
    for row in page.locator("tr[data-place]").all():
        name = row.locator("th").inner_text()
        assert (a[name], b[name]) == (1, 0)


def test_both_answers_stand_side_by_side_with_their_difference(runs, open_page):
    page = open_page(runs.comparison / "report.html", "#flip=fell")
    page.locator("tr[data-place='0'] a").click()
    view = page.locator("dialog.drawer")
    assert "A right" in view.locator("h2").inner_text()
    assert "B wrong" in view.locator("h2").inner_text()
    texts = [side.locator(".text").first.inner_text() for side in view.locator(".side").all()]
    difference = view.locator(".part:has(h3:text('Difference')) .text")
    for gone, text in (("ins", texts[0]), ("del", texts[1])):
        kept = difference.evaluate(
            "(one, gone) => { const copy = one.cloneNode(true);"
            " for (const part of copy.querySelectorAll(gone)) part.remove();"
            " return copy.textContent; }",
            gone,
        )
        assert kept == text


def test_the_settings_that_differ_come_first_and_are_marked(runs, open_page):
    page = open_page(runs.comparison / "report.html")
    rows = list_rows(page, "Settings of A and B")
    states = [row[1] for row in rows]
    assert states == sorted(states)
    differing = {row[0]: row[2:] for row in rows if row[1] == "differs"}
    assert differing["plan.launcher.options.accuracy"] == ["0.9", "0.6"]
    assert ["plan.model", "same", "embedded", "embedded"] in rows


def test_the_words_and_figures_are_those_of_the_comparison(runs, open_page):
    found = msgspec.json.decode((runs.comparison / "comparison.json").read_bytes(), type=Comparison)
    [task] = found.tasks
    page = open_page(runs.comparison / "report.html")
    text = page.locator(".verdict").inner_text()
    assert task.verdict.outcome in text
    assert f"B {task.b.value:.1f}" in text
    assert f"A {task.a.value:.1f}" in text
    paired = task.verdict.paired
    agreed = task.agreement
    folded = page.locator("main").text_content() or ""
    assert f"a drop of {paired.margin:.3f} points" in folded
    assert f"{agreed.identical} of {agreed.prompts} identical" in folded
    page.select_option("label:has-text('A to B') select", "fell")
    assert count_shown(page) == task.worse
    page.select_option("label:has-text('A to B') select", "rose")
    assert count_shown(page) == task.better


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
def site(tmp_path_factory):
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


def test_the_sidebar_has_four_groups_and_at_most_twenty_pages(site, page):
    page.goto(f"{site.as_uri()}/index.html")
    assert page.locator(".sidebar-tree .caption").count() == 4
    links = page.locator(".sidebar-tree li.toctree-l1 > a")
    assert 15 <= links.count() <= 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_search_answers_a_new_user(site, page, question):
    page.goto(f"{site.as_uri()}/search.html?q={question.replace(' ', '+')}")
    page.wait_for_selector("ul.search li")
    page.wait_for_timeout(300)
    found = [link.get_attribute("href") for link in page.locator("ul.search li > a").all()]
    first = [re.sub(r"\.html.*", "", one.rpartition("site/")[2]) for one in found][:FIRST]
    assert set(first) & set(QUESTIONS[question]), found[:10]


def test_old_pages_lead_to_the_new_ones(site, page):
    page.goto(f"{site.as_uri()}/workers.html")
    page.wait_for_url("**/check.html")
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("name", ["index", "getting-started", "compare", "tasks", "method"])
def test_a_page_of_the_site_reads_on_a_phone(site, page, name):
    page.set_viewport_size({"width": NARROW, "height": 800})
    page.goto(f"{site.as_uri()}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW
