"""Mixed modality: 50 requests with an image, a sound and a video; each asks about one of them.

Images and their questions are MMMU's, sounds VoxPopuli's and videos Video-MME's, 50 of each. An
answer is right if it gives the letter of the option, or a transcript with a word error rate of at
most 50 %. mixed_modality_omni_alone asks the same without the other media.
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
        "mixed_modality_omni",
        ("image", "audio", "video"),
        num_samples=num_samples,
        settings=VideoSettings(send=send, num_frames=num_frames, frame_format=frame_format),
        random_seed=random_seed,
    )
