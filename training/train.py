"""Train the embedded model: a Llama of 0.86 million parameters.

It takes under ten minutes on one core of a CPU.

    pip install torch tokenizers safetensors numpy
    OMP_NUM_THREADS=1 python -m training.train --out FOLDER [--steps 1520] [--seed 0]

The loss counts answers; tokens of the prompt count little. Matrices of the layers are trained with
Muon, embeddings and norms with AdamW. torch is needed only here, never to serve.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

from serve_eval.datasets.generated import problems
from training import network
from training.documents import SPECIAL, Piece, Source, chat, documents, plain
from training.export import save
from training.muon import Muon

BATCH = 750
"""Approximate tokens of a step. For learning sums, steps matter more than tokens."""
MUON, ADAM = 0.01, 0.004
"""The highest learning rates."""
POOL = 192
"""Documents that wait; rows of a batch are neighbours in length."""


def trained_tokenizer(seed: int) -> Tokenizer:
    """Train a byte-level BPE in which every digit is a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=network.VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [
        "".join(text for text, _ in pieces) for pieces in itertools.islice(documents(seed), 4000)
    ]
    for name in SPECIAL:
        texts = [text.replace(name, "") for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


Fixed = tuple[Tensor, Tensor, Tensor]
Row = tuple[list[int], list[float]]
"""Token ids and their weights in the loss."""


def encoded(tokenizer: Tokenizer, pieces: list[Piece]) -> Row:
    """Return a document as a row, cut at the window."""
    parts = [
        (tokenizer.encode(text, add_special_tokens=False).ids, weight) for text, weight in pieces
    ]
    ids = [i for part, _ in parts for i in part]
    return ids[: network.WINDOW], [weight for part, weight in parts for _ in part][: network.WINDOW]


def padded(rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Return ids and weights (row, position); padding has no weight."""
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row, _ in rows])
    weights = torch.tensor([weight + [0.0] * (longest - len(weight)) for _, weight in rows])
    return ids, weights


class Batches:
    """Batches by the progress of the training, with every document in its own row."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._source, self._rng = (
            tokenizer,
            Source(seed),
            random.Random(f"batches:{seed}"),
        )
        self._pool: list[Row] = []

    def batch(self, progress: float) -> tuple[Tensor, Tensor]:
        """Return the documents of the next step."""
        pool = self._pool
        while len(pool) < POOL:
            pool.append(encoded(self._tokenizer, self._source.document(progress)))
        pool.sort(key=lambda row: len(row[0]))
        at = self._rng.randrange(len(pool))
        rows = [pool.pop(at)]
        while at < len(pool) and (len(rows) + 1) * len(pool[at][0]) <= BATCH:
            rows.append(pool.pop(at))
        return padded(rows)


class HeldOut:
    """Problems of the test, half of them as a chat, and the accuracy of predicted tokens."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        chosen = itertools.islice(problems("test", 0), count)
        rows = [
            encoded(
                tokenizer,
                (
                    chat(one.question, one.solution)
                    if i % 2
                    else plain([], one.question, one.solution)
                ),
            )
            for i, one in enumerate(chosen)
        ]
        self._ids, weights = padded(rows)
        self._answer = weights[:, 1:] == 1
        self._sums = torch.tensor([results(tokenizer, row) for row in self._ids.tolist()])[:, 1:]

    def told(self, parameters: network.Parameters, fixed: Fixed) -> str:
        """Return the shares of right tokens in results and in the rest, and of faultless answers.

        The last share is what a greedy generation gets right.
        """
        with torch.no_grad():
            best = (
                network.logits(parameters, self._ids[:, :-1], fixed)
                .argmax(-1)
                .view(len(self._ids), -1)
            )
        right = best == self._ids[:, 1:]
        sums, rest = (
            right[self._sums].float().mean(),
            right[self._answer & ~self._sums].float().mean(),
        )
        return (
            f"sums {sums:.3f} rest {rest:.3f} faultless"
            f" {(right | ~self._answer).all(1).float().mean():.3f}"
        )


def results(tokenizer: Tokenizer, row: list[int]) -> list[bool]:
    """Return for every token whether it is a digit of the result of an equation."""
    equals, digits = (
        tokenizer.token_to_id("="),
        {tokenizer.token_to_id(digit) for digit in "0123456789"},
    )
    found, inside = [], False
    for i in row:
        found.append(inside and i in digits)
        inside = i == equals or found[-1]
    return found


def train(out: Path, steps: int, seed: int) -> None:
    """Train and save a model, and print progress with the processor time now and then."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    began = time.process_time()
    tokenizer, parameters, fixed = (
        trained_tokenizer(seed),
        network.initial(seed),
        network.constants(),
    )
    print(f"{sum(p.numel() for p in parameters.values())} parameters")
    muon = Muon([(parameters[name], parts) for name, parts in network.PARTS.items()])
    adam = torch.optim.AdamW(
        [parameters["embed"], parameters["norms"]], betas=(0.9, 0.98), weight_decay=0.0
    )
    batches, tests, tokens = Batches(tokenizer, seed), HeldOut(tokenizer, 128), 0
    for step in range(steps):
        progress = step / steps
        rate = min(1.0, (step + 1) / 50, 1.7 * (1 - progress) + 0.01)
        ids, weights = batches.batch(progress)
        losses = F.cross_entropy(
            network.logits(parameters, ids[:, :-1], fixed), ids[:, 1:].flatten(), reduction="none"
        )
        # Not the mean: a batch of a few long documents with short answers would count as much as
        # one with many answers.
        loss = (losses * weights[:, 1:].flatten()).sum() / BATCH
        loss.backward()
        muon.step(MUON * rate)
        adam.param_groups[0]["lr"] = ADAM * rate
        adam.step()
        for p in parameters.values():
            p.grad = None
        tokens += ids.numel()
        if (step + 1) % 250 == 0 or step + 1 == steps:
            spent = f"{tokens} tokens {time.process_time() - began:.0f} CPU s"
            print(f"step {step + 1} {tests.told(parameters, fixed)} {spent}", flush=True)
    save(out, parameters, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded model on one core of a CPU.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--steps", type=int, default=1520)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(given.out, given.steps, given.seed)


if __name__ == "__main__":
    main()
