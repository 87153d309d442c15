"""Describe a data set: where copies of it lie, and where to get one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_eval.datasets.hub import HubSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A data set: the folders below a root under which copies are kept, in the order of search, and
    where to get one.

    Of several ways the `urls` of its files come first, then the hub; what is fetched goes into the
    last folder. `sha256` has the checksums of files that are known, and `revision` says of which
    state.
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
