"""Make the texts of tokens readable, and recognize special ones. Pure."""

from __future__ import annotations

import re

_MARK = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,40}\]")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_READABLE = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"})
"""Space, line ends and tab as byte-level tokenizers and SentencePiece write them."""


def decode_piece(written: str) -> str:
    """Return the text of a token as its vocabulary writes it, such as Ġthe for " the".

    Characters outside ASCII stay as a byte-level vocabulary writes them: two sides that are read
    like this can be compared, but such a text cannot be searched for the prompt.
    """
    if byte := _BYTE.fullmatch(written):
        return bytes([int(byte[1], 16)]).decode(errors="replace")
    return written if looks_special(written) else written.translate(_READABLE)


def looks_special(piece: str) -> bool:
    """Return True if a token's text is a mark of a template, such as <|im_start|> or [INST]."""
    return _MARK.fullmatch(piece) is not None
