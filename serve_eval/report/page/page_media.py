"""Collect the media of prompts for a page: small images as data, the others as links."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from os.path import relpath
from pathlib import Path

from serve_eval.schema import MediaFile, MediaPart, Prompt
from serve_eval.schema.media import media_kind
from serve_eval.schema.media_types import IMAGES, recognise_media
from serve_eval.storage.records.prompts import find_media, list_media, read_media

MOST_IMAGES = 2_000_000
"""Bytes of the images that a page holds; it links the others."""


class PageMedia:
    """The media of the rows of a page in `folder` (None: the page links no files).

    Images are held once for all rows, by their checksum.
    """

    def __init__(self, folder: Path | None, most_images: int = MOST_IMAGES) -> None:
        self._folder, self._left = folder, most_images
        self._images: dict[str, str] = {}
        self._rows: dict[int, list[list[str]]] = {}

    def add(self, place: int, prompt: Prompt | None, runs: Iterable[Path]) -> None:
        """Add the media of a row, which one of the run folders keeps, or none."""
        runs = list(runs)
        found = [self._show(part, runs) for part in list_media(prompt)]
        if found:
            self._rows[place] = found

    def to_json(self) -> dict[str, object]:
        """Return the data for a script: [what it is, key of its image, link] of each medium."""
        return {"rows": self._rows, "images": self._images}

    def _show(self, part: MediaPart, runs: list[Path]) -> list[str]:
        kind = media_kind(part)
        if not isinstance(part, MediaFile):
            return [f"{kind}, elsewhere", "", ""]
        what = f"{kind}: {part.media_type}, {part.size:,} bytes, sha256 {part.sha256[:12]}"
        path = next((path for run in runs if (path := find_media(run, part)) is not None), None)
        if path is None:
            return [f"{what}, not kept in the run folder", "", ""]
        key = self._hold(part, path) if part.media_type in IMAGES else ""
        return [what, key, self._link(path)]

    def _hold(self, part: MediaFile, path: Path) -> str:
        """Return the key of an image that the page holds, or an empty text if it has no room."""
        if part.sha256 not in self._images:
            content = read_media(path)
            if content is None or len(content) > self._left:
                return ""
            if recognise_media(content) != part.media_type:
                return ""
            self._left -= len(content)
            data = base64.b64encode(content).decode()
            self._images[part.sha256] = f"data:{part.media_type};base64,{data}"
        return part.sha256

    def _link(self, path: Path) -> str:
        """Return the place of a file from the page, or an empty text if it is not below it."""
        link = "" if self._folder is None else relpath(path, self._folder)
        return "" if link.startswith("..") else link
