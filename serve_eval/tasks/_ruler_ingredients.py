"""Fill prompts of RULER to their size with words, essays and questions about documents.

Words are those of the package wonderwords, as in RULER. Essays and questions are files below a
dataset root. Each is read when a kind first needs it.

The words are those of RULER (https://github.com/NVIDIA/RULER, Apache-2.0), qa.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError, PlanError, install_hint
from serve_eval.frozen import freeze
from serve_eval.schema import DataRoots

ESSAYS, SQUAD, HOTPOTQA = "PaulGrahamEssays.json", "squad.json", "hotpotqa.json"
"""The files, with RULER's names."""


class DocumentQuestion(NamedTuple):
    """A question with its answers, its documents and those of the same article, by number."""

    text: str
    answers: tuple[str, ...]
    own: Sequence[int]
    near: Sequence[int] = ()


class QuestionSet(NamedTuple):
    """The questions of a data set, with all its documents in alphabetical order."""

    questions: Sequence[DocumentQuestion]
    documents: Sequence[str]


class Words(NamedTuple):
    """Nouns and adjectives, and all words with the verbs, each in alphabetical order."""

    nouns: Sequence[str]
    adjectives: Sequence[str]
    all: Sequence[str]


@dataclass
class Ingredients:
    """The ingredients below dataset roots, in a folder of `source`. `files` were read."""

    source: Source
    roots: DataRoots
    files: dict[str, local.DataFile] = field(default_factory=dict)
    _asked: dict[str, QuestionSet] = field(default_factory=dict)

    @cached_property
    def words(self) -> Words:
        """The words. Raises PlanError without the package."""
        try:
            from wonderwords import RandomWord
        except ImportError as error:
            raise PlanError(
                "long_context needs the package wonderwords, whose words are RULER's",
                hint=install_hint("ruler"),
            ) from error
        known = RandomWord()
        noun, adjective, verb = (
            sorted({*known.filter(include_categories=[category])})
            for category in ("noun", "adjective", "verb")
        )
        return Words(noun, adjective, sorted({*noun, *adjective, *verb}))

    @cached_property
    def _essay_words(self) -> list[str]:
        read = self._read(ESSAYS, dict[str, Any]).get("text")
        if not isinstance(read, str) or not read.strip():
            raise DatasetError(f"{self.files[ESSAYS].path}: no text")
        return re.sub(r"\s+", " ", read).strip().split(" ")

    def essay(self, size: int) -> str:
        """Return the first words of the essays, again from the start if there are too few."""
        words = self._essay_words
        return " ".join((words * (-(-size // len(words))))[:size])

    def questions(self, name: str) -> QuestionSet:
        """Return the questions of a file. Raises DatasetError if it is missing or malformed."""
        if name not in self._asked:
            read = self._read(name, Any)
            try:
                self._asked[name] = _READERS[name](read)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                raise DatasetError(
                    f"{self.files[name].path}: not in the form of {name}: {error!r}",
                    hint=local.advice(self.source),
                ) from error
        return self._asked[name]

    def _read(self, name: str, kind: Any) -> Any:
        file = local.read_file(local.find_folder(self.source, self.roots, [name]) / name)
        self.files[name] = file
        try:
            return msgspec.json.decode(file.content, type=kind)
        except msgspec.DecodeError as error:
            raise DatasetError(f"{file.path}: not JSON: {error}") from error


def read_squad(data: Mapping[str, Any]) -> QuestionSet:
    """Return the questions of SQuAD 2.0 that have an answer."""
    articles = data["data"]
    documents = sorted({p["context"] for article in articles for p in article["paragraphs"]})
    number = {text: i for i, text in enumerate(documents)}
    questions = []
    for article in articles:
        near = [number[p["context"]] for p in article["paragraphs"]]
        for paragraph in article["paragraphs"]:
            own = number[paragraph["context"]]
            others = [i for i in near if i != own]
            questions += [
                DocumentQuestion(
                    asked["question"], tuple(a["text"] for a in asked["answers"]), (own,), others
                )
                for asked in paragraph["qas"]
                if not asked["is_impossible"]
            ]
    return QuestionSet(questions, documents)


def read_hotpotqa(data: Sequence[Mapping[str, Any]]) -> QuestionSet:
    """Return the questions of HotpotQA, each with its ten documents."""
    documents = sorted({_join(*one) for row in data for one in row["context"]})
    number = {text: i for i, text in enumerate(documents)}
    questions = [
        DocumentQuestion(
            row["question"], (row["answer"],), [number[_join(*one)] for one in row["context"]]
        )
        for row in data
    ]
    return QuestionSet(questions, documents)


def _join(title: str, sentences: Sequence[str]) -> str:
    return f"{title}\n{''.join(sentences)}"


_READERS: Mapping[str, Callable[[Any], QuestionSet]] = {SQUAD: read_squad, HOTPOTQA: read_hotpotqa}


NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
"""The line that the haystack `noise` repeats."""
SHORT = 4096
"""Tokens below which RULER makes lists of words with fewer repeats."""


class Filled(NamedTuple):
    """A prompt with its answers, and the text that it shares with others ("": none)."""

    prompt: str
    answers: tuple[str, ...]
    shared: str = ""


@freeze
class Drawn:
    """The draws of a sample: its generator, its number in its kind and its length in tokens."""

    rng: random.Random
    index: int
    length: int


Fill = Callable[[Drawn, int, Ingredients], Filled]


@freeze
class Kind:
    """One kind of prompts.

    `fill(drawn, size, ingredients)` makes a prompt whose haystack has `size` units: lines, words or
    documents. `least` is the fewest. `max_tokens` limits the answer. `spread` is the most tokens by
    which prompts of one size are taken to differ (None: they differ by more, and each is counted).
    With `part`, one of the answers is enough for full marks. `reads` names the data that it needs
    ("": none).
    """

    fill: Fill
    least: int
    max_tokens: int
    spread: int | None = None
    part: bool = False
    reads: str = ""


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


CLOSE = 0.02
"""Share of a length that may stay unused, so that few prompts must be counted."""
MOST_COUNTS = 40
"""Prompts that are counted at most for one size."""
_TOKEN = re.compile(r"[A-Za-z]{1,4}|\s(?=[0-9])|[0-9]{1,2}|[^\sA-Za-z0-9]")

_Point = tuple[int, int]
"""A size with the tokens of its prompt."""
Tokens = Callable[[int], int]
"""Counts the tokens of the prompt with a haystack of that size."""


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, rather too many than too few.

    A token has up to four letters of a word or two digits of a number here; the space before a
    number is one too.
    """
    return sum(1 for _ in _TOKEN.finditer(text))


def find_size(tokens: Tokens, least: int, budget: int, first: int | None) -> int | None:
    """Return a size whose prompt uses nearly all of a budget of tokens.

    It is the largest one, or one with at most CLOSE of the budget unused. None: the least size
    exceeds the budget. `first` is a guess.
    """
    aim = budget * (1 - CLOSE / 2)
    fits: _Point | None = None
    exceeds: _Point | None = None
    counted: list[_Point] = []
    size = max(least, first or least)
    for turn in range(MOST_COUNTS):
        counted.append((size, tokens(size)))
        if counted[-1][1] > budget:
            exceeds = counted[-1]
        else:
            fits = counted[-1]
            if fits[1] >= budget * (1 - CLOSE):
                break
        if exceeds is None:
            size = max(size + 1, _guess(counted[-2:], aim))
        elif exceeds[0] == least or (fits is not None and exceeds[0] == fits[0] + 1):
            break
        elif fits is None:
            size = max(least, min(size - 1, _guess(counted[-2:], aim)))
        else:
            guess = _guess([fits, exceeds], aim) if turn % 3 else (fits[0] + exceeds[0]) // 2
            size = max(fits[0] + 1, min(exceeds[0] - 1, guess))
    return None if fits is None else fits[0]


def _guess(counted: list[_Point], aim: float) -> int:
    """Return the size with `aim` tokens, on the line through two counted sizes."""
    (before, few), (size, count) = counted[0], counted[-1]
    if (count - few) * (size - before) <= 0:
        before, few = 0, 0
    return int(size + (aim - count) * (size - before) / (count - few or 1))
