"""Passkey retrieval in a text of about 64,000 tokens: a five-digit key between lines of noise,
asked for at the end.

Generated, no data set: Mohtashami and Jaggi 2023, as InfiniteBench and TensorRT-LLM's suite have
it. One sample ends in "What is the pass key?\\n\\nThe pass key is" and is right when the first
digits of the completion are the key.
"""

from __future__ import annotations

from serve_eval.tasks._passkey import passkey_task

task = passkey_task("passkey_retrieval_64k", lines=2610, step=45, max_input=65536)
