"""Read which servers took part in an answer from the header fields of its router. Pure.

Any router in front of context and generation servers can send them, with answers and with errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from serve_eval.schema import AnsweringServers

CONTEXT_SERVER, GENERATION_SERVER = "X-Context-Server", "X-Generation-Server"
CONTEXT_FIELD, GENERATION_FIELD = (
    name.lower().encode() for name in (CONTEXT_SERVER, GENERATION_SERVER)
)
SERVER_FIELDS = frozenset((CONTEXT_FIELD, GENERATION_FIELD))
"""The names of both fields, in lower case. A transport reads a repeated field as an empty one."""
_NAME = re.compile(r"[ -+\--~]{1,200}")
"""Printable ASCII without a comma: a proxy may join the values of a repeated field by commas."""


def read_servers(head: Mapping[bytes, str]) -> AnsweringServers | None:
    """Return the servers that a head names, or None if it names neither."""
    context, generation = _name(head.get(CONTEXT_FIELD)), _name(head.get(GENERATION_FIELD))
    if context is None and generation is None:
        return None
    return AnsweringServers(context=context, generation=generation)


def _name(value: str | None) -> str | None:
    name = (value or "").strip(" \t")
    return name if _NAME.fullmatch(name) else None
