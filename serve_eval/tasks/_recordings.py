"""Read recorded speech and videos with what is asked about them.

A split may be several files. They are read twice, one after the other: once to count the rows, and
once for the rows that are asked, because a file holds up to a gigabyte of sound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from serve_eval.datasets import local
from serve_eval.datasets.media import FrameFormat, audio_part, image_part, take_frames, video_part
from serve_eval.datasets.source import KNOWN, Source
from serve_eval.errors import DatasetError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.schema import DataRoots, MediaPart, Need, SourceFile

AUDIO = "audio"
"""Column of the sound: its bytes, or the name of a file next to the file of the rows."""
SPEAKER = "speaker"
"""Key of the metadata of a sample. Empty if the data does not name the speaker."""


@freeze
class Recording:
    """A row with its sound. `number` counts the rows of the split from 0."""

    number: int
    row: Mapping[str, Any]
    sound: MediaPart
    where: str


@freeze
class Speech:
    """The recordings that are asked, their files, and the number of rows of the split."""

    recordings: Sequence[Recording]
    files: tuple[SourceFile, ...]
    total: int


def read_speech(
    source: Source,
    roots: DataRoots,
    split: str,
    places: Sequence[str],
    choose: Callable[[int], Sequence[int]],
) -> Speech:
    """Return the recordings whose numbers `choose` returns for the number of rows, in that order.

    Raises DatasetError for data that is missing or malformed.
    """
    folder = local.find_folder(source, roots, local.split_markers([split], places))
    pieces = local.find_pieces(source, folder, split, places)
    counts, files = [], []
    for path in pieces:
        file = local.read_file(path)
        counts.append(len(local.rows(file, ())))
        files.append(file.source)
    chosen = list(choose(sum(counts)))
    wanted, found, start = set(chosen), dict[int, Recording](), 0
    for path, count in zip(pieces, counts, strict=True):
        here = sorted(wanted.intersection(range(start, start + count)))
        if here:
            rows = local.rows(local.read_file(path), ())
            for number in here:
                row = rows[number - start]
                where = f"{path}: row {number - start + 1}"
                sound = sound_part(row.get(AUDIO), where, path)
                found[number] = Recording(number=number, row=row, sound=sound, where=where)
        start += count
    return Speech(
        recordings=[found[number] for number in chosen], files=tuple(files), total=sum(counts)
    )


def text_in(row: Mapping[str, Any], columns: Sequence[str], where: str) -> str:
    """Return the text of the first of these columns that has one. Raises DatasetError if none."""
    for column in columns:
        text = row.get(column)
        if isinstance(text, str) and text.strip():
            return text
    raise DatasetError(f"{where} has no text in column {' or '.join(columns)}")


def speaker_in(row: Mapping[str, Any], column: str) -> str:
    """Return the speaker of a row, empty if it is not known. Data sets write "None" for that."""
    name = str(row.get(column) or "").strip()
    return "" if name == "None" else name


def sound_part(value: object, where: str, path: Path) -> MediaPart:
    """Return the sound in a cell of a file of rows. Raises DatasetError if there is none."""
    content = value.get("bytes") if isinstance(value, Mapping) else None
    if isinstance(value, str) and value:
        return audio_part(path.parent / value, where)
    if not isinstance(content, bytes):
        raise DatasetError(f"{where}: the sound is missing")
    return audio_part(content, where)


SOURCE = KNOWN["videomme"]
FILE = "annotations.jsonl"
COLUMNS = ("video_path", "question", "answer")

NumFrames = Annotated[int, Setting("Number of frames of each video, equally far apart.")]
SendVideo = Annotated[
    Literal["frames", "video"], Setting("Send frames as images, or the video itself.")
]
Pictures = Annotated[FrameFormat, Setting("Format of the frames: png keeps every pixel.")]


@freeze
class VideoSettings:
    """The form in which videos are sent."""

    send: Literal["frames", "video"] = "frames"
    num_frames: int = 8
    frame_format: FrameFormat = "png"

    @property
    def protocol(self) -> dict[str, object]:
        """The choices that change what a model sees."""
        if self.send == "video":
            return {"send": "video"}
        return {
            "send": "frames",
            "num_frames": self.num_frames,
            "frame_format": self.frame_format,
        }

    @property
    def need(self) -> Need:
        """The kind of media that the endpoint must accept."""
        return Need.VIDEO if self.send == "video" else Need.IMAGES

    def show(self, video: Path) -> tuple[MediaPart, ...]:
        """Return the parts of a turn that show a video.

        Raises DatasetError if it cannot be read.
        """
        if self.send == "video":
            return (video_part(video),)
        return tuple(map(image_part, take_frames(video, self.num_frames, self.frame_format)))


@freeze
class VideoQuestion:
    """One line of the annotations. `row` has its other columns."""

    id: str
    video: Path
    question: str
    options: Sequence[str]
    answer: str
    row: dict[str, Any]


def read_annotations(roots: DataRoots) -> tuple[list[VideoQuestion], local.DataFile]:
    """Return the questions in their order, and their file.

    Raises DatasetError if the file is missing or malformed. Videos are not looked at.
    """
    folder = local.find_folder(SOURCE, roots, [FILE])
    file = local.read_file(folder / FILE)
    return [
        _read_row(place, row, file) for place, row in enumerate(local.rows(file, COLUMNS))
    ], file


def _read_row(place: int, row: dict[str, Any], file: local.DataFile) -> VideoQuestion:
    options = row.get("options")
    if not isinstance(options, list) or not all(isinstance(one, str) for one in options):
        raise DatasetError(
            f"{file.path}: row {place + 1} has no list of texts in column options",
            hint="Correct the file: docs/tasks.md shows its form.",
        )
    return VideoQuestion(
        id=str(row.get("sample_id", place)),
        video=file.path.parent / row["video_path"],
        question=row["question"],
        options=options,
        answer=row["answer"].strip().upper(),
        row=row,
    )
