"""MMMU: 900 college-level questions on images in 30 subjects, as lm-eval asks them.

They are lm-evaluation-harness's group `mmmu_val`. Paper: Yue et al. 2023, "MMMU: A Massive
Multi-discipline Multimodal Understanding and Reasoning Benchmark". Data: MMMU/MMMU (Apache-2.0), 30
validation rows of each subject. Images are sent unchanged, as parts of the turn before its text,
from which marks `<image 1>` are removed. An answer is right if it states the letter or the text of
the right choice, or the number or words of an open question. Layout from documentation, not tested
on the real set.
"""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.media import image_part
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    MediaPart,
    Message,
    Metric,
    Need,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
    TextPart,
)
from serve_eval.scorers import mmmu
from serve_eval.tasks._mmmu_subjects import SUBJECTS as SUBJECTS
from serve_eval.tasks._options import RandomSeed
from serve_eval.tasks._order import shuffle

SOURCE = KNOWN["mmmu"]
ROWS = 30
"""Rows of each subject."""
COLUMNS = ("id", "question", "question_type", "options", "answer")
WRONG = "¤"

_MARK = re.compile(r"<image ([1-7])>")


def task(
    *,
    subjects: Annotated[list[str] | None, Setting("Some of the 30 subjects. Not set: all.")] = None,
    num_samples: Annotated[
        int | None,
        Setting("Number of questions, divided equally among the subjects. Not set: all."),
    ] = None,
    interleaved: Annotated[
        bool, Setting("Send each image in the place of its mark, not before the text.")
    ] = False,
    single_image: Annotated[
        bool, Setting("Send only the first image, for models that accept one.")
    ] = False,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `subjects` names some of the 30 (null: all). With `num_samples` the same number of rows of each
    subject is asked, at least that number in all. `interleaved` sends the images in the places of
    their marks. `single_image` sends only the first image, for models that accept one; the suite
    does so for some. Raises PlanError for options out of range.
    """
    chosen = list(SUBJECTS) if subjects is None else subjects
    problems = [
        f"mmmu.subjects: unknown {n!r}.{registry.nearest(n, SUBJECTS)}"
        for n in chosen
        if n not in SUBJECTS
    ]
    total = ROWS * len(chosen)
    count = total if num_samples is None else num_samples
    if problems or count < 1:
        raise PlanError(
            problems or "mmmu: num_samples must be 1 or more, subjects must not be empty"
        )

    def load(roots: DataRoots, wanted: int) -> Dataset:
        folder = local.find_folder(
            SOURCE, roots, local.split_markers(["validation"], _places(chosen[0]))
        )
        files, samples, found = [], [], 0
        for name in chosen:
            file = local.find_split(SOURCE, folder, "validation", _places(name))
            rows = local.rows(file, COLUMNS)
            here = len(rows) if wanted >= total else min(len(rows), math.ceil(wanted / len(chosen)))
            files.append(file.source)
            found += len(rows)
            for i in shuffle(len(rows), random_seed)[:here]:
                samples.append(
                    _sample(name, rows[i], file, interleaved=interleaved, single_image=single_image)
                )
        if len(samples) < min(wanted, total):
            raise DatasetError(
                f"MMMU is incomplete: {folder} has {found} rows of these subjects; {wanted} are"
                " needed",
                hint=local.advice(SOURCE),
            )
        deviation = None if found == total else f"{found} rows, where these subjects have {total}"
        return Dataset(samples=samples, files=tuple(files), total=found, deviation=deviation)

    return Task(
        name="mmmu",
        version=1,
        datasets=("mmmu",),
        requires=frozenset({Need.IMAGES}),
        reference_file="mmmu",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=512, stop=("<|endoftext|>",)),
        chat=True,
        protocol={
            "subjects": chosen if subjects is not None else None,
            "interleaved": interleaved,
            "single_image": single_image,
            "random_seed": random_seed,
        },
        load=load,
        score=_score,
        answers=_answers,
        breakdown=_breakdown,
        scoring="inline",
    )


def question_text(row: Mapping[str, Any], options: Sequence[str]) -> str:
    """Return the prompt with its image marks. Without options it is an open question."""
    if not options:
        return f"{row['question']}\n\nAnswer the question using a single word or phrase."
    choices = "\n".join(
        f"({letter}) {text}" for letter, text in zip(ascii_uppercase, options, strict=False)
    )
    return (
        f"{row['question']}\n\n{choices}\n\nAnswer with the option's letter from the given choices"
        " directly."
    )


def turn(
    text: str, images: Mapping[str, MediaPart], *, interleaved: bool, single_image: bool
) -> Message:
    """Return the text as one turn with its images, before the text or in their places.

    `images` is keyed by the number of the mark. An image that is marked twice is sent twice, as in
    the original.
    """
    pieces = _MARK.split(text)  # text, number, text, ..., number, text
    numbers = pieces[1::2][:1] if single_image else pieces[1::2]
    if not interleaved:
        return Message(
            role="user",
            content=(*(images[n] for n in numbers), TextPart(text="".join(pieces[::2]))),
        )
    parts: list[TextPart | MediaPart] = []
    for piece, number in zip(pieces[::2], [*pieces[1::2], None], strict=True):
        if piece:
            parts.append(TextPart(text=piece))
        if number is not None and len([p for p in parts if not isinstance(p, TextPart)]) < len(
            numbers
        ):
            parts.append(images[number])
    return Message(role="user", content=tuple(parts))


def _places(name: str) -> tuple[str, str]:
    return f"{name}/", f"data/{name}/"


def _sample(
    subject: str,
    row: Mapping[str, Any],
    file: local.DataFile,
    *,
    interleaved: bool,
    single_image: bool,
) -> Sample:
    where = f"{file.path}: {row['id']}"
    several = row["question_type"] == "multiple-choice"
    options = _texts(row["options"], f"{where}: options") if several else []
    accepted = (
        [row["answer"]]
        if several or row["answer"][:1] != "["
        else _texts(row["answer"], f"{where}: answer")
    )
    if several and row["answer"] not in [*ascii_uppercase[: len(options)]]:
        raise DatasetError(
            f"{where}: the answer {row['answer']!r} is not one of the {len(options)} options"
        )
    text = question_text(row, options)
    images = {
        number: _image(row.get(f"image_{number}"), f"{where}: image_{number}", file)
        for number in _MARK.findall(text)
    }
    return Sample(
        id=row["id"],
        prompt=(turn(text, images, interleaved=interleaved, single_image=single_image),),
        target=msgspec.json.encode(accepted).decode(),
        metadata={"subject": subject, "options": msgspec.json.encode(options).decode()},
    )


def _texts(written: str, where: str) -> list[str]:
    """Return a list of texts that is written in Python's form."""
    try:
        value = ast.literal_eval(written)
        if isinstance(value, list) and value:
            return [str(item) for item in value]
    except (ValueError, SyntaxError):
        pass
    raise DatasetError(f"{where}: {written[:60]!r} is not a list")


def _image(value: object, where: str, file: local.DataFile) -> MediaPart:
    """Return an image as a data URL.

    The value is bytes, as in Parquet, or the name of a file next to the file of the rows.
    """
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if isinstance(value, str):
        content = local.read_file(file.path.parent / Path(value)).content
    if not isinstance(content, bytes):
        raise DatasetError(f"{where}: the image is missing")
    return image_part(content, where)


def _decode(texts: str) -> list[str]:
    return msgspec.json.decode(texts, type=list[str])


def _score(sample: Sample, response: Response) -> Score:
    options, accepted = _decode(sample.metadata["options"]), _decode(sample.target)
    if options:
        return mmmu.choice(response.text, accepted[0], options)
    return mmmu.short_answer(response.text, accepted)


def _answers(sample: Sample) -> tuple[str, str]:
    options, accepted = _decode(sample.metadata["options"]), _decode(sample.target)
    if not options:
        return accepted[0], WRONG
    return (
        f"({accepted[0]})",
        f"({ascii_uppercase[(ascii_uppercase.index(accepted[0]) + 1) % len(options)]})",
    )


def _breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the value in points and the scored questions by subject and kind of question."""
    tables: dict[str, dict[str, list[float]]] = {
        "subject": defaultdict(list),
        "kind": defaultdict(list),
    }
    for sample, value in scored:
        tables["subject"][sample.metadata["subject"]].append(value)
        tables["kind"]["open" if sample.metadata["options"] == "[]" else "multiple-choice"].append(
            value
        )
    return {
        name: {
            key: {"value": 100.0 * sum(v) / len(v), "scored": len(v)}
            for key, v in sorted(table.items())
        }
        for name, table in tables.items()
    }
