"""Compare word errors with jiwer and a table of our own, and BLEU with sacrebleu: 10,000 pairs.

The pairs are made up: sentences with marks, remarks, fillers and letters of several scripts, and
answers with words changed, lost and added, or with nothing left. Corpora are drawn from them with
their own sizes.

Then compare our ROUGE figures with rouge-score, and at summary level with `rouge`.

The figures are those of our scorer and of cnn_dailymail. The texts are from the novels in
../shared/data/long_text, or made ones. rouge-score's rougeLsum is another measure: its sentences
are lines, and it counts repeated words each time.
"""

import math
import random
import re

from serve_eval.schema import Response, Sample
from serve_eval.scorers.longbench import union_rouge_l
from serve_eval.scorers.rouge import KINDS, f_measures, scorer
from serve_eval.scorers.word_errors import (
    count_word_errors,
    normalize_transcript,
    score_transcript,
)
from serve_eval.stats.clusters import pair_sums
from serve_eval.stats.drop import drop_test
from serve_eval.tasks import cnn_dailymail, covost2, voxpopuli
from serve_eval.tasks.covost2 import COUNTS, corpus_bleu, score_translation
from tests.oracle.part import Compared, Skipped, require, shared

PAIRS, CORPORA = 10_000, 50
_VOCABULARY = (
    "the parliament votes Mr. President, naïve (applause) [music] <|end|> uh um 50 % é straße"
    " ﬁnance it's — don't A.B. three-quarters 今天 天气 ½ Ελλάδα"
)
VOCABULARY = _VOCABULARY.split()


def compare():
    """Compare both. Raises Skipped without a package."""
    require("jiwer", "jiwer")
    require("sacrebleu", "sacrebleu")
    pairs = make_pairs(random.Random(34))
    return [_by_jiwer(pairs), _by_table(pairs), *_by_sacrebleu(pairs), _by_paired_tests()]


def make_pairs(rng, count=PAIRS):
    """Return answers with their references."""
    pairs = []
    for _ in range(count):
        reference = rng.choices(VOCABULARY, k=rng.choice((0, 1, 3, 8, 20, 40)))
        answer = []
        for word in reference:
            dice = rng.random()
            answer += [word] if dice < 0.8 else [] if dice < 0.87 else [rng.choice(VOCABULARY)]
            answer += [rng.choice(VOCABULARY)] if dice > 0.95 else []
        pairs.append((" ".join(answer) if rng.random() < 0.97 else "", " ".join(reference)))
    return pairs


def _corpora(count):
    rng = random.Random(count)
    return [rng.sample(range(count), rng.choice((20, 100, 300))) for _ in range(CORPORA)] + [
        list(range(count))
    ]


def _by_jiwer(pairs):
    import jiwer

    result = Compared(what="word error rates of corpora, by jiwer")
    aggregation = voxpopuli.task().aggregation
    scores = [score_transcript(*pair) for pair in pairs]
    texts = [[normalize_transcript(text) for text in pair] for pair in pairs]
    largest = 0.0
    for places in _corpora(len(pairs)):
        sample = Sample(id="x", prompt="p", target="")
        scored = [(sample, scores[i]) for i in places]
        ours = aggregation.of(scored)
        theirs = jiwer.wer([texts[i][1] for i in places], [texts[i][0] for i in places])
        result.add_number(f"{len(places)} utterances", ours, theirs)
        largest = max(largest, abs(ours - theirs))
    result.notes.append(f"largest difference {largest:.2g}")
    return result


def _by_table(pairs):
    """Compute the edits by the table of Wagner and Fischer 1974, written here."""
    result = Compared(what="edits and reference words of single utterances, by a table")
    for answer, reference in pairs:
        found = count_word_errors(answer, reference)
        wanted, said = (normalize_transcript(text).split() for text in (reference, answer))
        row = list(range(len(said) + 1))
        for i, word in enumerate(wanted, 1):
            above, row = row, [i]
            for j, other in enumerate(said, 1):
                row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (word != other)))
        result.add_number(f"{answer[:60]!r}", found.edits, row[-1])
        result.add_number(f"{answer[:60]!r}", found.words, len(wanted))
    return result


def _by_sacrebleu(pairs):
    import sacrebleu

    results = []
    for language, tokenizer in (("German", "13a"), ("Chinese", "zh")):
        result = Compared(what=f"BLEU of corpora with the tokenizer {tokenizer}, by sacrebleu")
        scores = [
            score_translation(f"{language}: {answer}", reference, language, tokenizer)
            for answer, reference in pairs
        ]
        largest = 0.0
        for places in _corpora(len(pairs)):
            sums = [math.fsum(scores[i].parts[name] for i in places) for name in COUNTS]
            answers = [scores[i].answer or "" for i in places]
            theirs = sacrebleu.corpus_bleu(
                answers, [[pairs[i][1] for i in places]], tokenize=tokenizer
            ).score
            ours = 100.0 * corpus_bleu(sums)
            result.add_number(f"{len(places)} sentences", ours, theirs)
            largest = max(largest, abs(ours - theirs))
        result.notes.append(f"largest difference {largest:.2g} of 100")
        results.append(result)
    return results


def _by_paired_tests():
    """Compare p of a drop with sacrebleu's approximate randomisation, which is two-sided."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    result = Compared(what="p of a drop of BLEU, within .05 of sacrebleu's of 2000 trials")
    rng, largest = random.Random(5), 0.0
    sums = covost2.task().aggregation.sums
    assert sums is not None
    for corpus in range(5):
        pairs = make_pairs(random.Random(corpus), 400)
        sides = [
            [" ".join(w for w in one.split() if rng.random() > lost) for one, _ in pairs]
            for lost in (0.05, 0.05 + 0.002 * corpus)
        ]
        test = PairedTest(
            [("before", sides[0]), ("after", sides[1])],
            {"BLEU": BLEU(references=[[other for _, other in pairs]])},
            None,
            test_type="ar",
            n_samples=2000,
        )
        theirs = test()[1]["BLEU"][1].p_value
        parts = [_count(side, [other for _, other in pairs]) for side in sides]
        told = drop_test(pair_sums([parts[0]], [parts[1]], sums.value, higher_is_better=True))
        ours = 2.0 * min(told.p, 1.0 - told.p)
        largest = max(largest, abs(ours - theirs))
        result.add(f"corpus {corpus}: p {ours:.4f}", abs(ours - theirs) <= 0.05, True)
    result.notes.append(f"largest difference of p {largest:.3f}")
    return result


def _count(answers, references):
    """Return the counts of BLEU: part and sentence."""
    scores = [
        score_translation(*pair, "German", "13a") for pair in zip(answers, references, strict=True)
    ]
    return [[score.parts[name] for score in scores] for name in COUNTS]


ROUGE_PAIRS = 2000
CONSTANT = 1e-8
"""Constant that the package `rouge` adds to a denominator; we do not."""


def compare_rouge():
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
    for _ in range(ROUGE_PAIRS):
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
