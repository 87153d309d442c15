"""Compute the metrics of LongBench v1 (Bai et al. 2023), each from 0 to 1.

They are written from their published definitions. Details that decide numbers: F1 of English text
ignores case, punctuation and articles; ROUGE-L is that of the `rouge` package (see _union_rouge_l),
not of rouge_score; Chinese text is cut into words by jieba, an optional package; similarity of code
is that of RapidFuzz, as in NVIDIA's suite but not in lm-eval, on the first line that is not a
comment.

The sets are of words. Sentences end at a full stop. For each pair of a sentence of the reference
and one of the text, the words of one longest common subsequence are taken. The score uses the
number of different words in the union of them all, and the numbers of different words in both
texts. The package adds 1e-8 to the denominator of F, which lowers it by less than 1e-8; this is
left out, so that a perfect answer scores 1.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value

Metric = Callable[[str, str], float]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NUMBER = re.compile(r"\d+")
_CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)
_NO_CHINESE_PUNCTUATION = str.maketrans("", "", string.punctuation + _CHINESE_PUNCTUATION)


def best(metric: Metric, text: str, answers: Sequence[str]) -> Score:
    """Return the highest score over the answers.

    Every metric but that of code uses the text without its outer white space.
    """
    seen = text if metric is code_similarity else text.strip()
    return grade_value(max(metric(seen, answer) for answer in answers), seen)


def qa_f1(text: str, answer: str) -> float:
    """Return F1 of the words, as multisets, without case, punctuation and articles."""
    return _f1(_words(text), _words(answer))


def qa_f1_zh(text: str, answer: str) -> float:
    """Return F1 of the words that jieba finds, without punctuation.

    Raises PlanError if jieba is not installed.
    """
    return _f1(_chinese_words(text), _chinese_words(answer))


def rouge_l(text: str, answer: str) -> float:
    """Return F of the union ROUGE-L over the sentences."""
    return union_rouge_l(text, answer)


def rouge_l_zh(text: str, answer: str) -> float:
    """Return F of the union ROUGE-L over the words that jieba finds.

    Raises PlanError if jieba is not installed.
    """
    return union_rouge_l(" ".join(cut(text)), " ".join(cut(answer)))


def classification(classes: Sequence[str]) -> Metric:
    """Return the metric of one over the number of named classes, if the right one is among them.

    A named class that is a part of the right one does not count as named. The published metric
    drops these while it iterates over the list, so that the class after a dropped one is never
    dropped itself.
    """

    def metric(text: str, answer: str) -> float:
        named = [name for name in classes if name in text]
        i = 0
        while i < len(named):
            if named[i] in answer and named[i] != answer:
                named.remove(named[i])
            i += 1
        return 1.0 / len(named) if answer in named else 0.0

    return metric


def count(text: str, answer: str) -> float:
    """Return the share of the numbers in the text that are the answer."""
    return _share(text, answer)


def retrieval(text: str, answer: str) -> float:
    """Return the share of the numbers in the text that are the paragraph's ("Paragraph 12")."""
    return _share(text, _paragraph(answer, r"Paragraph (\d+)"))


def retrieval_zh(text: str, answer: str) -> float:
    """Return the share of the numbers in the text that are the paragraph's ("段落12")."""
    return _share(text, _paragraph(answer, r"段落(\d+)"))


def code_similarity(text: str, answer: str) -> float:
    """Return the indel similarity (RapidFuzz's `ratio`) of the answer and a line of the text.

    It is the first line that has text and no `, # or //.
    """
    lines = (line for line in text.split("\n") if line.strip())
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    total = len(line) + len(answer)
    return 2 * _common_length(line, answer) / total if total else 1.0


def cut(text: str) -> list[str]:
    """Return Chinese text cut into words. Raises PlanError if jieba is not installed."""
    return list(chinese_words().cut(text, cut_all=False))


@lru_cache(maxsize=1)
def chinese_words() -> Any:
    """Return jieba's tokenizer with its own dictionary.

    Its default cache is in the folder for temporary files, where others could put one, so it gets
    its own folder. Raises PlanError if jieba is not installed.
    """
    try:
        import jieba
    except ImportError as error:
        raise PlanError(
            "Chinese sets need the package jieba", hint=install_hint("longbench")
        ) from error
    jieba.setLogLevel("WARNING")
    tokenizer = jieba.Tokenizer()
    with TemporaryDirectory() as folder:
        tokenizer.tmp_dir = folder
        tokenizer.initialize()
    return tokenizer


def _words(text: str) -> list[str]:
    return _ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def _chinese_words(text: str) -> list[str]:
    bare = ("".join(word.lower().translate(_NO_CHINESE_PUNCTUATION).split()) for word in cut(text))
    return [word for word in bare if word]


def _f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    same = sum((Counter(found) & Counter(wanted)).values())
    return 2 * same / (len(found) + len(wanted)) if same else 0.0


def _share(text: str, number: str) -> float:
    numbers = _NUMBER.findall(text)
    return numbers.count(number) / len(numbers) if numbers else 0.0


def _paragraph(answer: str, pattern: str) -> str:
    match = re.search(pattern, answer)
    return match.group(1) if match else ""


def _common_length(a: str, b: str) -> int:
    """Return the length of the longest common subsequence.

    Each row of the table is computed as the bits of one number (Hyyrö 2004).
    """
    places: dict[str, int] = {}
    for i, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << i
    full = (1 << len(a)) - 1
    row = full
    for character in b:
        matches = row & places.get(character, 0)
        row = ((row + matches) | (row - matches)) & full
    return len(a) - row.bit_count()


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
