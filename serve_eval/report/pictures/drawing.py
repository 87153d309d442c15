"""Draw all pictures of a page in one process of their own, by the package vl-convert-python.

V8, which draws them, ends its process where it cannot reserve 64 GiB of addresses, as under
`ulimit -v`. The process that holds the verdict never loads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from importlib.metadata import PackageNotFoundError, requires
from itertools import zip_longest

from serve_eval.processes.child_process import LimitedEnd
from serve_eval.report.drawing_process import can_draw, draw_lines
from serve_eval.report.drawing_process import lacks_library as lacks_library
from serve_eval.report.pictures.picture import CONFIG, Picture

_ID = re.compile(r'\bid="([^"]+)"')
_OPENING = re.compile(r"<svg\b[^>]*>")
_PARTS = re.compile(r' (?:role="graphics-[a-z]+"|aria-roledescription="[^"]*")')
"""Roles of the parts, which have no texts: the whole has a title and a description."""
_SIZE = re.compile(r'\b(?:viewBox|width|height)="[^"]+"')


def name_extra() -> str:
    """Return the line that says how to get pictures in place of rulers."""
    try:
        lines = requires("serve-eval") or []
    except PackageNotFoundError:
        lines = []
    wanted = (one.partition(";") for one in lines if "vl-convert" in one)
    name = next((need.strip() for need, _, extra in wanted if "page" in extra), "vl-convert-python")
    return f"The extra page draws more pictures: pip install '{name}'"


def draw_all(
    pictures: Sequence[Picture], notify: Callable[[str], object] = lambda line: None
) -> list[Picture]:
    """Return the pictures with their drawings, or as they were where drawing failed.

    `notify` gets one warning if the process was lost. Nothing is drawn without the package, or if
    pictures are unwanted. The process may have been started before: see `drawing_ahead`.
    """
    waiting = {i: one.spec for i, one in enumerate(pictures) if one.spec and one.svg is None}
    drawn = list(pictures)
    if not waiting or not can_draw():
        return drawn
    whole = [json.dumps({**spec, "config": CONFIG}) for spec in waiting.values()]
    ended = draw_lines("".join(f"{one}\n" for one in whole).encode(), len(whole))
    found = _read(ended.written)
    for i, text, svg in zip_longest(waiting, whole, found[: len(whole)]):
        if svg is not None:
            one = pictures[i]
            name = f"{one.title}\0{one.description}\0{text}".encode(errors="replace")
            drawn[i] = replace(one, svg=_finish(svg, hashlib.sha256(name).hexdigest()[:10], one))
    lost = sum(drawn[i].svg is None for i in waiting)
    if lost:
        notify(_warn(lost, len(waiting), ended))
    return drawn


def _read(written: bytes) -> list[str | None]:
    """Return the drawings; a last line that was cut off is left out."""
    found: list[str | None] = []
    for line in written.splitlines():
        try:
            svg = json.loads(line)
        except ValueError:
            break
        found.append(svg if isinstance(svg, str) and _OPENING.search(svg) else None)
    return found


def _warn(lost: int, asked: int, ended: LimitedEnd) -> str:
    said = f"warning: {lost} of {asked} pictures were not drawn, the page shows rulers instead"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if not ended.why:
        return said
    if limit == resource.RLIM_INFINITY:
        return f"{said}: the process that draws ended early, {ended.why}"
    return (
        f"{said}: the process that draws ended early, {ended.why}. It reserves 65 GiB of addresses,"
        f" and ulimit -v allows {limit / 2**30:.0f} GiB."
    )


def _finish(svg: str, name: str, picture: Picture) -> str:
    return _describe(_rename(svg, name), name, picture.title, picture.description)


def _rename(svg: str, name: str) -> str:
    """Return an SVG whose ids differ from those of every other picture of a page."""
    ids = {found: f"p{name}-{i}" for i, found in enumerate(dict.fromkeys(_ID.findall(svg)))}
    for old, new in ids.items():
        svg = svg.replace(f'id="{old}"', f'id="{new}"').replace(f"url(#{old})", f"url(#{new})")
    return svg


def _describe(svg: str, name: str, title: str, description: str) -> str:
    """Return an SVG with an opening tag of its own, and texts for screen readers."""
    opening = _OPENING.search(svg)
    assert opening is not None
    size = " ".join(_SIZE.findall(opening[0]))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" overflow="visible"'
        f' aria-labelledby="p{name}-title p{name}-text">'
        f'<title id="p{name}-title">{escape(title)}</title>'
        f'<desc id="p{name}-text">{escape(description)}</desc>'
    )
    return head + _PARTS.sub("", svg[opening.end() :])
