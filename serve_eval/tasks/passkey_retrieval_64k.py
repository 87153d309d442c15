"""Passkey retrieval in about 64,000 tokens: a five-digit key between lines of noise.

Generated, without a data set: Mohtashami and Jaggi 2023, as in InfiniteBench and TensorRT-LLM's
suite. A sample ends in "What is the pass key?\\n\\nThe pass key is" and is right if the first
digits of the completion are the key.
"""

from __future__ import annotations

from serve_eval.tasks._passkey import passkey_task

task = passkey_task("passkey_retrieval_64k", lines=2610, step=45, max_input=65536)
