"""Make the turns of MMMU's and MMMU-Pro's questions on images, by subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any

from serve_eval.datasets import local
from serve_eval.datasets.media import image_part
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import DataRoots, MediaPart, Message, TextPart
from serve_eval.scorers._mmmu import PostProcess

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
