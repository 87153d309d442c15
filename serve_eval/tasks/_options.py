"""Name the types of options that several tasks have, with their help for `serve-eval data list`."""

from __future__ import annotations

from typing import Annotated

from serve_eval.plugins.setting import Setting

NumSamples = Annotated[int, Setting("Number of samples to ask.")]
NumFewshot = Annotated[int, Setting("Number of solved examples before each question.")]
RandomSeed = Annotated[int, Setting("Seed of the order of the samples and of what is drawn.")]
ByChat = Annotated[
    bool, Setting("Ask by chat: messages in the model's chat template, not a bare text.")
]
Multiturn = Annotated[
    bool, Setting("Make each solved example a pair of turns. Needs apply_chat_template.")
]
StopsOfSuite = Annotated[
    bool,
    Setting("Send the stop strings of a base model by chat too, as TensorRT-LLM's suite does."),
]
