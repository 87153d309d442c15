"""Read the questions about one image, sound or video that mixed-modality tasks combine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from serve_eval.datasets import local
from serve_eval.datasets.known import KNOWN
from serve_eval.schema import DataRoots, MediaPart, SourceFile
from serve_eval.scorers._mixed_media import LAST_LETTER, find_letter
from serve_eval.tasks._mmmu_rows import image_of, read_rows, read_texts
from serve_eval.tasks._speech import AUDIO, sound_part
from serve_eval.tasks._video_rows import VideoSettings, read_annotations

SPEECH = KNOWN["voxpopuli"]
SPEECH_FOLDERS = ("", "en/", "data/", "data/en/")
TRANSCRIPTS = ("normalized_text", "raw_text", "text", "transcript")
"""Columns of the words that were spoken; the first with a text counts."""
TRANSCRIBE = "Transcribe the spoken audio exactly."

_LABELLED = re.compile(r"[A-Z]\.")


@dataclass(frozen=True, slots=True)
class Item:
    """A question about one medium. `show` makes the parts of a turn that show the medium."""

    id: str
    question: str
    target: str
    show: Callable[[], tuple[MediaPart, ...]]


def read_items(
    medium: str, roots: DataRoots, most: int, settings: VideoSettings
) -> tuple[list[Item], list[SourceFile]]:
    """Return the first usable questions about a medium, at most `most`, and their files.

    Raises DatasetError if the data set is missing or malformed.
    """
    files: list[SourceFile] = []
    read = {"image": _read_images, "audio": _read_sounds, "video": _read_videos}[medium]
    return list(islice(read(roots, files, settings), most)), files


def _read_images(roots: DataRoots, files: list[SourceFile], _: VideoSettings) -> Iterator[Item]:
    """Yield MMMU's validation rows with an image and a letter as answer."""
    for row, file in read_rows(roots):
        if file.source not in files:
            files.append(file.source)
        name, target = _first_image(row), _read_letter(row["answer"], "image")
        if name is not None and target is not None:
            where = f"{file.path}: {row['id']}"
            options = read_texts(row["options"], f"{where}: options", empty=True)
            yield Item(
                row["id"],
                _ask(row["question"], options),
                target,
                lambda row=row, name=name, where=where, file=file: (  # type: ignore[misc]
                    image_of(row, name, where, file),
                ),
            )


def _first_image(row: Mapping[str, Any]) -> str | None:
    names = ("image", "image_1", "image_0", *(name for name in row if name.startswith("image")))
    return next((name for name in names if row.get(name) is not None), None)


def _read_sounds(roots: DataRoots, files: list[SourceFile], _: VideoSettings) -> Iterator[Item]:
    """Yield the rows of the split test of VoxPopuli that have a transcript."""
    markers = local.split_markers(["test"], SPEECH_FOLDERS)
    folder = local.find_folder(SPEECH, roots, markers)
    for path in local.find_pieces(SPEECH, folder, "test", SPEECH_FOLDERS):
        file = local.read_file(path)
        files.append(file.source)
        for place, row in enumerate(local.rows(file, ())):
            said = next((row[n] for n in TRANSCRIPTS if str(row.get(n) or "").strip()), None)
            if said is not None:
                name = str(row.get("audio_id") or row.get("id") or f"voxpopuli-{place}")
                yield Item(
                    name,
                    TRANSCRIBE,
                    str(said),
                    lambda row=row, name=name, file=file: (  # type: ignore[misc]
                        sound_part(row.get(AUDIO), f"{file.path}: {name}", file.path),
                    ),
                )


def _read_videos(
    roots: DataRoots, files: list[SourceFile], settings: VideoSettings
) -> Iterator[Item]:
    """Yield the lines of Video-MME with a letter as answer."""
    questions, file = read_annotations(roots)
    files.append(file.source)
    for one in questions:
        if (target := _read_letter(one.answer, "video")) is not None:
            yield Item(
                one.id,
                _ask(one.question, one.options),
                target,
                lambda one=one: settings.show(one.video),  # type: ignore[misc]
            )


def _read_letter(answer: str, medium: str) -> str | None:
    return find_letter(answer.strip().upper(), LAST_LETTER[medium])


def _ask(question: str, options: Sequence[str]) -> str:
    """Return a question with its options. An option without a letter of its own gets one."""
    lines = [
        option if _LABELLED.match(option) else f"{chr(ord('A') + place)}. {option}"
        for place, option in enumerate(options)
    ]
    listed = ["Options:", *lines] if lines else []
    return "\n".join([question, *listed, "Respond with only the option letter."])
