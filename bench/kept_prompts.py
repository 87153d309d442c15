"""Measure what keeping the prompts of a run costs: processor time and bytes for each prompt.

Run `python bench/kept_prompts.py`. The prompts are as many as those of MMLU, with worked examples
of 57 subjects, or without any. With a key, each prompt is searched for it.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from serve_eval.client.connection import SecretMask
from serve_eval.schema import Connection, Message, Prompt, Sample
from serve_eval.storage.file_names import prompts_file
from serve_eval.storage.prompts import write_prompts

PROMPTS, SUBJECTS, EXAMPLE_WORDS, QUESTION_WORDS = 14_042, 57, 500, 60
KEY = {"OPENAI_API_KEY": "a-key-that-is-searched-for"}


def make_samples(*, examples: bool, chat: bool) -> Iterator[Sample]:
    """Yield samples whose prompts have random words."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(4000)]
    heads = [" ".join(rng.choices(words, k=EXAMPLE_WORDS)) for _ in range(SUBJECTS)]
    for i in range(PROMPTS):
        head = heads[i * SUBJECTS // PROMPTS] if examples else ""
        text = head + " ".join(rng.choices(words, k=QUESTION_WORDS))
        prompt: Prompt = (Message(role="user", content=text),) if chat else text
        yield Sample(id=str(i), prompt=prompt, target="A")


def main() -> None:
    """Print a table."""
    print(f"{PROMPTS} prompts")
    print("examples  form  key  us per prompt  MB sent  MB kept")
    forms = [(examples, chat) for examples in (False, True) for chat in (False, True)]
    for examples, chat in forms:
        samples = list(make_samples(examples=examples, chat=chat))
        sent = sum(len(str(sample.prompt)) for sample in samples)
        for environ in ({}, KEY):
            mask = SecretMask(Connection(), environ)
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                write_prompts(Path(folder), "t", samples, mask, texts=True)
                each_us = 1e6 * (time.process_time() - start) / PROMPTS
                kept = prompts_file(Path(folder), "t").stat().st_size
            told = "yes" if examples else "no", "chat" if chat else "text"
            print(
                f"{told[0]:8}  {told[1]}  {'yes' if environ else 'no':3}  {each_us:13.1f}"
                f"  {sent / 1e6:7.1f}  {kept / 1e6:7.1f}"
            )


if __name__ == "__main__":
    main()
