import math
from functools import cache

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import (
    DataRoots,
    MediaFile,
    Reference,
    Response,
    Sample,
    TextPart,
    VerdictOutcome,
)
from serve_eval.schema.sample import InputAudioPart
from serve_eval.tasks import covost2, voxpopuli
from serve_eval.verdicts.references import find_shipped_dir, load
from serve_eval.verdicts.rules.classic import judge
from tests.tasks.made_data import wav, write_jsonl, write_voxpopuli

pytest.importorskip("jiwer", reason="needs the optional extra media")
pytest.importorskip("sacrebleu", reason="needs the optional extra media")

Z95 = 1.6448536269514722
"""The quantile of a standard normal variable at .95."""


def _load(task, root, wanted):
    return task.load(DataRoots(roots=(root,)), wanted)


def _turn(sample):
    (message,) = sample.prompt
    assert isinstance(message.content, tuple)
    return message.content


def test_voxpopuli_asks_the_first_rows_of_all_pieces_with_the_text_before_the_sound(
    tmp_path,
):
    write_voxpopuli(tmp_path / "facebook/voxpopuli", 40)
    dataset = _load(voxpopuli.task(num_samples=30), tmp_path, 30)
    assert [sample.id for sample in dataset.samples] == [f"test-{i}" for i in range(30)]
    assert (len(dataset.files), dataset.total) == (2, 40)
    assert dataset.deviation == "40 rows, where VoxPopuli has 1842"
    text, sound = _turn(dataset.samples[25])
    assert text == TextPart(
        text="Transcribe the spoken content to written english text, with punctuation and"
        " capitalizations."
    )
    assert isinstance(sound, InputAudioPart)
    assert sound.input_audio.format == "wav"
    assert dataset.samples[0].target.islower()  # the normalized text, not the raw one
    assert [dataset.samples[i].metadata["speaker"] for i in (0, 12, 14)] == ["0", "", "1"]


def test_a_row_may_have_its_own_question_and_only_a_raw_text(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(300))
    row = {"audio": "a.wav", "question": "What is said?", "normalized_text": " ", "raw_text": "Yes"}
    write_jsonl(tmp_path / "test.jsonl", [row])
    (sample,) = _load(voxpopuli.task(num_samples=1), tmp_path, 1).samples
    assert _turn(sample)[0] == TextPart(text="What is said?")
    assert sample.target == "Yes"


def test_covost2_asks_with_the_sound_before_the_text_in_the_order_of_a_seed(
    tmp_path,
):
    folder = tmp_path / "covost2/de_en"
    (folder / "clips").mkdir(parents=True)
    lines = ["client_id\taudio\tsentence\ttranslation"]
    for i in range(9):
        (folder / f"clips/{i}.wav").write_bytes(wav(300 + i))
        lines.append(f's{i % 2}\tclips/{i}.wav\tSagt "Satz {i}\tIt says "sentence {i}')
    (folder / "test.tsv").write_text("\n".join(lines) + "\n")
    task = covost2.task(lang_pair="de_en", num_samples=4)
    dataset = _load(task, tmp_path, 4)
    assert [sample.id for sample in dataset.samples] != [f"test-{i}" for i in range(4)]
    sample = dataset.samples[0]
    number = sample.id.removeprefix("test-")
    sound, text = _turn(sample)
    assert isinstance(sound, MediaFile)
    assert sound.path == str(folder / f"clips/{number}.wav")
    assert text == TextPart(
        text="Transcribe the following speech segment in German, then translate it into"
        " English.\nWhen formatting the answer, first output the transcription in German, then one"
        " newline, then output the string 'English: ', then the translation in English."
    )
    assert sample.target == f'It says "sentence {number}'
    assert sample.metadata["speaker"] == f"s{int(number) % 2}"
    assert (dataset.total, dataset.deviation) == (9, None)


@pytest.mark.parametrize(
    ("pair", "tokenizer"), [("en_zh-CN", "zh"), ("en_ja", "ja-mecab"), ("fr_en", "13a")]
)
def test_the_tokenizer_is_that_of_the_target_language(pair, tokenizer):
    assert covost2.task(lang_pair=pair).protocol["tokenizer"] == tokenizer


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"audio": "", "text": "yes"}, "row 1: the sound is missing"),
        ({"audio": "b.wav", "text": "yes"}, "No such file"),
        ({"audio": "text.wav", "text": "yes"}, "row 1: not a WAV, MP3"),
        ({"audio": "a.wav"}, "row 1 has no text in column normalized_text or raw_text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    (tmp_path / "a.wav").write_bytes(wav(300))
    (tmp_path / "text.wav").write_bytes(b"no sound")
    write_jsonl(tmp_path / "test.jsonl", [row])
    with pytest.raises(DatasetError, match=what):
        _load(voxpopuli.task(num_samples=1), tmp_path, 1)


def test_too_few_rows_and_unknown_languages_are_refused(tmp_path):
    (tmp_path / "a.wav").write_bytes(wav(300))
    write_jsonl(tmp_path / "test.jsonl", [{"audio": "a.wav", "text": "yes"}])
    with pytest.raises(DatasetError, match="VoxPopuli is incomplete: 1 rows; 2 are needed"):
        _load(voxpopuli.task(num_samples=2), tmp_path, 2)
    with pytest.raises(PlanError, match="unknown language 'dd'"):
        covost2.task(lang_pair="dd_en")
    with pytest.raises(PlanError, match="one of both languages is en"):
        covost2.task(lang_pair="de_fr")


# -------------------------------------------------------------------------------------------------
# the suite's thresholds

ROWS = [
    (model, row)
    for model, rows in load(find_shipped_dir() / "voxpopuli.yaml").items()
    for row in rows
]


@cache
def _answer(edits, samples, words):
    """Return the result of made-up answers with this number of wrong words in all."""
    text = " ".join(["word"] * words)
    table = ScoreAccumulator(
        voxpopuli.task(num_samples=samples),
        [
            Sample(id=str(i), prompt="p", target=text, metadata={"speaker": f"{i % 50}"})
            for i in range(samples)
        ],
    )
    for i in range(samples):
        wrong = min(words, max(0, edits - i * words))
        said = " ".join(["word"] * (words - wrong) + ["bird"] * wrong)
        table.add(i, Response(text=said, finish_reason="stop"))
    return table.result()


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_every_published_row_is_judged_by_the_threshold_of_the_suite(number):
    model, row = ROWS[number]
    samples, words = row.num_samples or 32, 20
    reference = Reference(
        task="voxpopuli", model=model, spec=row.spec, value=row.value, num_samples=samples
    )
    hypothesis = voxpopuli.task(num_samples=samples).hypothesis
    threshold = row.value + Z95 * math.sqrt(2.0 * 50.0**2 / samples)
    most = math.floor(threshold / 100.0 * samples * words)
    for edits, outcome in ((most, VerdictOutcome.PASS), (most + 1, VerdictOutcome.FAIL)):
        result = _answer(edits, samples, words)
        assert result.value == pytest.approx(100.0 * edits / (samples * words))
        verdict = judge(result, reference, hypothesis)
        assert verdict.threshold == pytest.approx(threshold, abs=1e-9)
        assert verdict.outcome is outcome


def test_by_default_32_utterances_allow_some_20_points():
    hypothesis = voxpopuli.task().hypothesis
    margin = Z95 * math.sqrt(2.0 * hypothesis.sigma**2 / (hypothesis.num_samples or 0))
    assert (hypothesis.num_samples, round(margin, 2)) == (32, 20.56)
    assert round(Z95 * math.sqrt(2.0 * 50.0**2 / 1842), 2) == 2.71


def test_words_weigh_and_not_utterances_and_each_kind_of_error_is_told():
    task = voxpopuli.task()
    pairs = [("a b", "a b c d e f g h"), ("x", "a"), ("", "(laughs)"), ("extra", "...")]
    samples = [
        Sample(id=str(i), prompt="p", target=target, metadata={"speaker": ""})
        for i, (_, target) in enumerate(pairs)
    ]
    table = ScoreAccumulator(task, samples)
    for i, (said, _) in enumerate(pairs):
        table.add(i, Response(text=said, finish_reason="stop"))
    result = table.result()
    assert result.value == pytest.approx(100.0 * (6 + 1 + 0 + 1) / 9)
    assert result.secondary == pytest.approx(
        {"deletions": 600 / 9, "insertions": 100 / 9, "substitutions": 100 / 9}
    )
    # Sums are no figures for readers.
    assert not {"edits", "words"} & set(result.parts)


def test_an_empty_transcript_is_scored_and_counted_as_empty():
    task = voxpopuli.task()
    samples = [
        Sample(id=str(i), prompt="p", target="a b c", metadata={"speaker": ""}) for i in "12"
    ]
    table = ScoreAccumulator(task, samples)
    table.add(0, Response(text="", finish_reason="stop"))
    table.add(1, Response(text=" ", reasoning="so", finish_reason="stop"))
    result = table.result()
    assert result.value == 100.0
    assert result.outcomes == {"empty": 1, "reasoning_only": 1}


def test_an_empty_translation_has_the_length_of_its_reference():
    task = covost2.task(num_samples=2)
    samples = [
        Sample(id=str(i), prompt="p", target="Das ist ein ganzer Satz.", metadata={"speaker": ""})
        for i in "12"
    ]
    table = ScoreAccumulator(task, samples)
    table.add(0, Response(text="German: Das ist ein ganzer Satz.", finish_reason="stop"))
    table.add(1, Response(text="", finish_reason="stop"))
    result = table.result()
    # All n-grams match, and half of the tokens are missing.
    assert result.value == pytest.approx(100.0 * math.exp(1.0 - 2.0))
    assert result.outcomes == {"correct": 1, "empty": 1}
