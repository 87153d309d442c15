"""Read which servers `serve-eval serve -o` started next to the folder of a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.storage.story_files import SERVE


def name_served(folder: Path) -> dict[str, str]:
    """Return the names of the plans of these servers, by `shorten_url` of their address."""
    return {place: str(told["name"]) for place, told in _list_served(folder) if "name" in told}


def find_served_plans(folder: Path) -> dict[str, str]:
    """Return the plans of these servers, as the user named them, by `shorten_url`."""
    return {place: str(told["plan"]) for place, told in _list_served(folder) if told.get("plan")}


def _list_served(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for file in sorted(folder.absolute().parent.glob(f"*/{SERVE.result}")):
        with suppress(OSError, msgspec.MsgspecError):
            told = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
            yield shorten_url(str(told.get("base_url", ""))), told


def shorten_url(url: str) -> str:
    """Return an address without what the ways to write it differ by."""
    return url.removeprefix("http://").rstrip("/").removesuffix("/v1")
