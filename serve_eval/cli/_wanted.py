"""Find the command that answers a question, by the words in which users ask it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from serve_eval.cli._commands import CommandEntry, walk

MOST = 5
"""Most commands that an answer names."""
LEAST_SHARE = 0.5
"""Least share of the words of a question that a command must have."""
CLOSE = 0.75
"""Least share of the best fit that another command must reach."""
_IN_TITLE, _IN_LINE = 1.0, 0.8
"""Weights of a word by where it stands: the titles say what users ask."""
_FILLING = frozenset(
    [
        "a",
        "an",
        "and",
        "are",
        "at",
        "be",
        "can",
        "do",
        "does",
        "for",
        "from",
        "how",
        "i",
        "in",
        "is",
        "it",
        "its",
        "my",
        "of",
        "on",
        "or",
        "our",
        "so",
        "than",
        "that",
        "the",
        "there",
        "this",
        "to",
        "too",
        "was",
        "what",
        "when",
        "where",
        "which",
        "who",
        "why",
        "with",
        "me",
        "get",
    ]
)


class FoundCommand(NamedTuple):
    """A command that answers a question: its words, its line of help, and how well it fits."""

    command: str
    line: str
    share: float


def answer_question(question: str) -> str:
    """Return lines that name the commands which answer a question.

    Raises PlanError if none does.
    """
    found = find_commands(question)
    if not found:
        from serve_eval.errors import PlanError

        raise PlanError(
            f"no help is about {question!r}", hint="serve-eval --help lists the commands."
        )
    return "\n".join([f"Commands for {question!r}:", "", *list_commands(found)])


def list_commands(found: Iterable[FoundCommand]) -> list[str]:
    """Return a line for each command, as help shows it."""
    rows = [(f"serve-eval {one.command}", one.line) for one in found]
    width = max(len(name) for name, _ in rows)
    return [f"  {name.ljust(width)}  {line}" for name, line in rows]


def find_commands(question: str) -> list[FoundCommand]:
    """Return the commands that answer a question, the best one first.

    A command fits by the share of the question's words, without those that fill a sentence, that
    stand in one of its titles, or in its name and its line of help.
    """
    asked = _stems(question)
    if not asked:
        return []
    found = [
        FoundCommand(" ".join(words), entry.line, _fit(asked, words, entry))
        for words, entry in walk()
    ]
    best = max((one.share for one in found), default=0.0)
    least = max(LEAST_SHARE, CLOSE * best)
    good = [one for one in found if one.share >= least]
    return sorted(good, key=lambda one: -one.share)[:MOST]


def _fit(asked: frozenset[str], words: Sequence[str], entry: CommandEntry) -> float:
    line = _stems(f"{' '.join(words)} {entry.line}")

    def share(title: str) -> float:
        stems = _stems(title)
        held = len(asked & stems) + _IN_LINE * len((asked - stems) & line)
        whole = len(stems) if stems and stems <= asked else 0
        return (_IN_TITLE * held) / len(asked) + 0.01 * whole

    return max(map(share, (*entry.titles, "")))


def _stems(text: str) -> frozenset[str]:
    """Return the words of a text that matter, without the endings of their forms."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return frozenset(_stem(word) for word in words if word not in _FILLING)


def _stem(word: str) -> str:
    for ending in ("ations", "ation", "ions", "ies", "ing", "ers", "ed", "es", "er", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
