"""One file that needs nothing else, in which foreign texts are texts in every place."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from serve_eval.report.page.content import PageContent, ScriptData
from serve_eval.report.page.writer import render_page
from serve_eval.report.text import reveal
from tests.page.hostile import HOSTILE, make_content

ASSETS = files("serve_eval.report.page") / "assets"


class _Outline(HTMLParser):
    """The elements of a page with their attributes' names, and its texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(f"{tag} {[name for name, _ in attrs]}")
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _outline(content: PageContent) -> _Outline:
    found = _Outline()
    found.feed(render_page(content))
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_is_the_same_elements_whatever_it_says(name: str) -> None:
    plain, hostile = _outline(make_content("plain")), _outline(make_content(HOSTILE[name]))
    assert hostile.elements == plain.elements
    shown = reveal(HOSTILE[name].encode(errors="backslashreplace").decode())
    whole = [text.replace(shown, "plain") for text in hostile.texts]
    assert whole == plain.texts
    assert [value.replace(shown, "plain") for value in hostile.values] == plain.values
    assert plain.texts.count("plain") > 15
    assert plain.values.count("plain") > 2


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page = render_page(make_content("x"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for text, rule in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.findall(r"\bstyle=|\bon[a-z]+=\"", page)


def _list_scripts() -> list[Path]:
    return sorted(Path(str(ASSETS)).glob("scripts/*.js"))


def test_no_script_makes_markup_of_texts_or_reaches_the_network() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        r"|setHTML|createContextualFragment|DOMParser|srcdoc|fetch\(|XMLHttpRequest|WebSocket"
        r"|EventSource|sendBeacon|import\(|https?://"
    )
    assert len(_list_scripts()) > 8
    for script in _list_scripts():
        assert forbidden.findall(script.read_text()) == [], script.name


def test_no_template_marks_a_text_as_markup_but_a_drawing() -> None:
    templates = list(Path(str(ASSETS)).glob("*.jinja"))
    assert len(templates) == 2
    texts = "".join(one.read_text() for one in templates)
    assert re.findall(r"\{\{[^}]*safe[^}]*\}\}", texts) == ["{{ picture.svg | safe }}"]
    assert "autoescape" not in texts


def test_a_page_holds_only_the_scripts_that_its_sections_name() -> None:
    content = make_content("x")
    assert "class Samples" not in render_page(content)
    section = ScriptData(
        title="t", name="samples", value={"x": "</script>"}, scripts=["samples.js"]
    )
    page = render_page(replace(content, sections=[section]))
    assert "class Samples" in page
    assert page.count("</script>") == 2
