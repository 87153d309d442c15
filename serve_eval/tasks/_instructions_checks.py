"""Describe a kind of instruction, with the English texts that it is checked on.

The data are archives of NLTK's, read as they are: nothing is downloaded or unpacked while answers
are scored. They are the data set `nltk_data`.
"""

from __future__ import annotations

import io
import json
import string
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError, install_hint
from serve_eval.schema import DataRoots, SourceFile

SOURCE = KNOWN["nltk_data"]
PUNKT, STOPWORDS, TAGGER = "punkt_tab", "stopwords", "averaged_perceptron_tagger_eng"
FOLDERS = {PUNKT: "tokenizers", STOPWORDS: "corpora", TAGGER: "taggers"}
"""Folder of each archive in the layout of NLTK's own downloader."""
LANGUAGE_SEED = 0


class English:
    """English sentences, words and parts of speech, from the archives that were loaded."""

    def __init__(
        self, files: Sequence[SourceFile], punkt: Any, stopwords: frozenset[str], tagger: Any
    ) -> None:
        self.files = tuple(files)
        self.stopwords = stopwords
        self._punkt, self._tagger = punkt, tagger
        self._treebank = package("nltk.tokenize.destructive").NLTKWordTokenizer()
        self._runs = package("nltk.tokenize.regexp").RegexpTokenizer(r"\w+")

    def sentences(self, text: str) -> list[str]:
        """Return the sentences, as nltk.sent_tokenize does."""
        return list(self._punkt.tokenize(text))

    def words(self, text: str) -> list[str]:
        """Return words and punctuation marks, as nltk.word_tokenize does."""
        return [word for one in self.sentences(text) for word in self._treebank.tokenize(one)]

    def runs(self, text: str) -> list[str]:
        """Return the runs of letters, digits and underscores, with their marks.

        NLTK decides whether a combining mark, as in Hindi, belongs to a run: up to 3.10.0 it does
        not.
        """
        return list(self._runs.tokenize(text))

    def first_tag(self, words: Sequence[str]) -> str:
        """Return the part of speech of the first word, such as VB.

        The tagger looks at the two words that follow, and at no others.
        """
        return str(self._tagger.tag(list(words[:3]))[0][1])


def load(roots: DataRoots, *names: str) -> English:
    """Return the tools that these archives give. The other tools are then not to be used.

    Raises DatasetError if an archive is missing or damaged, PlanError without the extra.
    """
    files = {name: local.read_file(_find(roots, name)) for name in names}
    return English(
        [file.source for file in files.values()],
        _read_punkt(files[PUNKT]),
        frozenset(_member(files[STOPWORDS], f"{STOPWORDS}/english").split())
        if STOPWORDS in names
        else frozenset(),
        _read_tagger(files[TAGGER]) if TAGGER in names else None,
    )


def detect_language(text: str) -> str | None:
    """Return the code of a text's likeliest language; None if it has no letters to judge by.

    langdetect draws random numbers. They are seeded, and its profiles are read in one order on
    every file system, so that a text always has the same language.
    """
    detector = _language_profiles().create()
    try:
        detector.append(text)
        return str(detector.detect())
    except package("langdetect").LangDetectException:
        return None


def count_syllables(word: str) -> int:
    """Return the number of syllables of an English word; 0 for one with digits."""
    return int(package("syllapy").count(word))


def is_emoji(character: str) -> bool:
    """Return True for one emoji."""
    return bool(package("emoji").is_emoji(character))


def package(name: str) -> Any:
    """Return a module of the extra. Raises PlanError if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise PlanError(
            f"instructions are checked with optional packages: {error}",
            hint=install_hint("instructions"),
        ) from error


@lru_cache(maxsize=1)
def _language_profiles() -> Any:
    module = package("langdetect.detector_factory")
    factory = module.DetectorFactory()
    profiles = sorted(Path(module.PROFILES_DIRECTORY).iterdir())
    factory.load_json_profile([path.read_text(encoding="utf-8") for path in profiles])
    factory.seed = LANGUAGE_SEED
    return factory


def _find(roots: DataRoots, name: str) -> Path:
    places = [f"{name}.zip", f"{FOLDERS[name]}/{name}.zip"]
    folder = local.find_folder(SOURCE, roots, places)
    return next(path for place in places if (path := folder / place).is_file())


def _member(file: local.DataFile, name: str) -> str:
    try:
        with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
            return archive.read(name).decode()
    except (zipfile.BadZipFile, KeyError, OSError, UnicodeError) as error:
        raise DatasetError(f"{file.path}: {name}: {error}", hint=local.advice(SOURCE)) from error


def _read_punkt(file: local.DataFile) -> Any:
    """Return NLTK's splitter with the English parameters, which are four tables."""
    module = package("nltk.tokenize.punkt")
    tables = {
        name: _member(file, f"{PUNKT}/english/{name}").splitlines()
        for name in (
            "abbrev_types.txt",
            "sent_starters.txt",
            "collocations.tab",
            "ortho_context.tab",
        )
    }
    params = module.PunktParameters()
    params.abbrev_types = set(tables["abbrev_types.txt"])
    params.sent_starters = set(tables["sent_starters.txt"])
    params.collocations = {tuple(row.split("\t")) for row in tables["collocations.tab"]}
    contexts = (row.rsplit("\t", 1) for row in tables["ortho_context.tab"])
    params.ortho_context = defaultdict(int, {word: int(flags) for word, flags in contexts})
    return module.PunktSentenceTokenizer(params)


def _read_tagger(file: local.DataFile) -> Any:
    tagger = package("nltk.tag.perceptron").PerceptronTagger(load=False)
    weights, tagdict, classes = (
        json.loads(_member(file, f"{TAGGER}/{TAGGER}.{part}.json"))
        for part in ("weights", "tagdict", "classes")
    )
    tagger.model.weights, tagger.tagdict = weights, tagdict
    tagger.classes = tagger.model.classes = set(classes)
    return tagger


Arguments = Mapping[str, Any]
Follows = Callable[[str, Arguments, English], bool]

PUNCTUATION = string.punctuation
_NO_PUNCTUATION = str.maketrans("", "", PUNCTUATION)


@dataclass(frozen=True, slots=True)
class KindCheck:
    """The check of one kind of instruction.

    `follows(text, arguments, english)` is True if the text follows it. `arguments` are the names
    that an instruction of this kind has.
    """

    arguments: tuple[str, ...]
    follows: Follows


class Checks(dict[str, KindCheck]):
    """Checks by the names of their kinds, such as punctuation:no_comma."""

    def of(self, kind: str, *arguments: str) -> Callable[[Follows], Follows]:
        """Return a decorator that adds a function as the check of a kind."""

        def add(follows: Follows) -> Follows:
            self[kind] = KindCheck(arguments, follows)
            return follows

        return add


def without_punctuation(text: str) -> str:
    """Return the text without the punctuation marks of ASCII."""
    return text.translate(_NO_PUNCTUATION)


def trim(text: str) -> str:
    """Return the text without punctuation marks and blanks at its ends."""
    return text.strip(PUNCTUATION + " ")


def plain_letters(text: str) -> str:
    """Return the text in ASCII, with letters in the place of those with marks."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
