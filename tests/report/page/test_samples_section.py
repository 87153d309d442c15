"""The data of the samples: whole, small, without what must not be shown, and never a failure."""

from __future__ import annotations

import base64
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from serve_eval.cli._ending import save
from serve_eval.errors import RunFolderError
from serve_eval.report.page.columns import pack
from serve_eval.report.page.sample_data import PageTask, SampleData, show_samples
from serve_eval.report.samples.known import KnownTask, ReferenceScores
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import HOLDOUT, Message, Metric, Outcome, Response, Sample
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.records.prompts import write_prompts
from serve_eval.storage.records.scores import ScoreRecord, write_scores

HEAD = "The same beginning with \U0001f600 in it. " * 10
SECRET = "a hold-out question and its answer"


def _unpack(packed: object) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(str(packed))))
    return data


def _task(folder: Path, samples: list[Sample], answers: list[str], **known: Any) -> PageTask:
    samples_file(folder, "t").parent.mkdir(parents=True)
    (folder / "scores").mkdir()
    write_prompts(folder, "t", samples, str, texts=True)
    with Journal(samples_file(folder, "t")) as journal, write_scores(folder, "t") as scores:
        for sample, answer in zip(samples, answers, strict=True):
            journal.append(
                Record(id=sample.id, response=Response(text=answer, finish_reason="stop"))
            )
            value = float(answer == sample.target)
            outcome = Outcome.CORRECT if value else Outcome.WRONG
            scores.write(
                ScoreRecord(
                    id=sample.id, outcome=outcome, value=value, answer=answer, target=sample.target
                )
            )
    arms = {"": SampleSource(run=folder, task="t")}
    return PageTask(name="t", arms=arms, metric=Metric(), know=lambda _: KnownTask(**known))


def _rebuild(data: dict[str, Any]) -> list[list[str]]:
    """Return the turns of each prompt as the page's script does, which counts UTF-16 units."""
    found, columns = [], data["prompts"]
    for parts, turns in zip(columns["rows"], columns["turns"], strict=True):
        whole = "".join(columns["parts"][part] for part in parts).encode("utf-16-le")
        said, place = [], 0
        for _, length in turns or [["", len(whole) // 2]]:
            said.append(whole[2 * place : 2 * (place + length)].decode("utf-16-le"))
            place += length
        found.append(said)
    return found


def test_prompts_come_back_whole_and_their_beginning_is_kept_once(tmp_path: Path) -> None:
    samples = [
        Sample(id=f"s-{i}", prompt=f"{HEAD}Question {i} \U0001f680?", target="x") for i in range(9)
    ]
    turns = (Message(role="system", content=HEAD), Message(role="user", content="\U0001f600 hi"))
    samples.append(Sample(id="s-9", prompt=turns, target="x"))
    section = show_samples(SampleData([_task(tmp_path, samples, ["x"] * 10)]))
    assert section is not None
    data = _unpack(section.value)
    assert _rebuild(data) == [
        *([f"{HEAD}Question {i} \U0001f680?"] for i in range(9)),
        [HEAD, "\U0001f600 hi"],
    ]
    assert json.dumps(data["prompts"], ensure_ascii=False).count(HEAD) <= 3
    assert data["answers"]["text"]["values"] == ["x"]


def test_what_is_wrong_comes_first_and_scores_that_changed_are_named(tmp_path: Path) -> None:
    samples = [Sample(id=f"s-{i}", prompt="?", target="x") for i in (10, 2, 3)]
    scores = {"s-2": (1.0, 0.0), "s-3": (0.0, 0.0), "s-10": (1.0, 1.0)}
    reference = ReferenceScores(scores=scores, lo=0.0, hi=1.0)
    task = _task(tmp_path, samples, ["x", "y", "x"], reference=reference)
    data = SampleData([task]).to_json(None, None)
    assert data["id"] == ["s-2", "s-3", "s-10"]
    assert data["order"] == [0, 1, 2]
    assert data["flip"] == [2, 3, 1]
    assert data["before"] == [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)]


def test_no_text_of_a_holdout_sample_is_in_the_page(tmp_path: Path) -> None:
    samples = [
        Sample(id="open", prompt="?", target="x"),
        Sample(id="held", prompt=SECRET, target=SECRET, metadata={HOLDOUT: "1"}),
    ]
    task = _task(tmp_path, samples, ["x", SECRET], body={"model": "m"})
    section = show_samples(SampleData([task]))
    assert section is not None
    data = _unpack(section.value)
    assert data["hidden"] == [data["id"].index("held")]
    assert SECRET not in json.dumps(data)


def test_long_texts_are_shortened_until_the_page_is_small(tmp_path: Path) -> None:
    chosen = random.Random(1)
    texts = ["".join(chosen.choices("abcdefgh ", k=40_000)) for _ in range(8)]
    samples = [Sample(id=f"s-{i}", prompt="?", target="x") for i in range(8)]
    data = SampleData([_task(tmp_path, samples, texts)])
    whole, small = show_samples(data), show_samples(data, most_bytes=20_000)
    assert whole is not None
    assert small is not None
    assert _unpack(whole.value)["shortened"] == 0
    assert _unpack(whole.value)["answers"]["text"]["values"] == texts
    found = _unpack(small.value)
    assert found["shortened"] == 16  # the answer and what was extracted, of each sample
    assert len(str(small.value)) < 4 / 3 * 20_000 + 4
    for text, kept in zip(texts, found["answers"]["text"]["values"], strict=True):
        begin, said, end = kept.split("\n")
        assert text.startswith(begin)
        assert text.endswith(end)
        left = len(text) - len(begin) - len(end)
        assert said == f"[… {left:,} characters left out …]"


def test_halves_of_surrogate_pairs_are_packed_as_they_are() -> None:
    assert _unpack(pack({"x": "\ud83d and \udc00"})) == {"x": "\ud83d and \udc00"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunFolderError("no room"), "no room"),
        (ValueError("odd"), "ValueError: odd"),
        (OSError("gone"), "OSError: gone"),
    ],
)
def test_a_page_that_cannot_be_written_is_a_warning(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:
        raise error

    save(write)
    assert capsys.readouterr().err == (f"warning: the page could not be written: {told}\n")
