"""OCRBench: 1000 questions on text in images; an answer is right if it contains the expected one.

Paper: Liu et al. 2024, "OCRBench: On the Hidden Mystery of OCR in Large Multimodal Models". Data:
echo840/OCRBench, or the authors' OCRBench.json with their images. A sample is an image and the
question alone, as in the authors' scripts for APIs. Texts are compared in lower case, those of
handwritten formulas (HME100k) with their case and without spaces. The authors' final score is the
number of right answers, ten times the value. The questions were tested on the authors' file, the
images and the layout of the hub were not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.media import image_part
from serve_eval.datasets.source import HubSource, Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    MediaFile,
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
from serve_eval.scorers._expected import grade_value
from serve_eval.tasks._samples import NumSamples, RandomSeed, break_down_by, read_entry, shuffle

SOURCE = Source(
    name="OCRBench",
    folders=("echo840/OCRBench", "ocrbench"),
    homepage="https://huggingface.co/datasets/echo840/OCRBench",
    licence="MIT; see the data set's page for its images",
    rows="1000 test",
    sha256={"OCRBench.json": "df75957e75ea052e9f38f2c67a4f6676103998517345cf49ef7d03b62c835864"},
    hub=HubSource(repository="echo840/OCRBench", patterns=("data/test-*.parquet",)),
)
PROMPT_FROM = "none: the data set holds the whole prompt"
ROWS = 1000
FILES = ("test", "OCRBench")
PLACES = ("", "data/", "OCRBench/")
IMAGES = ("OCRBench_Images", ".", "..", "../OCRBench_Images")
"""Folders of the images, from that of OCRBench.json."""
FORMULAS = "HME100k"
RECOGNITION = "Text Recognition"
WRONG = "¤"


def task(
    *,
    num_samples: NumSamples = ROWS,
    text_first: Annotated[
        bool, Setting("Send the question before its image, as the authors' script for GPT-4V.")
    ] = False,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    Questions are asked in an order that `random_seed` fixes. Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("ocrbench: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        folder = local.find_folder(SOURCE, roots, local.split_markers(FILES, PLACES))
        name = next(
            one
            for one in FILES
            if any([*folder.glob(m)] for m in local.split_markers([one], PLACES))
        )
        files = [local.read_file(p) for p in local.find_pieces(SOURCE, folder, name, PLACES)]
        rows = [(row, file) for file in files for row in local.rows(file, ["question"])]
        told = f"OCRBench is incomplete: {folder} has {len(rows)} rows"
        local.check_rows(roots, len(rows), wanted, told, SOURCE)
        return Dataset(
            samples=[
                _sample(i, *rows[i], text_first=text_first)
                for i in shuffle(len(rows), random_seed)[:wanted]
            ],
            files=tuple(file.source for file in files),
            total=len(rows),
            deviation=None if len(rows) == ROWS else f"{len(rows)} rows, where OCRBench has {ROWS}",
        )

    return Task(
        name="ocrbench",
        version=1,
        datasets=("ocrbench",),
        requires=frozenset({Need.IMAGES}),
        reference_file="ocrbench",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=500),
        chat=True,
        protocol={"text_first": text_first, "random_seed": random_seed},
        load=load,
        score=_score,
        answers=_answers,
        breakdown=break_down_by({"component": _name_component, "type": read_entry("type")}),
        scoring="inline",
    )


def _sample(i: int, row: Mapping[str, Any], file: local.DataFile, *, text_first: bool) -> Sample:
    where = f"{file.path}: row {i + 1}"
    image = _find_image(row, where, file)
    parts = (image, TextPart(text=row["question"]))
    return Sample(
        id=f"test-{i}",
        prompt=(Message(role="user", content=parts[::-1] if text_first else parts),),
        target=msgspec.json.encode(_read_accepted(row, where)).decode(),
        metadata={
            "type": str(row.get("type") or row.get("question_type")),
            "dataset": str(row.get("dataset_name") or row.get("dataset")),
        },
        group=_name_image(image),
    )


def _read_accepted(row: Mapping[str, Any], where: str) -> list[str]:
    """Return the accepted answers, of which the authors' file has a list or one text."""
    given = row.get("answers", row.get("answer"))
    texts = [given] if isinstance(given, str) else given
    if (
        not isinstance(texts, list)
        or not texts
        or not all(isinstance(one, str) and one.strip() for one in texts)
    ):
        raise DatasetError(f"{where}: answers must be a text or a list of texts, not {given!r}")
    return texts


def _find_image(row: Mapping[str, Any], where: str, file: local.DataFile) -> MediaPart:
    """Return the image of a row: bytes, as in Parquet, or a file that the authors' file names."""
    if isinstance(name := row.get("image_path"), str):
        folder = file.path.parent
        found = next((p for one in IMAGES if (p := folder / one / name).is_file()), None)
        if found is None:
            raise DatasetError(
                f"{where}: there is no image {name} in {folder / IMAGES[0]}",
                hint="Unpack the authors' archive OCRBench_Images next to their OCRBench.json, or"
                f" use the copy of the hub, which has the images. {local.advice(SOURCE)}",
            )
        return image_part(found, where)
    value = row.get("image")
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if not isinstance(content, bytes):
        raise DatasetError(f"{where}: the image is missing", hint=local.advice(SOURCE))
    return image_part(content, where)


def _name_image(image: MediaPart) -> str:
    """Return the name of an image, which questions of a group share."""
    if isinstance(image, MediaFile):
        return f"image {image.sha256[:12]}"
    return f"image {hashlib.sha256(msgspec.json.encode(image)).hexdigest()[:12]}"


def contains(text: str, accepted: Sequence[str], *, formula: bool) -> bool:
    """Return True if a text contains one of the accepted answers, by the authors' rule.

    Both without white space at their ends and with spaces for line breaks: in lower case, or for
    formulas without any space.
    """

    def plain(one: str) -> str:
        if formula:
            return one.strip().replace("\n", " ").replace(" ", "")
        return one.lower().strip().replace("\n", " ")

    said = plain(text)
    return any(plain(one) in said for one in accepted)


def _decode(sample: Sample) -> list[str]:
    return msgspec.json.decode(sample.target, type=list[str])


def _score(sample: Sample, response: Response) -> Score:
    right = contains(response.text, _decode(sample), formula=sample.metadata["dataset"] == FORMULAS)
    return grade_value(float(right), response.text.strip())


def _answers(sample: Sample) -> tuple[str, str]:
    return f"It says {_decode(sample)[0]}.", WRONG


def _name_component(sample: Sample) -> str:
    """Return the component of a type: the six types of recognition are one, the others one each."""
    kind = sample.metadata["type"]
    return RECOGNITION if kind.endswith("Recognition") and "Expression" not in kind else kind
