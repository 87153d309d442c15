"""GSM8K as InferenceMax asks it: 5-shot chat in turns, scored by the last line "#### N".

Data as for gsm8k. References of TensorRT-LLM's suite have an explicit threshold of 94. A sample is
a conversation of five solved questions and an open one, each with the line that asks for that form.
"""

from __future__ import annotations

from serve_eval.tasks._gsm8k import last_line_task

task = last_line_task("gsm8k_inferencemax")
