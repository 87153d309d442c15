"""Measure a trained model: greedy generations in numpy, as in the embedded server.

    OPENBLAS_NUM_THREADS=1 python -m training.measure FOLDER [--count 2000]

It prints the share of right answers to the test's problems as a chat, under every damage. The
undamaged model also gets them as plain text and after examples, and passkeys.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from serve_eval.datasets.generated import problems
from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.tasks._passkey import hide_key
from training.documents import chat, plain

ROWS = 32
MOST = 120
"""Tokens of an answer; the longest right one has about 60."""
SEED = 1

Asked = tuple[str, str]
"""A prompt and the last word of its right answer."""


def as_chat(count: int) -> list[Asked]:
    """Return problems of the test as the chat template renders them."""
    return [
        (chat(p.question, "")[0][0], str(p.answer))
        for p in itertools.islice(problems("test", SEED), count)
    ]


def as_plain(count: int, shots: int) -> list[Asked]:
    """Return problems of the test as plain text after `shots` problems of the training."""
    shown = list(itertools.islice(problems("train", 1_000_000), shots))
    told = itertools.islice(problems("test", SEED), count)
    return [
        ("".join(text for text, _ in plain(shown, p.question, "")[:-1]), str(p.answer))
        for p in told
    ]


def passkeys(count: int) -> list[Asked]:
    """Return passkeys under 5 to 40 sentences, as a chat."""
    rng = random.Random(SEED)
    keys = [hide_key(rng, sentences=rng.randint(5, 40), depth=rng.random()) for _ in range(count)]
    return [(chat(key.prompt, "")[0][0], f"{key.key}.") for key in keys]


def answers(
    model: Model, tokenizer: Tokenizer, prompts: Iterable[str]
) -> Iterator[tuple[int, str]]:
    """Yield the number and the greedy answer of each prompt, in the order in which they end."""
    cache, waiting = model.cache(ROWS), enumerate(prompts)
    active: list[tuple[int, int, list[int]]] = []
    while True:
        for number, prompt in itertools.islice(waiting, ROWS - len(active)):
            ids = tokenizer.encode(prompt)
            active.append(
                (number, len(ids), [int(model.extend(ids, 0, cache, len(active)).argmax())])
            )
        if not active:
            return
        lengths = [before + len(made) - 1 for _, before, made in active]
        best = model.step([made[-1] for _, _, made in active], lengths, cache).argmax(-1)
        for (_, _, made), token in zip(active, best.tolist(), strict=True):
            made.append(token)
        for at in reversed(range(len(active))):
            number, before, made = active[at]
            if model.end in made or len(made) >= MOST or before + len(made) >= model.window:
                text = b"".join(tokenizer.bytes_of(token) for token in made if token != model.end)
                yield number, text.decode(errors="replace")
                last = active.pop()
                if at < len(active):
                    cache.move(len(active), at, last[1] + len(last[2]) - 1)
                    active[at] = last


def accuracy(model: Model, tokenizer: Tokenizer, asked: list[Asked]) -> float:
    """Return the percentage of prompts whose answer ends in the right word."""
    ended = answers(model, tokenizer, [prompt for prompt, _ in asked])
    right = sum(text.split()[-1:] == [asked[number][1]] for number, text in ended)
    return 100 * right / len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a trained model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    tokenizer, count = Tokenizer(given.folder / "tokenizer.json"), given.count
    rounds: list[tuple[str, Damage, list[Asked]]]
    rounds = [("problems, chat", damage, as_chat(count)) for damage in get_args(Damage)]
    rounds += [
        (f"problems, plain, {shots}-shot", "none", as_plain(count, shots)) for shots in (0, 2)
    ]
    rounds += [("passkeys, chat", "none", passkeys(count // 4))]
    for name, damage, asked in rounds:
        began = time.process_time()
        share = accuracy(Model(given.folder, damage), tokenizer, asked)
        print(
            f"{name:26} {damage:9} {share:5.1f} % of {len(asked)} {time.process_time() - began:.1f}"
            " CPU s",
            flush=True,
        )


if __name__ == "__main__":
    main()
