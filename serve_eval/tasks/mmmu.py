"""MMMU: 900 college-level questions on images in 30 subjects, as lm-eval asks them.

They are lm-evaluation-harness's group `mmmu_val`. Paper: Yue et al. 2023, "MMMU: A Massive
Multi-discipline Multimodal Understanding and Reasoning Benchmark". Data: MMMU/MMMU (Apache-2.0), 30
validation rows of each subject. Images are sent unchanged, as parts of the turn before its text,
from which marks `<image 1>` are removed. An answer is right if it states the letter or the text of
the right choice, or the number or words of an open question. Layout from documentation, not tested
on the real set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from string import ascii_uppercase
from typing import Annotated, Any

import msgspec

from serve_eval.datasets import local
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Need,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers import _mmmu
from serve_eval.scorers._mmmu import PostProcess, apply_post_process
from serve_eval.tasks._mmmu import (
    COLUMNS,
    SOURCE,
    SUBJECTS,
    ByPostProcess,
    Interleaved,
    SingleImage,
    images_of,
    name_post_process,
    places_of,
    question_text,
    read_texts,
    turn,
)
from serve_eval.tasks._samples import RandomSeed, break_down_by, read_entry, shuffle

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
        breakdown=break_down_by({"subject": read_entry("subject"), "kind": _name_kind}),
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
        return _mmmu.score_choice(text, accepted[0], options)
    return _mmmu.score_short_answer(text, accepted)


def _answers(sample: Sample) -> tuple[str, str]:
    options, accepted = _decode(sample.metadata["options"]), _decode(sample.target)
    if not options:
        return accepted[0], WRONG
    other = (ascii_uppercase.index(accepted[0]) + 1) % len(options)
    return accepted[0], ascii_uppercase[other]


def _name_kind(sample: Sample) -> str:
    return "open" if sample.metadata["options"] == "[]" else "multiple-choice"
