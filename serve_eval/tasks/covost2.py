"""CoVoST 2: translations of recorded sentences, by BLEU, as trtllm-eval asks.

Paper: Wang et al. 2020, "CoVoST 2 and Massively Multilingual Speech-to-Text Translation". Data:
fixie-ai/covost2, a copy with sound (CC0-1.0); a language pair has 360 to 15531 test sentences. The
prompt is that of Gemma's model card: the answer transcribes the sentence and then translates it.
The value is sacrebleu's BLEU of all translations together. Layout from documentation, not tested on
the real set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN, HubSource
from serve_eval.errors import PlanError, install_hint
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Need,
    Response,
    Sample,
    SamplingParams,
    Score,
    Sums,
    Task,
    TextPart,
)
from serve_eval.scorers._expected import grade_value
from serve_eval.tasks._recordings import SPEAKER, read_speech, speaker_in, text_in
from serve_eval.tasks._samples import NumSamples, RandomSeed, of_sums, shuffle

ORDER = 4
ANSWER_LENGTH, REFERENCE_LENGTH = "answer length", "reference length"
MATCHES = tuple(f"matches {n + 1}" for n in range(ORDER))
NGRAMS = tuple(f"n-grams {n + 1}" for n in range(ORDER))
COUNTS = (ANSWER_LENGTH, REFERENCE_LENGTH, *MATCHES, *NGRAMS)
"""Parts of a score: the lengths in tokens, and per n the n-grams of the answer and those found."""
IN_FORM = "in the asked form"
"""Part of a score: the share of answers that name the language before the translation."""

_EDGES = "\u200b\ufeff"
"""Characters without a width that may surround an answer."""
_OPENINGS = (
    "translation:",
    "translated:",
    "english translation:",
    "the english translation is:",
    "here's the translation:",
    "here is the translation:",
    "the translation is:",
)
"""Openings that the suite removes, each once and in this order."""
_QUOTES = (('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"))


def extract_translation(text: str, language: str) -> tuple[str, bool]:
    """Return the translation within an answer, and whether the answer names `language` before it.

    It is what follows the last "German:", up to an empty line; or else the whole answer. Openings
    such as "Translation:" and quotation marks around it are removed.
    """
    found = list(re.finditer(re.escape(f"{language}:"), text, re.IGNORECASE))
    if not found:
        return _unwrap(text), False
    return _unwrap(text[found[-1].end() :].partition("\n\n")[0]), True


def score_translation(answer: str, reference: str, language: str, tokenizer: str) -> Score:
    """Return BLEU of the translation within an answer, from 0 to 1, with its counts as parts.

    Raises PlanError if the optional package is missing.
    """
    translation, in_form = extract_translation(answer, language)
    found = sentence_scorer(tokenizer).sentence_score(translation, [reference])
    value = min(1.0, round(found.score / 100.0, 12))
    counts = (found.sys_len, found.ref_len, *found.counts, *found.totals)
    parts = {name: float(count) for name, count in zip(COUNTS, counts, strict=True)}
    return grade_value(value, translation, {**parts, IN_FORM: float(in_form)})


def corpus_bleu(sums: Sequence[float]) -> float:
    """Return BLEU of a corpus, from 0 to 1, by the sums of `COUNTS`.

    It is sacrebleu's formula with its smoothing: the k-th n for which nothing matches counts as if
    1 / 2^k n-grams matched. sacrebleu's own function takes whole numbers only, which a gradient
    does not have.
    """
    answered, wanted, *counts = sums
    matches, possible = counts[:ORDER], counts[ORDER:]
    if not any(matches) or not all(possible):
        return 0.0
    logs, credit = 0.0, 1.0
    for found, of in zip(matches, possible, strict=True):
        if found == 0.0:
            credit /= 2.0
        logs += math.log((found or credit) / of)
    brevity = min(0.0, 1.0 - wanted / answered)
    return math.exp(brevity + logs / ORDER)


@lru_cache(maxsize=8)
def sentence_scorer(tokenizer: str) -> Any:
    """Return sacrebleu's scorer of single sentences.

    Raises PlanError if the package, or what it needs for a tokenizer, is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise PlanError("BLEU needs the package sacrebleu", hint=install_hint("media")) from error
    try:
        return BLEU(tokenize=tokenizer, effective_order=True)
    except RuntimeError as error:
        raise PlanError(
            f"sacrebleu's tokenizer {tokenizer} needs packages that are not installed",
            hint="For Japanese: pip install 'sacrebleu[ja]'.",
        ) from error


def _unwrap(text: str) -> str:
    """Return a translation without openings and without one pair of quotation marks of a kind."""
    bare = text.strip().strip(_EDGES).strip()
    for opening in _OPENINGS:
        if bare.lower().startswith(opening):
            bare = bare[len(opening) :].strip()
    for first, last in _QUOTES:
        if len(bare) > 1 and bare.startswith(first) and bare.endswith(last):
            bare = bare[1:-1].strip()
    return bare


SOURCE = KNOWN["covost2"]
REPOSITORY = "fixie-ai/covost2"
LANGUAGES = {
    "ar": "Arabic",
    "ca": "Catalan",
    "cy": "Welsh",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "et": "Estonian",
    "fa": "Persian",
    "fr": "French",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "lv": "Latvian",
    "mn": "Mongolian",
    "nl": "Dutch",
    "pt": "Portuguese",
    "ru": "Russian",
    "sl": "Slovenian",
    "sv-SE": "Swedish",
    "ta": "Tamil",
    "tr": "Turkish",
    "zh-CN": "Chinese",
}
TOKENIZERS = {"zh-CN": "zh", "ja": "ja-mecab"}
MAX_TOKENS = 256
WRONG = "qqq"


def task(
    *,
    lang_pair: Annotated[
        str, Setting("Languages of the speech and of the translation, such as de_en.")
    ] = "en_de",
    num_samples: NumSamples = 1000,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    The first `num_samples` in an order by `random_seed` are asked; trtllm-eval asks all of a pair.
    Raises PlanError for a pair without English and for options out of range.
    """
    source, target = _read_pair(lang_pair)
    if num_samples < 1:
        raise PlanError("covost2: num_samples must be 1 or more")
    language, tokenizer = LANGUAGES[target], TOKENIZERS.get(target, "13a")
    prompt = prompt_text(LANGUAGES[source], language)

    def load(roots: DataRoots, wanted: int) -> Dataset:
        sentence_scorer(tokenizer)  # fail before any request
        hub = HubSource(repository=REPOSITORY, patterns=(f"{lang_pair}/test-*.parquet",))
        speech = read_speech(
            SOURCE if lang_pair == "en_de" else replace(SOURCE, hub=hub),
            roots,
            "test",
            (f"{lang_pair}/", f"data/{lang_pair}/"),
            lambda total: shuffle(total, random_seed)[:wanted],
        )
        told = f"CoVoST 2 is incomplete: {lang_pair} has {speech.total} rows"
        local.check_rows(roots, speech.total, wanted, told, SOURCE)
        samples = [
            Sample(
                id=f"test-{one.number}",
                prompt=(Message(role="user", content=(one.sound, TextPart(text=prompt))),),
                target=text_in(one.row, ("translation",), one.where),
                group=speaker_in(one.row, "client_id"),
                metadata={
                    SPEAKER: speaker_in(one.row, "client_id"),
                    "sentence": str(one.row.get("sentence") or ""),
                },
            )
            for one in speech.recordings
        ]
        return Dataset(samples=samples, files=speech.files, total=speech.total)

    def score(sample: Sample, response: Response) -> Score:
        return score_translation(response.text, sample.target, language, tokenizer)

    return Task(
        name="covost2",
        version=1,
        datasets=("covost2",),
        reference_file="covost2",
        metric=Metric(name="bleu"),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        chat=True,
        requires=frozenset({Need.AUDIO}),
        protocol={
            "lang_pair": lang_pair,
            "prompt": prompt,
            "tokenizer": tokenizer,
            "random_seed": random_seed,
        },
        load=load,
        score=score,
        answers=lambda sample: (
            f"{sample.metadata['sentence']}\n{language}: {sample.target}",
            f"{language}: {WRONG}",
        ),
        aggregation=of_sums(
            "corpus BLEU",
            Sums(
                parts=COUNTS,
                value=corpus_bleu,
                limits=tuple(
                    0.0 if part == REFERENCE_LENGTH else float(MAX_TOKENS) for part in COUNTS
                ),
            ),
        ),
        judges_empty=True,
        scoring="apart",
    )


def prompt_text(source: str, target: str) -> str:
    """Return the prompt for speech in language `source` and a translation into `target`."""
    return (
        f"Transcribe the following speech segment in {source}, then translate it into {target}.\n"
        f"When formatting the answer, first output the transcription in {source}, then one"
        f" newline, then output the string '{target}: ', then the translation in {target}."
    )


def _read_pair(pair: str) -> tuple[str, str]:
    source, _, target = pair.partition("_")
    problems = [
        f"covost2.lang_pair: unknown language {name!r}.{registry.nearest(name, LANGUAGES)}"
        for name in (source, target)
        if name not in LANGUAGES
    ]
    if not problems and (source == "en") == (target == "en"):
        problems = [f"covost2.lang_pair: one of both languages is en, unlike in {pair!r}"]
    if problems:
        raise PlanError(problems)
    return source, target
