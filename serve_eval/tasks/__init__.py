"""Define the benchmarks, one per file: `task(*, options) -> Task`; and variants of one."""

from __future__ import annotations

VARIANTS = {
    "gsm8k_inferencemax": "_gsm8k",
    "gsm8k_inferencex": "_gsm8k",
    "mixed_modality_omni": "_mixed_modality",
    "mixed_modality_omni_alone": "_mixed_modality",
    "mixed_modality_qwen_vl": "_mixed_modality",
    "mixed_modality_qwen_vl_alone": "_mixed_modality",
    "mixed_modality_video_audio_omni": "_mixed_modality",
    "mixed_modality_video_audio_omni_alone": "_mixed_modality",
    "passkey_lines": "_passkey",
    "passkey_retrieval_128k": "_passkey",
    "passkey_retrieval_64k": "_passkey",
    "passkey_short": "_passkey",
    "word_problems_perplexity": "word_problems",
}
"""The names of variants, each with the file that makes it: a function of that name."""
