"""Describe a data set: where copies of it are, and where to get one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_eval.datasets.hub import HubSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set, with the folders below a root that may hold a copy, in search order.

    A fetch tries the `urls` of the files first, then the hub, and writes to the last folder.
    `sha256` has the known checksums, which belong to `revision`.
    """

    name: str
    folders: tuple[str, ...]
    homepage: str
    licence: str
    rows: str
    revision: str = "main"
    urls: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    hub: HubSource | None = None
    note: str = ""
