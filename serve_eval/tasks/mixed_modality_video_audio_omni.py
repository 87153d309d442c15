"""Mixed modality: 50 requests with an image and a video with sound; each asks about one of them.

As mixed_modality_omni, without sounds of their own. The video is sent itself, as its sound would be
lost with frames. The server must take the sound from the video.
"""

from __future__ import annotations

from serve_eval.schema import Task
from serve_eval.tasks._mixed_modality import build_task
from serve_eval.tasks._recordings import NumFrames, Pictures, SendVideo, VideoSettings
from serve_eval.tasks._samples import NumSamples, RandomSeed


def task(
    *,
    num_samples: NumSamples = 50,
    send: SendVideo = "video",
    num_frames: NumFrames = 8,
    frame_format: Pictures = "png",
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `random_seed` fixes the combinations and the media that are asked about. Videos are sent as by
    videomme. Raises PlanError for fewer questions than media.
    """
    return build_task(
        "mixed_modality_video_audio_omni",
        ("image", "video"),
        num_samples=num_samples,
        settings=VideoSettings(send=send, num_frames=num_frames, frame_format=frame_format),
        random_seed=random_seed,
    )
