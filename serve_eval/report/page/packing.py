"""Pack the data of a page: compressed JSON as base64, which a script reads."""

from __future__ import annotations

import base64
import gzip
import json

import msgspec

LEVEL = 6


def pack(value: object) -> str:
    """Return a value for the page; a text was packed already."""
    return value if isinstance(value, str) else encode(compress(value))


def compress(value: object) -> bytes:
    """Return compressed JSON. Halves of surrogate pairs are escaped, which JavaScript reads."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = json.dumps(value).encode()
    return gzip.compress(data, LEVEL, mtime=0)


def encode(data: bytes) -> str:
    """Return compressed data as text that no HTML ends."""
    return base64.b64encode(data).decode()
