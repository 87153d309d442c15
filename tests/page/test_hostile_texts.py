"""Test hostile texts and media in a browser: texts stay texts, links stay within."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.writer import render_page
from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.text import reveal
from serve_eval.schema import Message, Metric, Response, Sample, TextPart
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.prompts import keep_media, write_prompts
from tests.page.conftest import Open
from tests.page.hostile import HOSTILE, LONG, MARKUP, make_content, make_task

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


SCRIPTS = Path(__file__).parents[2] / "serve_eval/report/page/assets/scripts"


def _write(folder: Path, texts: list[str]) -> Path:
    content = make_content(texts[0], make_task(folder, texts))
    file = folder / "report.html"
    file.write_text(render_page(content))
    return file


def test_no_text_runs_or_hides_and_each_is_shown_with_escapes(
    tmp_path: Path, open_page: Open
) -> None:
    texts = list(HOSTILE.values())
    page: Page = open_page(_write(tmp_path, texts))
    assert page.title() == reveal(MARKUP)
    page.locator("main summary").first.click()
    for place, text in enumerate(texts):
        shown = reveal(text.encode(errors="backslashreplace").decode())
        page.evaluate(
            "row => location.hash = new URLSearchParams({sample: row})",
            f"task <b>/{place} {text[:100].encode(errors='backslashreplace').decode()}",
        )
        view = page.locator("dialog.drawer")
        view.wait_for()
        assert view.locator("h2").text_content() == f"wrong {place} {shown}"
        for summary in view.locator("summary").all():
            summary.click()
        body = view.locator(".sample-body").text_content() or ""
        assert body.count(shown) > 10
        answer = view.locator("section.part:has(> h3:text-is('Answer')) .text").first
        assert answer.text_content() == f"{shown} is {shown}, 42"
        assert not any(ord(one) < 32 and one != "\n" for one in body)
        assert view.locator("script, img, b").count() == 0
    assert page.evaluate("[window.hit, document.images.length]") == [None, 0]
    cells = page.locator("tr[data-place]").all_inner_texts()
    assert len(cells) == len(texts) + 1


def test_saved_cells_are_no_formulas(tmp_path: Path, open_page: Open) -> None:
    texts = ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\t=1", "-5"]
    page: Page = open_page(_write(tmp_path, texts), "#sort=sample")
    with page.expect_download() as download:
        page.click("text=Save CSV")
    saved = download.value.path().read_text()
    for text in texts[:-1]:
        assert f"'{text}" in saved
        assert f",{text}" not in saved
    assert ",-5," in saved


def test_a_line_of_ten_megabytes_opens(tmp_path: Path, open_page: Open) -> None:
    file = _write(tmp_path, [LONG])
    assert file.stat().st_size < 3_000_000
    page: Page = open_page(file)
    notes = page.locator("#samples > .note").all_inner_texts()
    assert "long texts are shortened in the middle" in notes[0]
    page.locator("tr[data-place='1'] a").click()
    shown = page.locator("dialog.drawer .text").first
    assert 16_000 <= len(shown.text_content() or "") < 30_000
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


@pytest.fixture
def scripts(browser: Browser) -> Page:
    """An empty page. Its scripts are those of the pages, without their policy."""
    return browser.new_page()


def test_the_page_reveals_the_same_characters_as_the_terminal(scripts: Page) -> None:
    source = (SCRIPTS / "dom.js").read_text()
    codes = [code for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    text = "".join(map(chr, codes)).replace("\r\n", "")
    found = scripts.evaluate(f"text => {{ {source}; return reveal(text) }}", text)
    assert found == reveal(text)
    halves = scripts.evaluate(
        f"() => {{ {source}; return reveal('a\\ud800b\\udc00c\\ud83d\\ude00') }}"
    )
    assert halves == "a\\ud800b\\udc00c\U0001f600"
    scripts.close()


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        ("The total is 1,234 apples.", "1234"),
        ("90 or 190, so 90.", "90"),
        ("the answer is (b)", "B"),
        ("it is New\n York", "new york"),
        ("x = -5", "-5"),
        ("a+b [c] {d} ^ $ . | ? *", "a+b [c] {d} ^ $ . | ? *"),
        ("1900", "90"),
        ("about", "B"),
        ("anything", ""),
        ("größer als 7", "7"),
        ("xé é", "É"),
        ("a/b-c", "a/b-c"),
    ],
)
def test_the_page_marks_what_show_marks(text: str, extracted: str, scripts: Page) -> None:
    source = (SCRIPTS / "differences.js").read_text()
    found = scripts.evaluate(
        f"([text, extracted]) => {{ {source}; return findPlace(text, extracted) }}",
        [text, extracted],
    )
    place = find_place(text, extracted)
    assert found == (None if place is None else [place.start, place.end])
    scripts.close()


def test_an_image_is_shown_and_a_sound_and_a_video_are_linked(
    tmp_path: Path, open_page: Open
) -> None:
    samples_file(tmp_path, "t").parent.mkdir()
    turn = Message(
        role="user", content=(shape(), number(), dot(), TextPart(text="What are these?"))
    )
    samples = [Sample(id="1", prompt=(turn,), target="")]
    with Journal(samples_file(tmp_path, "t")) as journal:
        journal.append(Record(id="1", response=Response(text="x", finish_reason="stop")))
    write_prompts(tmp_path, "t", samples, str, texts=True)
    keep_media(tmp_path, samples)
    source = SampleSource(run=tmp_path, task="t")
    data = SampleData([PageTask(name="t", arms={"": source}, metric=Metric())], tmp_path)
    section = show_samples(data)
    assert section is not None
    content = replace(make_content("x"), sections=[section])
    file = tmp_path / "report.html"
    file.write_text(render_page(content))
    page: Page = open_page(file, "#sample=t/1")
    view = page.locator("dialog.drawer")
    view.wait_for()
    image = view.locator("figure img")
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 128
    links = [one.get_attribute("href") or "" for one in view.locator("figure a").all()]
    assert [Path(link).suffix for link in links] == [".png", ".wav", ".mp4"]
    assert all((tmp_path / link).is_file() for link in links)
