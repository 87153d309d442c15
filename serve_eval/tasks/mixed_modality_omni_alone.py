"""The control of mixed_modality_omni: the same questions, each with its medium alone.

If both are in a run, the verdict of this task compares the two, as TensorRT-LLM's suite does.
"""

from __future__ import annotations

from serve_eval.schema import Task
from serve_eval.tasks._mixed_modality import build_task
from serve_eval.tasks._recordings import NumFrames, Pictures, SendVideo, VideoSettings
from serve_eval.tasks._samples import NumSamples, RandomSeed


def task(
    *,
    num_samples: NumSamples = 50,
    send: SendVideo = "frames",
    num_frames: NumFrames = 8,
    frame_format: Pictures = "png",
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `random_seed` fixes the combinations and the media that are asked about. Videos are sent as by
    videomme. Raises PlanError for fewer questions than media.
    """
    return build_task(
        "mixed_modality_omni_alone",
        ("image", "audio", "video"),
        num_samples=num_samples,
        settings=VideoSettings(send=send, num_frames=num_frames, frame_format=frame_format),
        random_seed=random_seed,
        control_of="mixed_modality_omni",
    )
