"""The page of a comparison in a browser: who was right where, and what differs."""

from __future__ import annotations

import msgspec

from serve_eval.schema import Comparison
from serve_eval.storage.records.scores import read_values
from tests.page.conftest import MadeRuns, Open
from tests.page.reading import count_shown, list_rows


def test_the_cells_of_the_table_choose_the_samples(runs: MadeRuns, open_page: Open) -> None:
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


def test_both_answers_stand_side_by_side_with_their_difference(
    runs: MadeRuns, open_page: Open
) -> None:
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


def test_the_settings_that_differ_come_first_and_are_marked(
    runs: MadeRuns, open_page: Open
) -> None:
    page = open_page(runs.comparison / "report.html")
    rows = list_rows(page, "Settings of A and B")
    states = [row[1] for row in rows]
    assert states == sorted(states)
    differing = {row[0]: row[2:] for row in rows if row[1] == "differs"}
    assert differing["plan.launcher.options.accuracy"] == ["0.9", "0.6"]
    assert ["plan.model", "same", "embedded", "embedded"] in rows


def test_the_words_and_figures_are_those_of_the_comparison(runs: MadeRuns, open_page: Open) -> None:
    found = msgspec.json.decode((runs.comparison / "comparison.json").read_bytes(), type=Comparison)
    [task] = found.tasks
    page = open_page(runs.comparison / "report.html")
    text = page.locator(".verdict").inner_text()
    assert task.verdict.outcome in text
    assert f"B {task.b.value:.1f}" in text
    assert f"A {task.a.value:.1f}" in text
    paired = task.verdict.paired
    assert paired is not None
    agreed = task.agreement
    folded = page.locator("main").text_content() or ""
    assert f"a drop of {paired.margin:.3f} points" in folded
    assert f"{agreed.identical} of {agreed.prompts} identical" in folded
    page.select_option("label:has-text('A to B') select", "fell")
    assert count_shown(page) == task.worse
    page.select_option("label:has-text('A to B') select", "rose")
    assert count_shown(page) == task.better
