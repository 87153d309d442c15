"""A page shows the images of a prompt and links its other media, under its own policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.page.writer import render_page
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import Message, Metric, Response, Sample, TextPart
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.records.prompts import keep_media, write_prompts
from tests.page.conftest import Open
from tests.page.hostile import make_content

if TYPE_CHECKING:
    from playwright.sync_api import Page


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
