"""Turn the content of a page into one HTML file. The only place that makes markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound
from markupsafe import Markup

from serve_eval.evaluation.storage.private_files import write_private
from serve_eval.report.page.content import PageContent, ScriptData
from serve_eval.report.text import reveal

CORE_SCRIPTS = ("theme.js", "tables.js")
"""Scripts of every page."""
_ASSETS = files("serve_eval.report.page") / "assets"


def save_page(content: PageContent, path: Path) -> None:
    """Write a page that only the user can read.

    Raises RunFolderError if it cannot be written, and JournalError for a full disk.
    """
    write_private(path, render_page(content).encode())


def render_page(content: PageContent) -> str:
    """Return the HTML of a page."""
    style = _read("page.css")
    script = "\n".join(_read(f"scripts/{name}") for name in _list_scripts(content))
    policy = {
        "default-src": "'none'",
        "script-src": _checksum(script),
        "style-src": f"{_checksum(style)} 'unsafe-inline'",
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


def _list_scripts(content: PageContent) -> Iterator[str]:
    wanted = [one for s in content.sections if isinstance(s, ScriptData) for one in s.scripts]
    return iter(dict.fromkeys((*CORE_SCRIPTS, *wanted)))


def pack(value: object) -> str:
    """Return a value as base64 of compressed JSON, which a script of the page reads."""
    return base64.b64encode(gzip.compress(msgspec.json.encode(value), 6, mtime=0)).decode()


def _checksum(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


class _Assets(BaseLoader):
    """The templates of the package."""

    def get_source(self, environment: Environment, template: str):  # type: ignore[no-untyped-def]
        try:
            return _read(template), None, lambda: True
        except OSError as error:
            raise TemplateNotFound(template) from error


@cache
def _template() -> Template:
    environment = Environment(
        loader=_Assets(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_reveal,
    )
    environment.filters["pack"] = pack
    return environment.get_template("page.html.jinja")


def _reveal(value: object) -> object:
    """Return a text with its control characters visible; markup of our own stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return reveal(value.encode(errors="backslashreplace").decode())
    return value
