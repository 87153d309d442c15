"""The servers behind a router that took part in an answer."""

from __future__ import annotations

from msgspec import Struct


class AnsweringServers(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The names of the context and the generation server, as the router sent them.

    None: the router did not name it.
    """

    context: str | None = None
    generation: str | None = None
