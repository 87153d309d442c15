"""CoVoST 2: translations of recorded sentences, by BLEU, as trtllm-eval asks.

Paper: Wang et al. 2020, "CoVoST 2 and Massively Multilingual Speech-to-Text Translation". Data:
fixie-ai/covost2, a copy with sound (CC0-1.0); a language pair has 360 to 15531 test sentences. The
prompt is that of Gemma's model card: the answer transcribes the sentence and then translates it.
The value is sacrebleu's BLEU of all translations together. Layout from documentation, not tested on
the real set.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from serve_eval.datasets import local
from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.source import HubSource
from serve_eval.errors import PlanError
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
from serve_eval.scorers import translation
from serve_eval.tasks._recordings import SPEAKER, read_speech, speaker_in, text_in
from serve_eval.tasks._samples import NumSamples, RandomSeed, of_sums, shuffle

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
        translation.sentence_scorer(tokenizer)  # fail before any request
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
        return translation.score_translation(response.text, sample.target, language, tokenizer)

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
                parts=translation.COUNTS,
                value=translation.corpus_bleu,
                limits=tuple(
                    0.0 if part == translation.REFERENCE_LENGTH else float(MAX_TOKENS)
                    for part in translation.COUNTS
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
