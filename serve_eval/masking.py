"""Remove secrets from text that other software wrote. Pure.

A server may repeat a key that it received: in an answer, in an error or in its log. Everything
received passes through a `Masking` before it is cut, kept or shown. It finds a secret in any letter
case; escaped as in JSON, HTML or URLs, also twice; in hexadecimal; and in base64, at any position
of the encoded data. Of a secret of 16 characters or more it also finds a piece: half of the secret,
or five eighths of its encoding. It does not find a secret changed in other ways: reversed,
encrypted, or with something between its characters.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

HIDDEN = "***"
"""Replaces a secret."""
LEAST = 8
"""Minimum characters of a secret to search for in answers: a shorter one may be a plain word."""
LEAST_CUT = 16
"""Minimum length, in characters, of a secret whose pieces are searched for."""
LEVELS = 3
"""Maximum number of times that a text may have been escaped."""
_ESCAPE = re.compile(
    r"""%([0-9a-f]{2})|\\(?:u00|x)([0-9a-f]{2})|&\#x0*([0-9a-f]{2});|&\#0*([0-9]{2,3});"""
    r"""|&(quot|amp|lt|gt|apos);|\\(["'\\/])""",
    re.IGNORECASE | re.VERBOSE,
)
_ENTITIES = {"quot": '"', "amp": "&", "lt": "<", "gt": ">", "apos": "'"}
_PERCENT = re.compile("%[0-9a-f]{2}")
_ENTITY = re.compile(r"&(?:#|quot;|amp;|lt;|gt;|apos;)")
_BACKSLASH = re.compile(r"\\x[0-9a-f]{2}")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
_FREQUENT = "etaoinsrhdlucmfpgwybvk-_0123456789jxqz"
"""Characters of answers in JSON, the most frequent first; digits come with ids and times."""
_LOWER = {ord(upper): ord(upper) + 32 for upper in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_Value = TypeVar("_Value")


class _Form(NamedTuple):
    """A lower-case spelling of a secret. A piece of `least` characters holds one of `windows`."""

    text: str
    least: int
    windows: tuple[tuple[int, str], ...]  # offset and text


class Masking:
    """Replace `secrets` with ***. Secrets shorter than LEAST are replaced only in messages."""

    def __init__(self, secrets: Iterable[str]) -> None:
        known = sorted({secret for secret in secrets if secret}, key=len, reverse=True)
        long = [secret for secret in known if len(secret) >= LEAST]
        self._short = tuple(secret for secret in known if len(secret) < LEAST)
        self._forms = tuple(
            {form.text: form for secret in long for form in _forms(secret)}.values()
        )
        needles = dict.fromkeys(window for form in self._forms for _, window in form.windows)
        raw = (needle.encode().decode("latin-1") for needle in needles)
        self._needles, self._raw_needles = _with_signs(needles), _with_signs(raw)
        self._escapable = any(not _PLAIN.fullmatch(secret) for secret in long)

    def __bool__(self) -> bool:
        return bool(self._forms or self._short)

    def text(self, text: str) -> str:
        """Return a text without the secrets."""
        if not self._may_hold_secret(text):
            return text
        pieces, end = [], 0
        for start, stop in self._spans(text):
            pieces += [text[end:start], HIDDEN]
            end = stop
        return "".join([*pieces, text[end:]])

    def blank(self, text: str) -> str:
        """Return a text of the same length, with a star for each character of a secret."""
        if not self._may_hold_secret(text):
            return text
        pieces, end = [], 0
        for start, stop in self._spans(text):
            pieces += [text[end:start], "*" * (stop - start)]
            end = stop
        return "".join([*pieces, text[end:]])

    def message(self, text: str) -> str:
        """Return a message, which is not an answer, without the secrets, short ones included."""
        text = self.text(text)
        for secret in self._short:
            text = text.replace(secret, HIDDEN)
        return text

    def body(self, body: bytes) -> bytes:
        """Return a body without the secrets.

        Masks the texts of a JSON body, the JSON in the lines of an event stream, or else the raw
        text. A body without a secret stays the same, byte for byte.
        """
        if not self._forms:
            return body
        low = body.lower().decode("latin-1")  # a search in bytes takes twice as long
        for sign, needle in self._raw_needles:  # any() takes twice as long
            if sign in low and needle in low:
                break
        else:
            if not self._may_hold_escaped(low):
                return body
        content = self._json(body)
        if content is None:
            content = b"\n".join(self._line(line) for line in body.split(b"\n"))
        told = content.decode("utf-8", "surrogateescape")
        masked = self.text(told)
        return content if masked == told else masked.encode("utf-8", "surrogateescape")

    def value(self, value: _Value) -> _Value:
        """Return built-in values and msgspec structs with the secrets removed from every text.

        The texts in a sequence of texts are treated as pieces of one text, so that a secret spread
        over them is found.
        """
        masked: Any = value
        if value is None:
            return value
        if isinstance(value, str):
            masked = self.text(value)
        elif isinstance(value, Mapping):
            masked = {self.value(key): self.value(inner) for key, inner in value.items()}
        elif isinstance(value, list | tuple):
            whole = value and all(isinstance(inner, str) for inner in value)
            inside = self.pieces(value) if whole else [self.value(inner) for inner in value]
            masked = inside if isinstance(value, list) else tuple(inside)
        elif isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {name: new for name, old in fields.items() if (new := self.value(old)) != old}
            masked = msgspec.structs.replace(value, **changed) if changed else value
        return masked  # type: ignore[no-any-return]

    def pieces(self, pieces: Sequence[str]) -> list[str]:
        """Return as many pieces of a text, with *** where a secret in or across them begins."""
        whole = "".join(pieces)
        if self.text(whole) == whole:
            return list(pieces)
        spans, masked, begin = self._spans(whole), [], 0
        for piece in pieces:
            end, kept, at = begin + len(piece), [], begin
            for start, stop in spans:
                if start < end and stop > begin:
                    kept.append(whole[at : max(at, start)])
                    kept += [HIDDEN] if begin <= start else []
                    at = max(at, min(stop, end))
            masked.append("".join([*kept, whole[at:end]]))
            begin = end
        return [self.text(piece) for piece in masked]

    def holds(self, body: bytes) -> bool:
        """Return True if bytes hold a secret that would be removed."""
        return self.body(body) != body

    def _may_hold_secret(self, text: str) -> bool:
        """Return whether a text may hold a secret: a fast check for the texts that do not."""
        if not self._forms:
            return False
        low = _lower(text)
        for sign, needle in self._needles:
            if sign in low and needle in low:
                return True
        return self._may_hold_escaped(low)

    def _may_hold_escaped(self, low: str) -> bool:
        """Return whether a text in lower case may hold a secret with escaped characters."""
        return (
            ("%" in low and _PERCENT.search(low) is not None)
            or ("&" in low and _ENTITY.search(low) is not None)
            or ("\\" in low and (self._escapable or _holds_backslash(low)))
        )

    def _json(self, body: bytes) -> bytes | None:
        """Return a JSON body without the secrets, or None if it is not JSON."""
        try:
            value = msgspec.json.decode(body)
            masked = self.value(value)
            return body if masked == value else msgspec.json.encode(masked)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _line(self, line: bytes) -> bytes:
        """Return a line of an event stream without the secrets, and any other line unchanged."""
        head, colon, rest = line.partition(b":")
        if head != b"data" or (masked := self._json(rest)) is None:
            return line
        return line if masked == rest else head + colon + b" " + masked

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of the secrets in a text, sorted and disjoint."""
        found: list[tuple[int, int]] = []
        for told, places in _levels(text):
            low = _lower(told)
            for form in self._forms:
                for start, stop in _runs(low, form):
                    found.append((start, stop) if places is None else (places[start], places[stop]))
        apart: list[tuple[int, int]] = []
        for start, stop in sorted(found):
            if apart and start <= apart[-1][1]:
                apart[-1] = apart[-1][0], max(stop, apart[-1][1])
            else:
                apart.append((start, stop))
        return apart


def _with_signs(needles: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return needles with their rarest characters: to look for one takes a tenth of the time."""
    return tuple((max(needle, key=_rarity), needle) for needle in needles)


def _rarity(character: str) -> int:
    return _FREQUENT.find(character) % (len(_FREQUENT) + 1)  # the last if it is not in the list


def _holds_backslash(low: str) -> bool:
    """Return True for a backslash that escapes a character by its number, as in JSON or Python."""
    return "\\u00" in low or ("\\x" in low and _BACKSLASH.search(low) is not None)


def _forms(secret: str) -> Iterator[_Form]:
    """Yield the ways to write a secret: plain, hexadecimal and base64.

    Base64 differs for each of the three positions in a group of bytes at which the secret can
    begin; the characters that depend on its neighbours are left out.
    """
    raw = secret.encode()
    yield _cut_anywhere(secret)
    yield _around_the_middle(raw.hex())
    for before in range(3):
        sextets = len(raw) + before
        whole = base64.b64encode(b"\0" * before + raw + b"\0" * (-sextets % 3))
        first, last = -(-before * 8 // 6), (sextets * 8) // 6
        core = whole[first:last].decode()
        yield _around_the_middle(core)
        if "+" in core or "/" in core:
            yield _around_the_middle(core.replace("+", "-").replace("/", "_"))


def _cut_anywhere(text: str) -> _Form:
    low = _lower(text)
    if len(low) < LEAST_CUT:
        return _Form(low, len(low), ((0, low),))
    least = -(-len(low) // 2)
    width = least // 2
    places = range(0, len(low) - width + 1, least - width + 1)
    return _Form(low, least, tuple((place, low[place : place + width]) for place in places))


def _around_the_middle(text: str) -> _Form:
    """Return a form with one window, in every piece of five eighths: half the work per answer."""
    low = _lower(text)
    least = -(-5 * len(low) // 8) if len(low) >= LEAST_CUT else len(low)
    window = (0, low) if least == len(low) else (len(low) - least, low[len(low) - least : least])
    return _Form(low, least, (window,))


def _lower(text: str) -> str:
    """Return a text in lower case with the same length: only ASCII letters always keep it."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _runs(low: str, form: _Form) -> Iterator[tuple[int, int]]:
    """Yield the spans of long enough pieces of a form in a text in lower case."""
    for place, window in form.windows:
        at = low.find(window)
        while at >= 0:
            start, left = at, place
            while start and left and low[start - 1] == form.text[left - 1]:
                start, left = start - 1, left - 1
            stop, right = at + len(window), place + len(window)
            while stop < len(low) and right < len(form.text) and low[stop] == form.text[right]:
                stop, right = stop + 1, right + 1
            after = at + 1
            if stop - start >= form.least:
                yield start, stop
                after = max(after, stop - len(window) + 1)
            at = low.find(window, after)


def _levels(text: str) -> Iterator[tuple[str, list[int] | None]]:
    """Yield a text, then the text with its escapes undone once, twice and so on.

    Each unescaped text comes with the offset in the original of each of its characters and of its
    end.
    """
    told, places = text, None
    for _ in range(LEVELS):
        yield told, places
        pieces, starts, end = [], [], 0
        for found in _ESCAPE.finditer(told):
            pieces += [told[end : found.start()], _character(found)]
            starts += [*range(end, found.start()), found.start()]
            end = found.end()
        if not pieces:
            return
        starts += range(end, len(told) + 1)
        told = "".join([*pieces, told[end:]])
        places = starts if places is None else [places[start] for start in starts]
    yield told, places


def _character(found: re.Match[str]) -> str:
    percent, unicode, by_hex, by_number, name, plain = found.groups()
    if number := percent or unicode or by_hex:
        return chr(int(number, 16))
    if by_number:
        return chr(int(by_number))
    return _ENTITIES[name.lower()] if name else plain
