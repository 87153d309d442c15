"""Answer without a model, for servers of the tests: sums, copies, counts, and keys in a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from serve_eval.schema import Prompt

_MOST_COUNTED = 2000
_KEY = re.compile(r"The pass key is (\d+)")


def _count(begin: str, end: str) -> str:
    return ", ".join(map(str, range(int(begin), min(int(end), _MOST_COUNTED) + 1)))


_KINDS: Mapping[str, Callable[..., str]] = {
    r"What is (\d+) \+ (\d+)\?": lambda a, b: str(int(a) + int(b)),
    r"Repeat exactly: (.+)": str,
    r"Count from (\d+) to (\d+)": _count,
}


def answer(prompt: Prompt) -> str | None:
    """Return an instructed model's answer to the last question of a prompt.

    Returns None for a question of another kind.
    """
    text = prompt if isinstance(prompt, str) else prompt[-1].text
    if "What is the pass key?" in text and (key := _KEY.search(text)):
        return f" {key[1]}"
    found = [(match, say) for kind, say in _KINDS.items() for match in re.finditer(kind, text)]
    if not found:
        return None
    match, say = max(found, key=lambda one: one[0].start())
    return f" {say(*match.groups())}"
