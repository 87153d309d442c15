"""Training texts of the embedded model, in pieces that each have a weight in the loss.

The texts are word problems, as a chat or as plain text, alone or after examples; short passkeys;
and drills, which are equations without a story. Drills fill the first part of the training, stories
the rest: learning sums takes far more examples than learning to read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from serve_eval.datasets.generated import Problem, problems
from serve_eval.tasks._passkey import hide_key

Piece = tuple[str, float]
"""A text with the weight of its tokens in the loss."""

END = "<|end|>"
SPECIAL = (END, "<|system|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{%"
    " endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GIVEN = 0.02
"""The weight of a token of the prompt; with 0.1, copying is learned far more slowly."""
SYSTEMS = ("You are a helpful assistant.", "Solve the problem.")


def documents(seed: int) -> Iterator[list[Piece]]:
    """Yield documents without end, as at the end of the training."""
    source = Source(seed)
    while True:
        yield source.document(1.0)


class Source:
    """Documents by the progress of the training, from 0 to 1."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"documents:{seed}")
        self._problems = problems("train", seed)

    def document(self, progress: float) -> list[Piece]:
        """Return the next document."""
        rng, kind = self._rng, self._rng.random()
        drills = min(1.0, max(0.15, 1.6 - 3 * progress))
        others = 0.09 if progress > 0.4 else 0.0
        if kind < drills / 2:
            return drill([next(self._problems) for _ in range(3)])
        one = next(self._problems)
        if kind < drills:
            return self._asked(bare(one), one.solution)
        if kind < drills + others / 2:
            key = hide_key(rng, sentences=rng.randint(2, 40), depth=rng.random())
            return self._asked(key.prompt, f"The pass key is {key.key}.")
        if kind < drills + others:
            return plain(
                [next(self._problems) for _ in range(rng.randint(1, 2))], one.question, one.solution
            )
        return self._asked(one.question, one.solution)

    def _asked(self, question: str, answer: str) -> list[Piece]:
        if self._rng.random() < 0.5:
            return plain([], question, answer)
        return chat(
            question, answer, self._rng.choice(SYSTEMS) if self._rng.random() < 0.1 else None
        )


def chat(question: str, answer: str, system: str | None = None) -> list[Piece]:
    """Return a conversation of one turn, as the chat template renders it."""
    before = f"<|system|>\n{system}{END}\n" if system else ""
    return [(f"{before}<|user|>\n{question}{END}\n<|assistant|>\n", GIVEN), (f"{answer}{END}", 1.0)]


def plain(shown: list[Problem], question: str, answer: str) -> list[Piece]:
    """Return examples, a question and its answer as plain text."""
    pieces: list[Piece] = []
    for one in shown:
        pieces += [(f"Question: {one.question}\nAnswer: ", GIVEN), (f"{one.solution}\n\n", 1.0)]
    return [*pieces, (f"Question: {question}\nAnswer: ", GIVEN), (f"{answer}{END}", 1.0)]


def bare(problem: Problem) -> str:
    """Return the sum of a problem without its story, such as 12+30-4."""
    lines = [line.partition("=")[0] for line in problem.solution.splitlines()[:-1]]
    return lines[0] + "".join(line[max(line.find("+"), line.find("-")) :] for line in lines[1:])


def drill(sums: list[Problem]) -> list[Piece]:
    """Return the equations of some problems.

    Only text that follows from the text before it counts.
    """
    pieces: list[Piece] = []
    for one in sums:
        for i, line in enumerate(one.solution.splitlines()[:-1]):
            left, _, result = line.partition("=")
            at = max(left.find("+"), left.find("-"))
            pieces += [
                (left[:at], 1.0 if i else GIVEN),
                (f"{left[at:]}=", GIVEN),
                (f"{result}\n", 1.0),
            ]
    return pieces
