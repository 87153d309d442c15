"""Read questions about videos from annotations.jsonl, and make the parts that show a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from serve_eval.datasets import local
from serve_eval.datasets.frames import FrameFormat, take_frames
from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.media import image_part, video_part
from serve_eval.errors import DatasetError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import DataRoots, MediaPart, Need

SOURCE = KNOWN["videomme"]
FILE = "annotations.jsonl"
COLUMNS = ("video_path", "question", "answer")

NumFrames = Annotated[int, Setting("Number of frames of each video, equally far apart.")]
SendVideo = Annotated[
    Literal["frames", "video"], Setting("Send frames as images, or the video itself.")
]
Pictures = Annotated[FrameFormat, Setting("Format of the frames: png keeps every pixel.")]


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
            hint="Correct the file: docs/datasets.md shows its form.",
        )
    return VideoQuestion(
        id=str(row.get("sample_id", place)),
        video=file.path.parent / row["video_path"],
        question=row["question"],
        options=options,
        answer=row["answer"].strip().upper(),
        row=row,
    )
