"""Mixed modality: 50 requests with an image and a video; each asks about one of them.

As mixed_modality_omni, without sounds, for models that see and do not hear. No accuracy is
published for it.
"""

from __future__ import annotations

from serve_eval.tasks._mixed_modality import modality_task

task = modality_task("mixed_modality_qwen_vl", "image", "video")
