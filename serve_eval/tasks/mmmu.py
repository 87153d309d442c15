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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
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
from serve_eval.scorers.mmmu import PostProcess, apply_post_process
from serve_eval.tasks._samples import RandomSeed, shuffle

ROWS = 30
"""Rows of each subject."""
SHORT = "Answer the question using a single word or phrase."
WRONG = "¤"


def task(
    *,
    subjects: Annotated[list[str] | None, Setting("Some of the 30 subjects. Not set: all.")] = None,
    num_samples: Annotated[
        int | None,
        Setting("Number of questions, divided equally among the subjects. Not set: all."),
    ] = None,
    interleaved: Interleaved = False,
    single_image: SingleImage = False,
    post_process: ByPostProcess = "none",
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `subjects` names some of the 30 (null: all). With `num_samples` the same number of rows of each
    subject is asked, at least that number in all. `interleaved` sends the images in the places of
    their marks. `single_image` sends only the first image, for models that accept one; the suite
    does so for some. `post_process` shortens answers of thinking models before they are scored.
    Raises PlanError for options out of range.
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
            SOURCE, roots, local.split_markers(["validation"], places_of(chosen[0]))
        )
        files, samples, found = [], [], 0
        for name in chosen:
            file = local.find_split(SOURCE, folder, "validation", places_of(name))
            rows = local.rows(file, COLUMNS)
            here = len(rows) if wanted >= total else min(len(rows), math.ceil(wanted / len(chosen)))
            files.append(file.source)
            found += len(rows)
            for i in shuffle(len(rows), random_seed)[:here]:
                samples.append(
                    _sample(name, rows[i], file, interleaved=interleaved, single_image=single_image)
                )
        told = f"MMMU is incomplete: {folder} has {found} rows of these subjects"
        local.check_rows(roots, len(samples), min(wanted, total), told, SOURCE)
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
            **name_post_process(post_process),
        },
        load=load,
        score=partial(_score, by=post_process),
        answers=_answers,
        breakdown=_breakdown,
        scoring="inline",
    )


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
    options = read_texts(row["options"], f"{where}: options") if several else []
    accepted = (
        [row["answer"]]
        if several or row["answer"][:1] != "["
        else read_texts(row["answer"], f"{where}: answer")
    )
    if several and row["answer"] not in [*ascii_uppercase[: len(options)]]:
        raise DatasetError(
            f"{where}: the answer {row['answer']!r} is not one of the {len(options)} options"
        )
    question = row["question"]
    text = question_text(question, options) if several else f"{question}\n\n{SHORT}"
    images = images_of(text, row, where, file)
    return Sample(
        id=row["id"],
        prompt=(turn(text, images, interleaved=interleaved, single_image=single_image),),
        target=msgspec.json.encode(accepted).decode(),
        metadata={"subject": subject, "options": msgspec.json.encode(options).decode()},
    )


def _decode(texts: str) -> list[str]:
    return msgspec.json.decode(texts, type=list[str])


def _score(sample: Sample, response: Response, *, by: PostProcess) -> Score:
    options, accepted = _decode(sample.metadata["options"]), _decode(sample.target)
    text = apply_post_process(response.text, by)
    if options:
        return mmmu.choice(text, accepted[0], options)
    return mmmu.short_answer(text, accepted)


def _answers(sample: Sample) -> tuple[str, str]:
    options, accepted = _decode(sample.metadata["options"]), _decode(sample.target)
    if not options:
        return accepted[0], WRONG
    other = (ascii_uppercase.index(accepted[0]) + 1) % len(options)
    return accepted[0], ascii_uppercase[other]


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


SUBJECTS = (
    *(
        "Accounting",
        "Agriculture",
        "Architecture_and_Engineering",
        "Art",
        "Art_Theory",
        "Basic_Medical_Science",
    ),
    *(
        "Biology",
        "Chemistry",
        "Clinical_Medicine",
        "Computer_Science",
        "Design",
        "Diagnostics_and_Laboratory_Medicine",
    ),
    *(
        "Economics",
        "Electronics",
        "Energy_and_Power",
        "Finance",
        "Geography",
        "History",
        "Literature",
        "Manage",
    ),
    *(
        "Marketing",
        "Materials",
        "Math",
        "Mechanical_Engineering",
        "Music",
        "Pharmacy",
        "Physics",
        "Psychology",
    ),
    *("Public_Health", "Sociology"),
)


SOURCE = KNOWN["mmmu"]
COLUMNS = ("id", "question", "question_type", "options", "answer")

Interleaved = Annotated[
    bool, Setting("Send each image in the place of its mark, not before the text.")
]
SingleImage = Annotated[bool, Setting("Send only the first image, for models that accept one.")]
ByPostProcess = Annotated[
    PostProcess,
    Setting("Shorten each answer first, as TensorRT-LLM's suite does for some thinking models."),
]
DIRECT = "Answer with the option's letter from the given choices directly."

_MARK = re.compile(r"<image ([1-7])>")


def name_post_process(post_process: PostProcess) -> dict[str, str]:
    """Return the choice for the protocol, which does not name it if answers are scored as said."""
    return {} if post_process == "none" else {"post_process": post_process}


def question_text(question: str, options: Sequence[str], request: str = DIRECT) -> str:
    """Return the prompt of a question with options, with its image marks."""
    choices = "\n".join(
        f"({letter}) {text}" for letter, text in zip(ascii_uppercase, options, strict=False)
    )
    return f"{question}\n\n{choices}\n\n{request}"


def turn(
    text: str, images: Mapping[str, MediaPart], *, interleaved: bool, single_image: bool
) -> Message:
    """Return the text as one turn with its images, before the text or in their places.

    `images` is keyed by the number of the mark; a mark without an image is left out. An image that
    is marked twice is sent twice, as in the original.
    """
    pieces = _MARK.split(text)  # text, number, text, ..., number, text
    numbers = [number for number in pieces[1::2] if number in images]
    if single_image:
        numbers = numbers[:1]
    if not interleaved:
        return Message(
            role="user",
            content=(*(images[n] for n in numbers), TextPart(text="".join(pieces[::2]))),
        )
    parts: list[TextPart | MediaPart] = []
    left = len(numbers)
    for piece, number in zip(pieces[::2], [*pieces[1::2], None], strict=True):
        if piece:
            parts.append(TextPart(text=piece))
        if number is not None and number in images and left:
            parts.append(images[number])
            left -= 1
    return Message(role="user", content=tuple(parts))


def images_of(
    text: str, row: Mapping[str, Any], where: str, file: local.DataFile, *, required: bool = True
) -> dict[str, MediaPart]:
    """Return the images that a text marks, by the numbers of their marks.

    Raises DatasetError for a missing one if all are `required`.
    """
    marked = {number: row.get(f"image_{number}") for number in _MARK.findall(text)}
    return {
        number: image_of(row, f"image_{number}", where, file)
        for number, value in marked.items()
        if required or value is not None
    }


def read_texts(written: str, where: str, *, empty: bool = False) -> list[str]:
    """Return a list of texts that is written in Python's form. It may be `empty` by request."""
    try:
        value = ast.literal_eval(written)
        if isinstance(value, list) and (value or empty):
            return [str(item) for item in value]
    except (ValueError, SyntaxError):
        pass
    raise DatasetError(f"{where}: {written[:60]!r} is not a list")


def image_of(row: Mapping[str, Any], column: str, where: str, file: local.DataFile) -> MediaPart:
    """Return the image in a column of a row.

    The value is bytes, as in Parquet, or the name of a file next to the file of the rows.
    """
    value, where = row.get(column), f"{where}: {column}"
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if isinstance(value, str):
        content = local.read_file(file.path.parent / Path(value)).content
    if not isinstance(content, bytes):
        raise DatasetError(f"{where}: the image is missing")
    return image_part(content, where)


def read_rows(roots: DataRoots) -> Iterator[tuple[Mapping[str, Any], local.DataFile]]:
    """Yield the validation rows of all subjects in their order, each with its file."""
    folder = local.find_folder(
        SOURCE, roots, local.split_markers(["validation"], places_of(SUBJECTS[0]))
    )
    for name in SUBJECTS:
        file = local.find_split(SOURCE, folder, "validation", places_of(name))
        for row in local.rows(file, COLUMNS):
            yield row, file


def places_of(name: str) -> tuple[str, str]:
    """Return the places of a subject's files in MMMU's folder."""
    return f"{name}/", f"data/{name}/"
