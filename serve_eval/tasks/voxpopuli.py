"""VoxPopuli: transcripts of English speech, by word error rate, as TensorRT-LLM's suite asks.

Paper: Wang et al. 2021, "VoxPopuli: A Large-Scale Multilingual Speech Corpus". Data:
facebook/voxpopuli (CC0-1.0), 1842 English test utterances of the European Parliament. The value is
the number of word errors per 100 words of the reference, over all utterances together, after the
suite's normalization. Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
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
    Scored,
    Task,
    TextPart,
)
from serve_eval.scorers import word_errors
from serve_eval.tasks._recordings import SPEAKER, read_speech, speaker_in, text_in
from serve_eval.tasks._samples import NumSamples, ratio_of_sums

SOURCE = KNOWN["voxpopuli"]
TEST_ROWS = 1842
PLACES = ("", "en/", "data/en/", "data/")
TRANSCRIPTS = ("normalized_text", "raw_text", "text", "transcript")
PROMPT = (
    "Transcribe the spoken content to written english text, with punctuation and capitalizations."
)
MAX_TOKENS = 128
WRONG = "qqq"
_KINDS = (word_errors.SUBSTITUTIONS, word_errors.DELETIONS, word_errors.INSERTIONS)


def task(*, num_samples: NumSamples = 32) -> Task:
    """Return the task with its options.

    The first `num_samples` rows are asked, as in the suite; its references are for all 1842. A
    column `question` of a row replaces the prompt. Raises PlanError for options out of range.
    """
    if num_samples < 1:
        raise PlanError("voxpopuli: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        word_errors.package()  # fail before any request
        speech = read_speech(SOURCE, roots, "test", PLACES, lambda total: range(min(wanted, total)))
        told = f"VoxPopuli is incomplete: {speech.total} rows"
        local.check_rows(roots, speech.total, wanted, told, SOURCE)
        samples = [
            Sample(
                id=f"test-{one.number}",
                prompt=(
                    Message(
                        role="user",
                        content=(TextPart(text=str(one.row.get("question") or PROMPT)), one.sound),
                    ),
                ),
                target=text_in(one.row, TRANSCRIPTS, one.where),
                group=speaker_in(one.row, "speaker_id"),
                metadata={
                    SPEAKER: speaker_in(one.row, "speaker_id"),
                    "audio_id": str(one.row.get("audio_id") or one.row.get("id") or one.number),
                },
            )
            for one in speech.recordings
        ]
        differs = f"{speech.total} rows, where VoxPopuli has {TEST_ROWS}"
        return Dataset(
            samples=samples,
            files=speech.files,
            total=speech.total,
            deviation=None if speech.total == TEST_ROWS else differs,
        )

    return Task(
        name="voxpopuli",
        version=1,
        datasets=("voxpopuli",),
        reference_file="voxpopuli",
        metric=Metric(name="wer", higher_is_better=False, lo=0.0, hi=None),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=MAX_TOKENS),
        chat=True,
        requires=frozenset({Need.AUDIO}),
        protocol={"prompt": PROMPT, "normalization": 1},
        load=load,
        score=_score,
        answers=lambda sample: (sample.target, WRONG),
        aggregation=ratio_of_sums(
            "word error rate",
            word_errors.EDITS,
            word_errors.WORDS,
            limits=(float(MAX_TOKENS), 0.0),
        ),
        secondary=_kinds,
        scoring="apart",
    )


def _score(sample: Sample, response: Response) -> Score:
    return word_errors.score_transcript(response.text, sample.target)


def _kinds(scored: Scored) -> Mapping[str, float]:
    """Return the edits of each kind per 100 words of the references."""
    parts = [score.parts for _, score in scored]
    words = sum(one[word_errors.WORDS] for one in parts)
    return {kind: 100.0 * sum(one[kind] for one in parts) / words for kind in _KINDS if words}
