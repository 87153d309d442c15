"""MMMU-Pro: 1730 questions on images with ten options, or with four, as TensorRT-LLM asks them.

They are the task `mmmu_pro` of trtllm-eval. Paper: Yue et al. 2024, "MMMU-Pro: A More Robust
Multi-discipline Multimodal Understanding Benchmark". Data: MMMU/MMMU_Pro (Apache-2.0). Images are
sent as those of mmmu. An answer is right if its last line that states a letter states the right
one; without such a line the rules of mmmu apply. Screenshots of questions ("vision") are not asked,
as trtllm-eval has no such subset. Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from string import ascii_uppercase
from typing import Annotated, Any, Literal

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
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
    DIRECT,
    ByPostProcess,
    Interleaved,
    SingleImage,
    images_of,
    name_post_process,
    question_text,
    read_texts,
    turn,
)
from serve_eval.tasks._samples import RandomSeed, break_down_by, read_entry, shuffle

SOURCE = KNOWN["mmmu_pro"]
ROWS = 1730
COLUMNS = ("id", "question", "options", "answer")
FOLDERS = {"standard_10": "standard (10 options)", "standard_4": "standard (4 options)"}
REQUESTS = {
    "direct": DIRECT,
    "cot": (
        "Answer the preceding multiple choice question. The last line of your response should be of"
        " the following format: 'Answer: $LETTER' (without quotes) where LETTER is one of options."
        " Think step by step before answering."
    ),
}
TABLES = ("subject", "topic_difficulty")
"""Columns by which the value is broken down, if the rows have them."""


def task(
    *,
    subset: Annotated[
        Literal["standard_10", "standard_4"], Setting("Questions with ten options or with four.")
    ] = "standard_10",
    prompt: Annotated[
        Literal["direct", "cot"], Setting("Ask for the letter alone, or for thoughts before it.")
    ] = "direct",
    num_samples: Annotated[int, Setting("Number of questions to ask.")] = ROWS,
    interleaved: Interleaved = False,
    single_image: SingleImage = False,
    post_process: ByPostProcess = "none",
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    The first `num_samples` rows are asked in an order that `random_seed` fixes. `prompt: cot` is
    what trtllm-eval sends with MMMU_PRO_PROMPT_MODE=cot. Raises PlanError for fewer than one row.
    """
    if num_samples < 1:
        raise PlanError("mmmu_pro: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        places = (f"{FOLDERS[subset]}/", f"data/{FOLDERS[subset]}/", f"{subset}/")
        folder = local.find_folder(SOURCE, roots, local.split_markers(["test"], places))
        files = [local.read_file(p) for p in local.find_pieces(SOURCE, folder, "test", places)]
        rows = [(row, file) for file in files for row in local.rows(file, COLUMNS)]
        told = f"MMMU-Pro is incomplete: {folder} has {len(rows)} rows"
        local.check_rows(roots, len(rows), wanted, told, SOURCE)
        make = partial(
            _sample,
            request=REQUESTS[prompt],
            interleaved=interleaved,
            single_image=single_image,
        )
        return Dataset(
            samples=[make(*rows[i]) for i in shuffle(len(rows), random_seed)[:wanted]],
            files=tuple(file.source for file in files),
            total=len(rows),
            deviation=None if len(rows) == ROWS else f"{len(rows)} rows, where MMMU-Pro has {ROWS}",
        )

    return Task(
        name="mmmu_pro",
        version=1,
        datasets=("mmmu_pro",),
        requires=frozenset({Need.IMAGES}),
        reference_file="mmmu_pro",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=32000, stop=("<|endoftext|>",)),
        chat=True,
        protocol={
            "subset": subset,
            "prompt": prompt,
            "interleaved": interleaved,
            "single_image": single_image,
            "random_seed": random_seed,
            **name_post_process(post_process),
        },
        load=load,
        score=partial(_score, by=post_process),
        answers=partial(_answers, form="{}" if prompt == "direct" else "Answer: {}"),
        breakdown=break_down_by({name: read_entry(name, "unknown") for name in TABLES}),
        scoring="inline",
    )


def _sample(
    row: Mapping[str, Any],
    file: local.DataFile,
    *,
    request: str,
    interleaved: bool,
    single_image: bool,
) -> Sample:
    where = f"{file.path}: {row['id']}"
    options = read_texts(row["options"], f"{where}: options")
    if row["answer"] not in [*ascii_uppercase[: len(options)]]:
        raise DatasetError(
            f"{where}: the answer {row['answer']!r} is not one of the {len(options)} options"
        )
    text = question_text(row["question"], options, request)
    images = images_of(text, row, where, file, required=False)  # the suite leaves them out
    known = {name: str(row[name]) for name in TABLES if row.get(name)}
    return Sample(
        id=row["id"],
        prompt=(turn(text, images, interleaved=interleaved, single_image=single_image),),
        target=row["answer"],
        metadata={**known, "options": msgspec.json.encode(options).decode()},
    )


def _options(sample: Sample) -> list[str]:
    return msgspec.json.decode(sample.metadata["options"], type=list[str])


def _score(sample: Sample, response: Response, *, by: PostProcess) -> Score:
    options = _options(sample)
    text = apply_post_process(response.text, by, ascii_uppercase[len(options) - 1])
    return _mmmu.score_pro_choice(text, sample.target, options)


def _answers(sample: Sample, *, form: str) -> tuple[str, str]:
    """Return the right letter and another one, in the form that the prompt asks for."""
    other = (ascii_uppercase.index(sample.target) + 1) % len(_options(sample))
    return form.format(sample.target), form.format(ascii_uppercase[other])
