"""Name the documents that questions are about, so that questions on one document are a group.

Data sets seldom give a document an id of its own: those of LongBench are ids of questions. The text
itself identifies it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

LONG = 200
"""Characters from which a text is a document that questions may share."""
_DIGITS = 12


def name_document(text: str) -> str:
    """Return the name of a document: a hash of its text without white space at its ends."""
    return f"document {hashlib.sha256(text.strip().encode()).hexdigest()[:_DIGITS]}"


def find_document_field(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the field of rows that holds a long text which some, but not all, of them share.

    Of several fields, it is that with the most characters. None if there is none.
    """
    lengths: dict[str, int] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        texts = [text for row in rows if isinstance(text := row.get(name), str)]
        times = Counter(text for text in texts if len(text) >= LONG)
        if len(times) > 1 and max(times.values()) > 1:
            lengths[name] = sum(map(len, texts))
    return max(lengths, key=lambda name: lengths[name], default=None)
