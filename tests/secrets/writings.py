"""Encodings in which a server may write a secret, and a search for them.

The search does not use the product's code.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import html
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator

KEY = "sk-live-Q7pRz2VwX9mT4kLd"
ODD = "pa\"ss\\w/or<d>&'9Q7pRz2V"
Writing = Callable[[str], str]


def behind(before: str) -> Writing:
    """Return an encoder to Base64 for a secret with a text before it."""
    return lambda key: base64.b64encode(f"{before}{key}".encode()).decode()


WHOLE: dict[str, Writing] = {
    "plain": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key))[1:-1],
    "JSON with slashes escaped": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "every character as \\u00XX": lambda key: "".join(f"\\u{ord(one):04x}" for one in key),
    "every character as \\xXX": lambda key: "".join(f"\\x{ord(one):02X}" for one in key),
    "repr": repr,
    "HTML": html.escape,
    "HTML by number": lambda key: "".join(f"&#{ord(one)};" for one in key),
    "HTML by hexadecimal number": lambda key: "".join(f"&#x{ord(one):X};" for one in key),
    "URL": lambda key: urllib.parse.quote(key, safe=""),
    "every character in a URL": lambda key: "".join(f"%{ord(one):02x}" for one in key),
    "URL twice": lambda key: urllib.parse.quote(urllib.parse.quote(key, safe=""), safe=""),
    "some characters in a URL": lambda key: f"%{ord(key[0]):02X}{key[1:-1]}%{ord(key[-1]):02X}",
    "hexadecimal": lambda key: key.encode().hex(),
    "HEXADECIMAL": lambda key: key.encode().hex().upper(),
    **{
        f"base64 behind {before!r}": behind(before)
        for before in ("", "a", "ab", "Bearer ", "user:")
    },
    "base64 in a URL": lambda key: urllib.parse.quote(
        base64.b64encode(f"?>{key}~~~".encode()).decode(), safe=""
    ),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"??{key}~~".encode()).decode(),
    "base64 without its end": lambda key: (
        base64.b64encode(f"{key}: x".encode()).decode().rstrip("=")
    ),
}
CUT: dict[str, Writing] = {
    "cut behind 22 of 24": lambda key: key[:-2],
    "cut before 22 of 24": lambda key: key[2:],
    "half of it": lambda key: key[: -(-len(key) // 2)],
    "the middle of it": lambda key: key[5 : 5 + -(-len(key) // 2)],
    "cut, in upper case, in a URL": lambda key: urllib.parse.quote(key.upper()[3:], safe=""),
}
WRITINGS = WHOLE | CUT
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{12,}")


def left(text: str, *secrets: str) -> int:
    """Return the length of the longest piece of a secret in a text.

    Letter case is ignored, and the text is decoded in every known way.
    """
    texts, newest = {text}, {text}
    for _ in range(3):
        newest = {found for one in newest for found in _decoded(one)} - texts
        texts |= newest
    lows = {one.lower() for one in texts}
    longest = 0
    for secret in map(str.lower, secrets):
        for start in range(len(secret)):
            while start + longest < len(secret) and any(
                secret[start : start + longest + 1] in one for one in lows
            ):
                longest += 1
    return longest


def left_in(data: bytes, *secrets: str) -> int:
    """Return the length of the longest piece of a secret in the bytes of a file."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return left(data.decode("utf-8", "replace"), *secrets)


def _decoded(text: str) -> Iterator[str]:
    if "%" in text:
        yield urllib.parse.unquote(text)
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        yield re.sub(r"\\(?:u00|x)([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
        yield re.sub(r"""\\(["'/\\])""", r"\1", text)
    for found in re.findall(r"(?:[0-9a-fA-F]{2}){12,}", text):
        yield bytes.fromhex(found).decode("latin-1")
    for run in _BASE64.findall(text):
        for start in range(4):
            piece = run[start:].translate({ord("-"): "+", ord("_"): "/"})
            try:
                yield base64.b64decode(piece[: len(piece) // 4 * 4]).decode("latin-1")
            except binascii.Error:  # pragma: no cover
                continue
