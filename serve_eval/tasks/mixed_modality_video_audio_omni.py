"""Mixed modality: 50 requests with an image and a video with sound; each asks about one of them.

As mixed_modality_omni, without sounds of their own. The video is sent itself, as its sound would be
lost with frames. The server must take the sound from the video.
"""

from __future__ import annotations

from serve_eval.tasks._mixed_modality import modality_task

task = modality_task("mixed_modality_video_audio_omni", "image", "video", sent="video")
