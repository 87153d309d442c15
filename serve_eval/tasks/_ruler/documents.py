"""Fill the prompts of questions about documents, between documents of other questions.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), qa.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from serve_eval.tasks._ruler.ingredients import DocumentQuestion, Ingredients
from serve_eval.tasks._ruler.kind import Drawn, Filled, Kind

_ASKS = (
    "Answer the question based on the given documents. Only give me the answer and do not output"
    " any other words."
)
TEXT = (
    f"{_ASKS}\n\nThe following are given documents.\n\n{{context}}\n\n{_ASKS}\n\n"
    "Question: {query} Answer:"
)


def make_questions(reads: str, *, least: int) -> Kind:
    """Return the kind that asks the questions of a data set, in the order of its file."""

    def fill(drawn: Drawn, size: int, ingredients: Ingredients) -> Filled:
        asked = ingredients.questions(reads)
        question = asked.questions[drawn.index % len(asked.questions)]
        chosen = choose_documents(drawn.rng, question, size, len(asked.documents))
        shown = [asked.documents[i] for i in chosen]
        drawn.rng.shuffle(shown)
        text = format_prompt(shown, question.text)
        return Filled(text, question.answers, f"{reads}-{drawn.index}")

    return Kind(fill=fill, least=least, max_tokens=32, part=True, reads=reads)


def choose_documents(
    rng: random.Random, question: DocumentQuestion, size: int, known: int
) -> Sequence[int]:
    """Return the documents of a question and others: of the same article first, then any."""
    if size >= known:
        return [i % known for i in range(size)]
    own, near = question.own, question.near
    if size - len(own) <= len(near):
        return [*own, *rng.sample(near, size - len(own))]
    left_out = {*own, *near}
    others = [i for i in range(known) if i not in left_out]
    return [*own, *near, *rng.sample(others, size - len(own) - len(near))]


def format_prompt(documents: Sequence[str], question: str) -> str:
    """Return the numbered documents with the question."""
    numbered = (f"Document {i}:\n{text}" for i, text in enumerate(documents, 1))
    return TEXT.format(context="\n\n".join(numbered), query=question)
