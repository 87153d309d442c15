"""Turn chats and texts into the tokens of the embedded model, and back.

A separate process renders it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.launchers._http.requests import bad_request
from serve_eval.protocol.chat_template import Rendering, read
from serve_eval.schema import Message

# GPT-2's pieces (Radford et al. 2019), after every digit was separated; white space is Unicode's,
# not Python's.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_PIECE = re.compile(
    r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|"
    rf" ?(?:[^\w{_SPACE}]|_)+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
)
_DIGIT = re.compile(r"([0-9])")


def _alphabet() -> dict[int, str]:
    """Return the printable character for each byte in the vocabulary, as in GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}


class Tokenizer:
    """Converts text to token ids and back.

    `special` maps the marks of the chat template to their ids.
    """

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text(encoding="utf-8"))
        self._ids: dict[str, int] = content["model"]["vocab"]
        pairs = [
            tuple(m) if isinstance(m, list) else tuple(m.split(" "))
            for m in content["model"]["merges"]
        ]
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self.special: dict[str, int] = {t["content"]: t["id"] for t in content["added_tokens"]}
        self._alphabet = _alphabet()
        back = {char: byte for byte, char in self._alphabet.items()}
        self._bytes = {
            i: bytes(map(back.__getitem__, text))
            for text, i in self._ids.items()
            if text not in self.special
        }
        self._bytes |= {i: text.encode() for text, i in self.special.items()}
        self._marks = re.compile("(" + "|".join(map(re.escape, self.special)) + ")")
        self._merged = lru_cache(maxsize=65536)(self._merge)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, in which marks of the chat template are single tokens."""
        found: list[int] = []
        for part in self._marks.split(text):
            if part in self.special:
                found.append(self.special[part])
                continue
            for piece in _pieces(part):
                found += self._merged(piece)
        return found

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of one id: the text of a mark, or bytes, even part of a character."""
        return self._bytes.get(token, b"")

    def _merge(self, piece: str) -> tuple[int, ...]:
        parts = [self._alphabet[b] for b in piece.encode(errors="replace")]
        while len(parts) > 1:
            ranked = [self._ranks.get(pair) for pair in pairwise(parts)]
            best = min((rank for rank in ranked if rank is not None), default=None)
            if best is None:
                break
            at = ranked.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(self._ids[part] for part in parts)


def _pieces(text: str) -> Iterator[str]:
    for place, run in enumerate(_DIGIT.split(text) if text.isascii() else _numbers_apart(text)):
        if place % 2:
            yield run
        else:
            yield from _PIECE.findall(run)


def _numbers_apart(text: str) -> Iterator[str]:
    """Yield runs of a text, and each numeric character of Unicode alone, such as a superscript."""
    run = ""
    for char in text:
        if unicodedata.category(char)[0] == "N":
            yield run
            yield char
            run = ""
        else:
            run += char
    yield run


class Chat:
    """Renders the text of messages, given more variables, with the model's turn opened.

    Any thread may call it. Raises ValueError for a folder without a valid template. A call raises
    RefusedRequest for what the template does not accept, including media. The process stays until
    `close`.
    """

    def __init__(self, folder: Path) -> None:
        try:
            template = read(folder)
            self._rendering = Rendering(template, variables={}, today=None)
        except PlanError as error:
            raise ValueError(error) from error
        self._place = f"{template.file}: "

    def __call__(self, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
        if any(turn.media for turn in messages):
            raise bad_request("this is not a multimodal model")
        try:
            return self._rendering(messages, variables)
        except PlanError as error:
            raise bad_request(error.problems[0].removeprefix(self._place)) from error

    def close(self) -> None:
        self._rendering.close()
