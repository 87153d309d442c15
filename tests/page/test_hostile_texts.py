"""Test pages of stories in a browser: accessible, and hostile texts stay texts."""

from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.report.document import make_page
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    Fact,
    Facts,
    PageContent,
    PictureSection,
    TextLines,
)
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.writer import render_page, save_page
from serve_eval.report.pictures.picture import Picture, RulerRow, make_ruler
from serve_eval.report.samples.known import KnownTask
from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.samples import SampleSource
from serve_eval.report.text import reveal
from serve_eval.schema import (
    Attempt,
    Failure,
    FailureKind,
    Message,
    Metric,
    Outcome,
    Response,
    Sample,
    TextPart,
    ToolCall,
)
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.prompts import keep_media, write_prompts
from serve_eval.storage.scores import ScoreRecord, write_scores
from serve_eval.workflows.view import serve_folder
from tests.page.conftest import NARROW, READY
from tests.report.document.stories import HOSTILE as STORY_PAGES_HOSTILE
from tests.report.document.stories import STORIES, make_documents, make_story_page

SCRIPTS = Path(__file__).parents[2] / "serve_eval/report/page/assets/scripts"


def _write(folder, texts):
    content = make_content(texts[0], make_task(folder, texts))
    file = folder / "report.html"
    file.write_text(render_page(content))
    return file


def test_no_text_runs_or_hides_and_each_is_shown_with_escapes(tmp_path, open_page):
    texts = list(HOSTILE.values())
    page = open_page(_write(tmp_path, texts))
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


def test_saved_cells_are_no_formulas(tmp_path, open_page):
    texts = ["=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-2+3", "\t=1", "-5"]
    page = open_page(_write(tmp_path, texts), "#sort=sample")
    with page.expect_download() as download:
        page.click("text=Save CSV")
    saved = download.value.path().read_text()
    for text in texts[:-1]:
        assert f"'{text}" in saved
        assert f",{text}" not in saved
    assert ",-5," in saved


def test_a_line_of_ten_megabytes_opens(tmp_path, open_page):
    file = _write(tmp_path, [LONG])
    assert file.stat().st_size < 3_000_000
    page = open_page(file)
    notes = page.locator("#samples > .note").all_inner_texts()
    assert "long texts are shortened in the middle" in notes[0]
    page.locator("tr[data-place='1'] a").click()
    shown = page.locator("dialog.drawer .text").first
    assert 16_000 <= len(shown.text_content() or "") < 30_000
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


@pytest.fixture
def scripts(browser):
    """An empty page. Its scripts are those of the pages, without their policy."""
    return browser.new_page()


def test_the_page_reveals_the_same_characters_as_the_terminal(scripts):
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
def test_the_page_marks_what_show_marks(text, extracted, scripts):
    source = (SCRIPTS / "differences.js").read_text()
    found = scripts.evaluate(
        f"([text, extracted]) => {{ {source}; return findPlace(text, extracted) }}",
        [text, extracted],
    )
    place = find_place(text, extracted)
    assert found == (None if place is None else [place.start, place.end])
    scripts.close()


def test_an_image_is_shown_and_a_sound_and_a_video_are_linked(tmp_path, open_page):
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
    page = open_page(file, "#sample=t/1")
    view = page.locator("dialog.drawer")
    view.wait_for()
    image = view.locator("figure img")
    assert image.evaluate("one => one.decode().then(() => one.naturalWidth)") == 128
    links = [one.get_attribute("href") or "" for one in view.locator("figure a").all()]
    assert [Path(link).suffix for link in links] == [".png", ".wav", ".mp4"]
    assert all((tmp_path / link).is_file() for link in links)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("stories")
    for story in STORIES:
        save_page(make_story_page(story), top / f"{story}.html")
    return top


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("story", STORIES)
def test_axe_finds_nothing_and_nothing_of_a_model_runs(story, theme, folder, open_page):
    from axe_playwright_python.sync_playwright import Axe

    page = open_page(folder / f"{story}.html", ready="main", color_scheme=theme)
    for summary in page.locator("main summary").all():
        summary.click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("window.hit") is None


@pytest.mark.parametrize("story", STORIES)
def test_a_narrow_screen_shows_it_without_moving_sideways(story, folder, open_page):
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


def test_the_map_of_nights_begins_at_the_newest_on_a_narrow_screen(tmp_path, open_page):
    file = tmp_path / "view.html"
    save_page(make_page(make_documents("view", STORY_PAGES_HOSTILE)["FAIL"]), file)
    page = open_page(file, ready="main", width=NARROW)
    frame = page.locator(".scroll:has(table.marks)")
    assert frame.evaluate("one => one.scrollWidth > one.clientWidth && one.scrollLeft > 0")
    box = page.locator("table.marks thead th").last.bounding_box()
    assert box["x"] + box["width"] <= NARROW
    name = page.locator("table.marks tbody th").first.bounding_box()
    assert name["x"] >= 0


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_axe_finds_nothing(kind, theme, runs, open_page):
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
def server(runs):
    (runs.run.parent / "foreign").mkdir()
    (runs.run.parent / "foreign/page.html").write_text(FOREIGN)
    with serve_folder(runs.run.parent, render_page) as found:
        yield found


def test_the_index_leads_to_a_run_and_to_two_runs_without_a_complaint(server, browser):
    said = []
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


def test_a_page_of_another_user_reads_no_other_page(server, browser):
    page = browser.new_page()
    page.goto(f"{server.url}foreign/page.html")
    page.wait_for_function("document.title != 'x'")
    assert page.title() == "kept, storage none"
    page.goto("about:blank")
    page.close()


MARKUP = "</script></title><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>\"'`"
HOSTILE = {
    "markup": MARKUP,
    "attribute": '" onmouseover="window.hit = 3" x=\'',
    "template": "{{ 7 * 7 }}{% raw %}</pre><!--",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07",
    "direction": "user\u202egnp.exe\u2066 \u200f",
    "nul": "a\x00b\x08c\u2028d",
    "surrogate": "half \ud83d of a pair \udc00",
}
LONG = "0123456789" * 1_000_000


def make_task(folder, texts):
    """Write a run folder with a sample per text, each in every place, and return its task."""
    name = "task <b>"
    write = [text.encode(errors="backslashreplace").decode() for text in texts]
    samples_file(folder, name).parent.mkdir(parents=True)
    (folder / "scores").mkdir()
    once = Attempt(start_s=1.0, end_s=2.0, failure=None, status=None, request_id="")
    lost = Attempt(start_s=0.5, end_s=1.0, failure=FailureKind.TIMEOUT, status=None, request_id="")
    with Journal(samples_file(folder, name)) as journal, write_scores(folder, name) as scores:
        for i, text in enumerate(write):
            response = Response(
                text=f"{text} is {text}, 42",
                finish_reason=text[:100],
                reasoning=text,
                refusal=text,
                tool_calls=(ToolCall(text, text),),
                attempts=(lost, once),
            )
            journal.append(Record(id=f"{i} {text[:100]}", response=response))
            scores.write(
                ScoreRecord(
                    id=f"{i} {text[:100]}",
                    outcome=Outcome.WRONG,
                    value=0.0,
                    answer=text if i % 2 else "42",
                    target=text,
                    parts={text[:100]: 0.0},
                    mode=text[:100],
                )
            )
        failure = Failure(kind=FailureKind.HTTP_ERROR, message=write[0], attempts=(lost, lost))
        journal.append(Record(id="failed", failure=failure))
    prompts = [
        Sample(
            id=f"{i} {text[:100]}",
            prompt=(Message(role=text[:100], content=text), Message(role="user", content="?")),
            target="",
        )
        for i, text in enumerate(write)
    ]
    write_prompts(folder, name, prompts, str, texts=True)
    fields = {
        f"{write[0]}\x1b[1m\u202e": {
            f"{i} {text[:100]}": text[:100] for i, text in enumerate(write)
        }
    }
    return PageTask(
        name=name,
        arms={"": SampleSource(run=folder, task=name)},
        metric=Metric(),
        know=lambda _: KnownTask(fields=fields, body={"model": write[0], "max_tokens": 1}),
        url=f"http://host/{write[0]}",
        key="MY_KEY",
    )


def make_content(text, task=None):
    """Return a page with a text in every place."""
    fact = Fact(label=text, text=text, href=f"#{text}")
    cell = DataCell(text=text, href=f"#{text}", place=0.5, interval=(0.2, 0.7), mark=0.5)
    samples = None if task is None else show_samples(SampleData([task]))
    return PageContent(
        kind=text,
        title=text,
        heading=text,
        state="fail",
        badge=text,
        headline=text,
        rows=[fact],
        sections=[
            Facts(title=text, rows=[fact], closed=True),
            DataTable(
                title=text,
                columns=[DataColumn(name=text, note=text)],
                rows=[[cell]],
                caption=text,
            ),
            PictureSection(
                title=text,
                pictures=[
                    Picture(
                        title=text,
                        description=text,
                        ruler=make_ruler([RulerRow(label=text, text=text, value=0.5)]),
                    )
                ],
            ),
            TextLines(title=text, lines=[text]),
            TextLines(title=text, lines=[text], preformatted=True),
            *([] if samples is None else [samples]),
        ],
        foot=text,
    )
