"""Turn the content of a page into one HTML file. The only place that makes markup."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from serve_eval.report.drawing_process import lacks_library
from serve_eval.report.page.columns import pack, shorten
from serve_eval.report.page.content import PageContent, PictureSection, ScriptData, Section
from serve_eval.report.pictures.picture import draw_all, name_extra
from serve_eval.report.text import reveal
from serve_eval.storage.json_files import write_private

CORE_SCRIPTS = ("theme.js", "tables.js")
"""Scripts of every page."""
MOST = 50_000
"""Characters of a text outside of the samples that are shown."""
_ASSETS = files("serve_eval.report.page") / "assets"


def save_page(
    content: PageContent, path: Path, notify: Callable[[str], object] = lambda line: None
) -> None:
    """Write a page that only the user can read.

    `notify` gets a warning if its pictures could not be drawn. Raises RunFolderError if the page
    cannot be written, and JournalError for a full disk.
    """
    write_private(path, render_page(content, notify).encode())


def _put_notice_first(content: PageContent) -> PageContent:
    """Return the content with its notice in the title and as the first line."""
    if not content.notice:
        return content
    word, _, rest = content.notice.partition(": ")
    return replace(
        content,
        title=f"{word}: {content.title}",
        state="warn",
        badge=word,
        headline=f"{rest}. {content.badge}  {content.headline.strip()}",
    )


def render_page(content: PageContent, notify: Callable[[str], object] = lambda line: None) -> str:
    """Return the HTML of a page, with its pictures drawn. `notify` is that of `save_page`."""
    content = _put_notice_first(content)
    content = replace(content, sections=_draw_sections(content.sections, notify))
    style = _read("page.css")
    script = "\n".join(_read(f"scripts/{name}") for name in _list_scripts(content))
    policy = {
        "default-src": "'none'",
        "script-src": _checksum(script),
        "style-src": _checksum(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return _template().render(
        content=content,
        policy="; ".join(f"{key} {value}" for key, value in policy.items()),
        style=Markup(style),  # noqa: S704
        script=Markup(script),  # noqa: S704
    )


def _draw_sections(
    sections: Sequence[Section], notify: Callable[[str], object]
) -> Sequence[Section]:
    """Return the sections with drawings, all made by one process, and the extra named once."""
    shown = [one for part in sections if isinstance(part, PictureSection) for one in part.pictures]
    drawn = iter(draw_all(shown, notify))
    wanting = lacks_library() and any(one.spec for one in shown)
    found: list[Section] = []
    for section in sections:
        if not isinstance(section, PictureSection):
            found.append(section)
            continue
        pictures = [next(drawn) for _ in section.pictures]
        kept = [one for one in pictures if one.svg or one.ruler]
        note = section.note or (name_extra() if wanting else "")
        if kept or note:
            found.append(replace(section, pictures=kept, note=note))
            wanting = False
    return found


def _list_scripts(content: PageContent) -> Iterator[str]:
    wanted = [one for s in content.sections if isinstance(s, ScriptData) for one in s.scripts]
    return iter(dict.fromkeys((*CORE_SCRIPTS, *wanted)))


def _checksum(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_reveal,
    )
    environment.filters["pack"] = lambda value: Markup(pack(value))  # noqa: S704
    return environment.get_template("page.html.jinja")


def _reveal(value: object) -> object:
    """Return a text with its control characters visible; markup of our own stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return reveal(shorten(value, MOST).encode(errors="backslashreplace").decode())
    return value
