"""Compare our ROUGE figures with rouge-score, and at summary level with `rouge`.

The figures are those of our scorer and of cnn_dailymail. The texts are from the novels in
../shared/data/long_text, or made ones. rouge-score's rougeLsum is another measure: its sentences
are lines, and it counts repeated words each time.
"""

import random
import re

from serve_eval.schema import Response, Sample
from serve_eval.scorers.longbench import union_rouge_l
from serve_eval.scorers.rouge import KINDS, f_measures, scorer
from serve_eval.tasks import cnn_dailymail
from tests.oracle.part import Compared, Skipped, require, shared

PAIRS = 2000
CONSTANT = 1e-8
"""Constant that the package `rouge` adds to a denominator; we do not."""


def compare():
    """Compare both.

    Raises Skipped without a package.
    """
    require("rouge_score", "rouge")
    pairs = list(_pairs(random.Random(3)))
    return [_by_rouge_score(pairs), _by_definition(pairs), _by_rouge(pairs)]


def _by_rouge_score(pairs):
    from rouge_score.rouge_scorer import RougeScorer

    result = Compared(
        what="ROUGE-1, ROUGE-2 and ROUGE-L of our scorer, and cnn_dailymail's score, by rouge-score"
    )
    theirs, task = RougeScorer(["rougeL", "rouge2", "rouge1"]), cnn_dailymail.task()
    scorers = {kind: scorer(kind=kind) for kind in KINDS}
    for text, target in pairs:
        said = Response(text=text, finish_reason="stop")
        found = theirs.score(target=target, prediction=text)
        for kind, one in scorers.items():
            result.add_number(
                f"{kind} {text[:60]!r}", one.score(target, said).value, found[kind].fmeasure
            )
        score = task.score(Sample(id="x", prompt="p", target=target), said)
        result.add_number(f"cnn_dailymail {text[:60]!r}", score.value, found["rouge1"].fmeasure)
    return result


def _by_definition(pairs):
    """Compute ROUGE by Lin's definitions, written here again since our scorer calls the package."""
    result = Compared(what="ROUGE-1 and ROUGE-L of our scorer by their definitions")
    for text, target in pairs:
        found, wanted = (re.findall("[a-z0-9]+", one.lower()) for one in (text, target))
        total, parts = len(found) + len(wanted), f_measures(text, target)
        same = sum(min(found.count(word), wanted.count(word)) for word in set(found))
        result.add_number(
            f"rouge1 {text[:60]!r}", parts["rouge1"], 2 * same / total if total else 0.0
        )
        result.add_number(
            f"rougeL {text[:60]!r}",
            parts["rougeL"],
            2 * _common(found, wanted) / total if total else 0.0,
        )
    return result


def _by_rouge(pairs):
    from rouge import Rouge

    result, theirs = (
        Compared(what="ROUGE-L at summary level, by the package rouge"),
        Rouge(metrics=["rouge-l"]),
    )
    for text, target in pairs:
        if not text.replace(".", "") or not target.replace(".", ""):
            continue
        found = theirs.get_scores(text, target)[0]["rouge-l"]
        both = found["p"] + found["r"]
        result.add_number(
            text[:60],
            union_rouge_l(text, target),
            found["f"] * (1 + CONSTANT / both) if both else found["f"],
        )
    return result


def _common(one, other):
    """Return the length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        above = row[:]
        for j, candidate in enumerate(other):
            row[j + 1] = above[j] + 1 if word == candidate else max(above[j + 1], row[j])
    return row[-1]


def _pairs(rng):
    """Yield texts and references of a few sentences: neighbours, and changed copies."""
    sentences = _sentences(rng)
    for _ in range(PAIRS):
        at = rng.randrange(len(sentences) - 8)
        target = " ".join(sentences[at : at + rng.randrange(1, 4)])
        words = target.split()
        yield (
            rng.choice(
                (
                    " ".join(sentences[at + 1 : at + rng.randrange(2, 6)]),
                    " ".join(rng.sample(words, len(words))),
                    " ".join(word for word in words if rng.random() < 0.6),
                    " ".join(reversed(sentences[at : at + 3])),
                    target.upper().replace(",", " ,").replace(".", "\n"),
                    f"{target} {sentences[at + 4]}",
                    target[rng.randrange(len(target)) :],
                    rng.choice(("", "...", "été", target)),
                )
            ),
            target,
        )


def _sentences(rng):
    try:
        text = "".join(
            file.read_text(encoding="utf-8") for file in sorted(shared("long_text").glob("*.txt"))
        )
    except Skipped:
        words = [f"w{i}" for i in range(200)]
        return [" ".join(rng.choices(words, k=rng.randrange(3, 20))) + "." for _ in range(5000)]
    found = re.split(r"(?<=[.!?])\s+", text)
    return [" ".join(one.split()) for one in found if 3 <= len(one.split()) <= 40]
