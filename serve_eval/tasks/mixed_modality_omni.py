"""Mixed modality: 50 requests with an image, a sound and a video; each asks about one of them.

Images and their questions are MMMU's, sounds VoxPopuli's and videos Video-MME's, 50 of each. An
answer is right if it gives the letter of the option, or a transcript with a word error rate of at
most 50 %. mixed_modality_omni_alone asks the same without the other media.
"""

from __future__ import annotations

from serve_eval.tasks._mixed_modality import modality_task

task = modality_task("mixed_modality_omni", "image", "audio", "video")
