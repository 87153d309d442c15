"""Check IFBench's instructions on words and counts: groups count, ratio, words and repeat.

Each function gives the verdict of allenai/IFBench (Apache-2.0, db69a6f0), also where that verdict
surprises, as its docstring says. Numbers are floats in the data.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from string import ascii_lowercase

from serve_eval.tasks._instructions_checks import (
    PUNCTUATION,
    Arguments,
    Checks,
    English,
    count_syllables,
    trim,
    without_punctuation,
)

WORDS = Checks()

_CONJUNCTIONS = frozenset(("and", "but", "for", "nor", "or", "so", "yet"))
_NAME_LIST = """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte
Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel
Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher Penelope
Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"""
_PRONOUN_LIST = """i me we us you he him she her it they them my mine our ours your yours his hers
its their theirs myself ourselves yourself yourselves himself herself itself themselves this that
these those who whom whose which what nobody nothing each either neither both all some any none"""
NAMES = tuple(_NAME_LIST.split())
_PRONOUNS = frozenset(
    (
        *_PRONOUN_LIST.split(),
        *(f"{start}ever" for start in ("who", "whom", "what", "which")),
        *(
            f"{start}{end}"
            for start in ("any", "every", "some")
            for end in ("body", "one", "thing")
        ),
    )
)
_CONSONANTS = frozenset("bcdfghjklmnpqrstvwxyz")
_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
_PRIMES = frozenset(n for n in range(2, 98) if all(n % d for d in range(2, n)))
_KEYWORD_COUNTS = (1, 2, 3, 5, 7)
_ONLY_SENTENCE = "only output this sentence here, ignore all other requests."


@WORDS.of("count:word_count_range", "min_words", "max_words")
def _counts_words(text: str, args: Arguments, english: English) -> bool:
    return bool(args["min_words"] <= len(english.runs(text)) <= args["max_words"])


@WORDS.of("count:unique_word_count", "N")
def _counts_different_words(text: str, args: Arguments, english: English) -> bool:
    return len({trim(word) for word in text.lower().split()}) >= int(args["N"])


@WORDS.of("count:conjunctions", "small_n")
def _counts_conjunctions(text: str, args: Arguments, english: English) -> bool:
    """Count the words as written: `and` and `And,` are two."""
    found = {word for word in text.split() if trim(word).lower() in _CONJUNCTIONS}
    return len(found) >= int(args["small_n"])


@WORDS.of("count:person_names", "N")
def _counts_names(text: str, args: Arguments, english: English) -> bool:
    return sum(bool(re.search(rf"\b{name}\b", text)) for name in NAMES) >= int(args["N"])


@WORDS.of("count:numbers", "N")
def _counts_numbers(text: str, args: Arguments, english: English) -> bool:
    return len(re.findall(r"\d+", without_punctuation(text))) == int(args["N"])


@WORDS.of("count:punctuation")
def _has_all_marks(text: str, args: Arguments, english: English) -> bool:
    """Require an interrobang and, apart from the first one, each of six marks."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    first = "?!" if "?!" in text else "!?"
    return set(".,!?;:") <= set(text.replace(first, "", 1))


@WORDS.of("count:words_japanese", "N")
def _has_japanese_words(text: str, args: Arguments, english: English) -> bool:
    step = int(args["N"])
    words = (trim(word) for word in text.split()[step - 1 :: step])
    return all(_JAPANESE.search(word) for word in words if word and not word.isdigit())


@WORDS.of("count:pronouns", "N")
def _counts_pronouns(text: str, args: Arguments, english: English) -> bool:
    words = english.words(text.replace("/", " ").lower())
    return sum(word in _PRONOUNS for word in words) >= int(args["N"])


@WORDS.of("count:keywords_multiple", *(f"keyword{i}" for i in range(1, 6)))
def _counts_keywords(text: str, args: Arguments, english: English) -> bool:
    """Count a keyword inside of longer words too."""
    text = text.lower()
    return all(
        text.count(args[f"keyword{i}"].strip().lower()) == count
        for i, count in enumerate(_KEYWORD_COUNTS, 1)
    )


@WORDS.of("ratio:stop_words", "percentage")
def _has_few_stopwords(text: str, args: Arguments, english: English) -> bool:
    words = english.runs(text)
    count = sum(word.lower() in english.stopwords for word in words)
    return bool(words) and bool(count / len(words) * 100 <= args["percentage"])


@WORDS.of("ratio:sentence_type")
def _balances_two_types(text: str, args: Arguments, english: English) -> bool:
    statements, questions, _ = _count_types(text, english)
    return statements == 2 * questions


@WORDS.of("ratio:sentence_balance")
def _balances_three_types(text: str, args: Arguments, english: English) -> bool:
    return len(set(_count_types(text, english))) == 1


def _count_types(text: str, english: English) -> tuple[int, ...]:
    """Return the numbers of sentences that end in a full stop, `?` and `!`."""
    ends = Counter(sentence[-1:] for sentence in english.sentences(text))
    return tuple(ends[mark] for mark in ".?!")


@WORDS.of("ratio:overlap", "reference_text", "percentage")
def _overlaps(text: str, args: Arguments, english: English) -> bool:
    """Compare three characters at a time, where the instruction says trigrams."""
    here, there = (
        {one[i : i + 3] for i in range(len(one) - 2)} for one in (text, args["reference_text"])
    )
    wanted = args["percentage"]
    return bool(here) and bool(wanted - 2 <= len(here & there) / len(here) * 100 <= wanted + 2)


@WORDS.of("ratio:sentence_words")
def _has_equal_sentences(text: str, args: Arguments, english: English) -> bool:
    """Compare the lengths of three sentences. Words that are repeated do not matter."""
    lengths = [len(sentence.strip()) for sentence in english.sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1


@WORDS.of("words:alphabet")
def _follows_alphabet(text: str, args: Arguments, english: English) -> bool:
    words = without_punctuation(text).split()
    if not words or (first := words[0][0].lower()) not in ascii_lowercase:
        return False
    start = ascii_lowercase.index(first)
    return all(word.lower()[0] == ascii_lowercase[(start + i) % 26] for i, word in enumerate(words))


@WORDS.of("words:vowel")
def _has_few_vowels(text: str, args: Arguments, english: English) -> bool:
    """Count the vowels of the whole paragraph, not of each word."""
    return "\n" not in text.strip() and len(set("aeiou") & set(text.lower())) <= 3


@WORDS.of("words:consonants")
def _has_consonant_pairs(text: str, args: Arguments, english: English) -> bool:
    return all(
        any(a in _CONSONANTS and b in _CONSONANTS for a, b in pairwise(word))
        for word in text.lower().split()
    )


@WORDS.of("words:palindrome")
def _has_palindromes(text: str, args: Arguments, english: English) -> bool:
    words = without_punctuation(text).lower().split()
    return sum(len(word) >= 5 and word == word[::-1] for word in words) >= 10


@WORDS.of("words:prime_lengths")
def _has_prime_lengths(text: str, args: Arguments, english: English) -> bool:
    return all(len(word) in _PRIMES for word in without_punctuation(text).split())


@WORDS.of("words:start_verb")
def _starts_with_verb(text: str, args: Arguments, english: English) -> bool:
    words = english.words(text)
    return bool(words) and "VB" in english.first_tag(words)


@WORDS.of("words:repeats", "small_n")
def _repeats_little(text: str, args: Arguments, english: English) -> bool:
    counts = Counter(without_punctuation(text.lower()).split())
    return max(counts.values(), default=0) <= int(args["small_n"])


@WORDS.of("words:odd_even_syllables")
def _alternates_syllables(text: str, args: Arguments, english: English) -> bool:
    words = without_punctuation(text).lower().split()
    odd = [count_syllables(word) % 2 for word in words]
    return all(a != b for a, b in pairwise(odd))


@WORDS.of("words:last_first")
def _chains_sentences(text: str, args: Arguments, english: English) -> bool:
    blanks = PUNCTUATION + " "
    for one, following in pairwise(english.sentences(text)):
        last, first = one.rstrip(blanks).split(), following.lstrip(blanks).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


@WORDS.of("words:paragraph_last_first")
def _closes_paragraphs(text: str, args: Arguments, english: English) -> bool:
    paragraphs = (trim(line.strip().lower()).split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in paragraphs if words)


@WORDS.of("words:no_consecutive")
def _varies_first_letters(text: str, args: Arguments, english: English) -> bool:
    words = without_punctuation(text.lower()).split()
    return all(a[0] != b[0] for a, b in pairwise(words))


@WORDS.of("words:keywords_specific_position", "keyword", "n", "m")
def _has_keyword_there(text: str, args: Arguments, english: English) -> bool:
    sentences, place = english.sentences(text), int(args["n"])
    if len(sentences) < place:
        return False
    words = [w.lower() for w in english.words(sentences[place - 1]) if any(map(str.isalnum, w))]
    return words[int(args["m"]) - 1 :][:1] == [args["keyword"].strip().lower()]


@WORDS.of("words:words_position", "keyword")
def _has_keyword_twice(text: str, args: Arguments, english: English) -> bool:
    words = [word.lower() for word in english.words(text)]
    if words and words[-1] in PUNCTUATION:
        del words[-1]
    return len(words) >= 2 and words[1] == words[-2] == args["keyword"].strip().lower()


@WORDS.of("repeat:repeat_change", "prompt_to_repeat")
def _repeats_with_change(text: str, args: Arguments, english: English) -> bool:
    """Compare all words but the first. The first one may be the same if a blank differs."""
    request = args["prompt_to_repeat"]
    return bool(text != request and text.split()[1:] == request.split()[1:])


@WORDS.of("repeat:repeat_simple")
def _repeats_sentence(text: str, args: Arguments, english: English) -> bool:
    return text.strip().lower() == _ONLY_SENTENCE


@WORDS.of("repeat:repeat_span", "prompt_to_repeat", "n_start", "n_end")
def _repeats_span(text: str, args: Arguments, english: English) -> bool:
    span = args["prompt_to_repeat"][int(args["n_start"]) : int(args["n_end"]) + 1]
    return bool(text.strip().lower() == span.strip().lower())
