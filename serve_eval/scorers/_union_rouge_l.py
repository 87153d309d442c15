"""Compute ROUGE-L at summary level like the `rouge` package (Lin 2004, section 3.2, with sets).

The sets are of words. Sentences end at a full stop. For each pair of a sentence of the reference
and one of the text, the words of one longest common subsequence are taken. The score uses the
number of different words in the union of them all, and the numbers of different words in both
texts. The package adds 1e-8 to the denominator of F, which lowers it by less than 1e-8; this is
left out, so that a perfect answer scores 1.
"""

from __future__ import annotations

from collections.abc import Sequence


def union_rouge_l(text: str, reference: str) -> float:
    """Return F from 0 to 1; 0 if either text is empty."""
    found, wanted = _sentences(text), _sentences(reference)
    if not found or not wanted:
        return 0.0
    common: set[str] = set()
    for sentence in wanted:
        for other in found:
            common.update(_common_words(sentence, other))
    recall = len(common) / len({word for sentence in wanted for word in sentence})
    precision = len(common) / len({word for sentence in found for word in sentence})
    return 2 * precision * recall / (precision + recall) if common else 0.0


def _sentences(text: str) -> list[list[str]]:
    """Return the words of each sentence.

    A sentence of white space has only the empty word, as in the package.
    """
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common_words(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """Return one longest common subsequence, read from the end.

    If two ways are equally long, a word of `b` is left out.
    """
    if set(a).isdisjoint(b):
        return []
    table = [[0] * (len(b) + 1)]
    for word in a:
        above, row = table[-1], [0]
        for j, other in enumerate(b):
            row.append(above[j] + 1 if word == other else max(above[j + 1], row[j]))
        table.append(row)
    i, j, words = len(a), len(b), []
    while i and j:
        if a[i - 1] == b[j - 1]:
            words.append(a[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return words
