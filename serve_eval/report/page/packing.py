"""Pack the data of a page: compressed JSON as base64, which a script reads."""

from __future__ import annotations

import base64
import gzip
import json

import msgspec

LEVEL = 4


def pack(value: object) -> str:
    """Return a value for the page; a text was packed already."""
    return value if isinstance(value, str) else encode(compress(to_json(value)))


def to_json(value: object) -> bytes:
    """Return JSON. Halves of surrogate pairs are escaped, which JavaScript reads."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def compress(data: bytes) -> bytes:
    """Return compressed data, the same for the same data."""
    return gzip.compress(data, LEVEL, mtime=0)


def encode(data: bytes) -> str:
    """Return compressed data as text that no HTML ends."""
    return base64.b64encode(data).decode()
