"""Video-MME: 300 questions with four options on short videos, as TensorRT-LLM's suite asks them.

Paper: Fu et al. 2024, "Video-MME: The First-Ever Comprehensive Evaluation Benchmark of Multi-modal
LLMs in Video Analysis". The suite's selection of it is not published: annotations.jsonl has one
line per question, and the videos lie next to it. Eight frames of each video are sent as images
before the question, by option the video itself. An answer is right if its first letter of A to D
is. Layout from the suite's reader, not tested on the real set.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from serve_eval.datasets import local
from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    MediaPart,
    Message,
    Metric,
    Sample,
    SamplingParams,
    Score,
    Task,
    TextPart,
)
from serve_eval.scorers._expected import grade_value
from serve_eval.tasks._recordings import (
    SOURCE,
    NumFrames,
    Pictures,
    SendVideo,
    VideoQuestion,
    VideoSettings,
    read_annotations,
)
from serve_eval.tasks._samples import NumSamples, tabulate

LETTERS = "ABCD"
TABLES = ("duration", "domain", "category", "sub_category", "task_type")
"""Columns by which the value is broken down, if the rows have them."""

_REQUEST = (
    "Answer the question based on the video. Select the best option. Respond with only the option"
    " letter (A, B, C, or D)."
)
_LABELLED = re.compile(r"(?i)[A-D][.)]\s+")


def task(
    *,
    num_samples: NumSamples = 300,
    send: SendVideo = "frames",
    num_frames: NumFrames = 8,
    frame_format: Pictures = "png",
) -> Task:
    """Return the task with its options.

    The first `num_samples` lines are asked. `send: video` sends each file as it is, and the server
    chooses frames; then `num_frames` and `frame_format` have no effect. Raises PlanError for
    numbers below one.
    """
    if num_samples < 1 or num_frames < 1:
        raise PlanError("videomme: num_samples and num_frames must be 1 or more")
    settings = VideoSettings(send=send, num_frames=num_frames, frame_format=frame_format)

    def load(roots: DataRoots, wanted: int) -> Dataset:
        questions, file = read_annotations(roots)
        told = f"{file.path} has {len(questions)} lines"
        local.check_rows(roots, len(questions), wanted, told, SOURCE)
        show = cache(settings.show)  # several questions are about one video
        return Dataset(
            samples=[_sample(one, file, show) for one in questions[:wanted]],
            files=(file.source,),
            total=len(questions),
        )

    return Task(
        name="videomme",
        version=1,
        datasets=("videomme",),
        requires=frozenset({settings.need}),
        reference_file="videomme",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=32),
        chat=True,
        protocol=settings.protocol,
        load=load,
        score=lambda sample, response: first_letter(response.text, sample.target),
        answers=_answers,
        breakdown=_breakdown,
        scoring="inline",
    )


def question_text(question: str, options: Sequence[str]) -> str:
    """Return the prompt. An option without a letter of its own gets one."""
    lines = "\n".join(
        option if _LABELLED.match(option) else f"{chr(ord('A') + place)}. {option}"
        for place, option in enumerate(map(str.strip, options))
    )
    return f"{_REQUEST}\n\nQuestion: {question}\nOptions:\n{lines}\nAnswer:"


def _sample(
    one: VideoQuestion, file: local.DataFile, show: Callable[[Path], Sequence[MediaPart]]
) -> Sample:
    if one.answer not in [*LETTERS]:
        raise DatasetError(
            f"{file.path}: {one.id}: the answer {one.answer!r} is not A, B, C or D",
            hint="Correct the file: docs/tasks.md shows its form.",
        )
    text = TextPart(text=question_text(one.question, one.options))
    return Sample(
        id=one.id,
        prompt=(Message(role="user", content=(*show(one.video), text)),),
        target=one.answer,
        metadata={name: str(one.row[name]) for name in TABLES if one.row.get(name)},
        group=one.video.name,
    )


def _answers(sample: Sample) -> tuple[str, str]:
    return sample.target, LETTERS[(LETTERS.index(sample.target) + 1) % 4]


def _breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the value in points and the scored questions by each known column."""
    tables: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for sample, value in scored:
        for name, key in sample.metadata.items():
            tables[name][key].append(value)
    return tabulate(dict(sorted(tables.items())))


_LETTER = re.compile(r"(?i)\b([A-D])\b")


def first_letter(text: str, target: str) -> Score:
    """Score 1 if the first letter is the target. Without a letter the answer is `unparsed`."""
    found = _LETTER.search(text)
    letter = found[1].upper() if found else None
    return grade_value(float(letter == target), letter)
