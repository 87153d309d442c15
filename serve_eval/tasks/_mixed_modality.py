"""Build the mixed-modality tasks: a request has several media, and asks about one of them.

The others are distractors. Protocol: that of MixedModality in TensorRT-LLM's suite. The same
questions with the asked medium alone are tasks of their own, the controls.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import (
    MEDIUM,
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
    SourceFile,
    Task,
    TextPart,
)
from serve_eval.scorers import word_errors
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers._mmmu import LAST_LETTER, find_letter, find_section
from serve_eval.tasks._mmmu import image_of, read_rows, read_texts
from serve_eval.tasks._recordings import (
    AUDIO,
    NumFrames,
    Pictures,
    SendVideo,
    VideoSettings,
    read_annotations,
    sound_part,
)
from serve_eval.tasks._samples import NumSamples, RandomSeed, break_down

NAMES = {"image": "one image", "audio": "one audio clip", "video": "one video"}
NEEDS = {"image": Need.IMAGES, "audio": Need.AUDIO}
DATA_SETS = {"image": "mmmu", "audio": "voxpopuli", "video": "videomme"}
MOST_WORD_ERRORS = 50.0
"""The word error rate of a right transcript is at most this, in percent."""
WRONG = "¤"


@dataclass(frozen=True, slots=True)
class MixedQuestion:
    """One item of each medium, in the order of the parts, and the medium that is asked about."""

    items: Mapping[str, Item]
    medium: str

    @property
    def id(self) -> str:
        """The ids of its items."""
        return "+".join(item.id for item in self.items.values())


def control_task(of: str, *media: str, sent: SendVideo = "frames") -> Callable[..., Task]:
    """Return the function of the control of a task: each question with its medium alone."""
    says = f"""The control of {of}: the same questions, each with its medium alone.

If both are in a run, the verdict of this task compares the two, as TensorRT-LLM's suite does.
"""
    return modality_task(f"{of}_alone", says, *media, sent=sent, control_of=of)


def modality_task(
    name: str,
    says: str,
    *media: str,
    sent: SendVideo = "frames",
    control_of: str | None = None,
) -> Callable[..., Task]:
    """Return the function of the task `name` about these media, with `says` as its docstring.

    `sent` is the default of its option `send`, and `control_of` the name of the task whose control
    it is.
    """

    def task(
        *,
        num_samples: NumSamples = 50,
        send: SendVideo = sent,
        num_frames: NumFrames = 8,
        frame_format: Pictures = "png",
        random_seed: RandomSeed = 0,
    ) -> Task:
        """Return the task with its options.

        `random_seed` fixes the combinations and the media that are asked about. Videos are sent as
        by videomme. Raises PlanError for fewer questions than media.
        """
        if num_samples < len(media) or num_frames < 1:
            raise PlanError(
                f"{name}: num_samples must be {len(media)} or more, num_frames must be 1 or more"
            )

        settings = VideoSettings(send=send, num_frames=num_frames, frame_format=frame_format)

        def load(roots: DataRoots, wanted: int) -> Dataset:
            if "audio" in media:
                word_errors.package()  # raises if it is missing, before anything is asked
            most, files = max(2 * wanted, wanted + 8), list[SourceFile]()
            items = {}
            for medium in media:
                items[medium], found = read_items(medium, roots, most, settings)
                files += found
            if roots.allow_fewer:
                wanted = min(wanted, *map(len, items.values()))
            questions = choose_questions(items, wanted, random_seed)
            alone = control_of is not None
            return Dataset(
                samples=[_sample(one, alone=alone) for one in questions],
                files=tuple(files),
                total=min(map(len, items.values())),
            )

        return Task(
            name=name,
            version=1,
            datasets=tuple(DATA_SETS[medium] for medium in media),
            requires=frozenset(settings.need if m == "video" else NEEDS[m] for m in media),
            reference_file=name,
            metric=Metric(),
            hypothesis=Hypothesis(num_samples=num_samples),
            sampling=SamplingParams(max_tokens=256),
            chat=True,
            protocol={**settings.protocol, "random_seed": random_seed},
            load=load,
            score=_score,
            answers=_answers,
            breakdown=break_down(MEDIUM),
            scoring="inline",
            control_of=control_of,
        )

    task.__doc__ = says
    return task


def choose_questions(
    items: Mapping[str, Sequence[Item]], count: int, seed: int
) -> list[MixedQuestion]:
    """Return questions with one item of each medium, and media asked about equally often.

    One generator shuffles the items of each medium and then the media that are asked about, as in
    the suite. Raises DatasetError if a medium has too few items.
    """
    rng = random.Random(seed)
    shuffled = {medium: list(found) for medium, found in items.items()}
    for found in shuffled.values():
        rng.shuffle(found)
    if few := {medium: len(found) for medium, found in shuffled.items() if len(found) < count}:
        told = ", ".join(f"{number} of {medium}" for medium, number in few.items())
        raise DatasetError(
            f"{count} questions of each medium are needed; found {told}",
            hint="Complete the data set, or ask fewer: num_samples, or --allow-mismatch dataset.",
        )
    asked = [list(shuffled)[place % len(shuffled)] for place in range(count)]
    rng.shuffle(asked)
    return [
        MixedQuestion({medium: found[place] for medium, found in shuffled.items()}, medium)
        for place, medium in enumerate(asked)
    ]


def _sample(one: MixedQuestion, *, alone: bool) -> Sample:
    shown = [one.medium] if alone else list(one.items)
    parts = [part for medium in shown for part in one.items[medium].show()]
    text = TextPart(text=request_text(shown, one.medium, one.items[one.medium].question))
    return Sample(
        id=one.id,
        prompt=(Message(role="user", content=(*parts, text)),),
        target=one.items[one.medium].target,
        metadata={MEDIUM: one.medium},
    )


def request_text(shown: Sequence[str], asked: str, question: str) -> str:
    """Return the text of a request that shows these media and asks about one."""
    *first, last = (NAMES[medium] for medium in shown)
    listed = f"{', '.join(first)}{',' if len(first) > 1 else ''} and {last}" if first else last
    others = (
        "The non-target media are random distractors."
        if first
        else "No distractor media are included."
    )
    return (
        f"You are given {listed} in this single request.\n{others}\n"
        f"Answer only the {asked} question below.\n\n{question}\n"
    )


def score_about(medium: str, text: str, target: str) -> Score:
    """Score 1 if the answer to a question about a medium is right.

    Raises PlanError for a transcript if the optional package for word errors is missing.
    """
    said = find_section(medium, text)
    if medium == "audio":
        right = 100.0 * word_errors.count_word_errors(said, target).rate <= MOST_WORD_ERRORS
        answer: str | None = word_errors.normalize_transcript(said)
    else:
        answer = find_letter(said, LAST_LETTER[medium])
        right = answer == target
    return grade_value(float(right), answer)


def _score(sample: Sample, response: Response) -> Score:
    return score_about(sample.metadata[MEDIUM], response.text, sample.target)


def _answers(sample: Sample) -> tuple[str, str]:
    if (last := LAST_LETTER.get(sample.metadata[MEDIUM])) is None:
        return sample.target, WRONG
    return sample.target, "A" if sample.target == last else last


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


mixed_modality_omni = modality_task(
    "mixed_modality_omni",
    """Mixed modality: 50 requests with an image, a sound and a video; each asks about one of them.

Images and their questions are MMMU's, sounds VoxPopuli's and videos Video-MME's, 50 of each. An
answer is right if it gives the letter of the option, or a transcript with a word error rate of at
most 50 %. mixed_modality_omni_alone asks the same without the other media.
""",
    *("image", "audio", "video"),
)
mixed_modality_omni_alone = control_task("mixed_modality_omni", "image", "audio", "video")
mixed_modality_qwen_vl = modality_task(
    "mixed_modality_qwen_vl",
    """Mixed modality: 50 requests with an image and a video; each asks about one of them.

As mixed_modality_omni, without sounds, for models that see and do not hear. No accuracy is
published for it.
""",
    *("image", "video"),
)
mixed_modality_qwen_vl_alone = control_task("mixed_modality_qwen_vl", "image", "video")
mixed_modality_video_audio_omni = modality_task(
    "mixed_modality_video_audio_omni",
    """\
Mixed modality: 50 requests with an image and a video with sound; each asks about one of them.

As mixed_modality_omni, without sounds of their own. The video is sent itself, as its sound would be
lost with frames. The server must take the sound from the video.
""",
    *("image", "video"),
    sent="video",
)
mixed_modality_video_audio_omni_alone = control_task(
    "mixed_modality_video_audio_omni", "image", "video", sent="video"
)
