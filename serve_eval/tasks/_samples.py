"""Name options that several tasks have, and order and group their samples.

Data sets seldom give a document an id of its own: those of LongBench are ids of questions. The text
itself identifies it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from serve_eval.plugins.setting import Setting

NumSamples = Annotated[int, Setting("Number of samples to ask.")]
NumFewshot = Annotated[int, Setting("Number of solved examples before each question.")]
RandomSeed = Annotated[int, Setting("Seed of the order of the samples and of what is drawn.")]
ByChat = Annotated[
    bool, Setting("Ask by chat: messages in the model's chat template, not a bare text.")
]
Multiturn = Annotated[
    bool, Setting("Make each solved example a pair of turns. Needs apply_chat_template.")
]
StopsOfSuite = Annotated[
    bool,
    Setting("Send the stop strings of a base model by chat too, as TensorRT-LLM's suite does."),
]


def shuffle(count: int, seed: int) -> list[int]:
    """Return the order of `datasets.Dataset.shuffle(seed)`."""
    import numpy

    return [int(i) for i in numpy.random.default_rng(seed).permutation(count)]


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
