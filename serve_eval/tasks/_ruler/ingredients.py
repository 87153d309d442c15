"""The ingredients that prompts are filled with: words, essays and questions with documents.

Words are those of the package wonderwords, as in RULER. Essays and questions are files below a
dataset root. Each is read when a kind first needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError, PlanError, install_hint
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
