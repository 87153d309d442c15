"""Describe the answers of a reference's first run, and count those that no run varied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from serve_eval.evidence.agreement.answer_texts import find_scripts, is_loop, mark_shared
from serve_eval.schema import Response, Sample
from serve_eval.storage.journal import Record
from serve_eval.verdicts.reference_answers import StoredAnswers


def describe_answers(samples: Sequence[Sample], records: Iterable[Record]) -> StoredAnswers | None:
    """Return the lengths of the answers and their signs of damage, in the order of the samples.

    None unless every sample has an answer that is a text.
    """
    found: dict[str, Response] = {}
    for record in records:
        if record.response is not None:
            found.setdefault(record.id, record.response)
    answers = [found[sample.id] for sample in samples if sample.id in found]
    if len(answers) < len(samples) or not all(map(_is_text, answers)):
        return None
    texts = [one.text for one in answers]
    counts = [one.usage.completion_tokens for one in answers]
    return StoredAnswers(
        counted=all(counts),
        lengths=tuple(counts if all(counts) else map(len, texts)),
        cut=tuple(one.truncated for one in answers),
        looping=tuple(map(is_loop, texts)),
        shared=tuple(mark_shared(texts, ())),
        scripts=frozenset(script for text in texts for script in find_scripts(text)),
    )


def count_equal(samples: Sequence[Sample], runs: Iterable[Iterable[Record]]) -> int:
    """Return the number of samples to which all runs have the same text, or 0 without texts.

    Repeats within a run have ids of their own and are not compared.
    """
    first: dict[str, int] | None = None
    for records in runs:
        texts = {
            record.id: hash((record.response.reasoning, record.response.text))
            for record in records
            if record.response is not None and _is_text(record.response)
        }
        first = texts if first is None else first
        first = {name: text for name, text in first.items() if texts.get(name) == text}
    return 0 if first is None else sum(sample.id in first for sample in samples)


def _is_text(response: Response) -> bool:
    return response.prompt_logprobs is None and response.choice_logprobs is None
