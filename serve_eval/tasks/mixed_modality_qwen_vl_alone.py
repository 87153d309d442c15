"""The control of mixed_modality_qwen_vl: the same questions, each with its medium alone.

If both are in a run, the verdict of this task compares the two, as TensorRT-LLM's suite does.
"""

from __future__ import annotations

from serve_eval.tasks._mixed_modality import modality_task

task = modality_task(
    "mixed_modality_qwen_vl_alone", "image", "video", control_of="mixed_modality_qwen_vl"
)
